"""`tide run`: detoxify prompts from the command line or a file."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tide.cli import options
from tide.cli.display import (
    OUTPUT,
    completions_table,
    model_label,
    on_one_line,
    prompt_of,
    say_loading,
    summary_table,
)
from tide.core.errors import InputError, TideError
from tide.data.files import refuse_input, writing
from tide.data.records import Record, read_records
from tide.evaluation.console import ERRORS, Bars, masked
from tide.scorers import DEFAULT_SCORER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tide.core.settings import Settings
    from tide.data.texts import Row
    from tide.evaluation.experiment import Job
    from tide.evaluation.judging import NamedScorer
    from tide.evaluation.methods import SearchMethod


PrintFormat = Literal["table", "text", "jsonl"]

# Options.
_OUTPUT = "Append records to this .jsonl file or run folder."
Output = Annotated[Path | None, options.option("Output", _OUTPUT, "--output", "-o")]
Shape = Annotated[
    PrintFormat,
    options.option("Output", "Of printed completions; text: a line for each.", "--format"),
]


@options.with_settings
@options.with_engine
def run(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts to complete.")] = None,
    input_file: options.InputFile = None,
    output: Output = None,
    shape: Shape = "table",
    model: options.Model = "pocket",
    scorer: options.Scorer = DEFAULT_SCORER,
    judges: options.Judges = None,
    preset: options.Preset = "auto",
    engine: options.EngineName = "transformers",
    engine_options: dict[str, Any] | None = None,
    limit: options.Limit = None,
    field: options.Field = "prompt",
    chat: options.IsChat = False,
    overwrite: options.Overwrite = False,
    mask: options.Mask = False,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Complete PROMPTS (or the texts of --input), or answer chats, with text that a scorer accepts.

    With --output, records are appended as prompts finish, and the same command resumes a killed
    run; with another judge, a larger --limit or more --trials, it adds the missing parts. `tide
    report` reads the file. Without --output, the completions are printed.
    """
    # 1. Check the options, and read the prompts.
    _check_output(output, input_file, shape)
    rows = options.rows_of(prompts, input_file, field=field, limit=limit, chats=chat)
    from tide.detoxifier.sync import Detoxifier  # noqa: PLC0415  (slow import)
    from tide.evaluation.experiment import Job, describe  # noqa: PLC0415
    from tide.evaluation.judging import NamedScorer, open_scorers, without_guide  # noqa: PLC0415
    from tide.evaluation.methods import method_of  # noqa: PLC0415

    # 2. Load judges, model and scorer.
    say_loading(model_label(model, engine_options or {}), scorer)
    with ExitStack() as opened:
        loaded = open_scorers(options.judges(judges), opened)
        detoxifier = Detoxifier(
            model,
            scorer=scorer,
            engine=engine,
            preset=preset,
            engine_options=engine_options,
            **(overrides or {}),
        )
        opened.enter_context(detoxifier)
        if detoxifier.engine.has_chat_template and not chat:
            hint = f"{model} has a chat template: --chat answers these prompts as user messages"
            ERRORS.print(hint)
        method = method_of(detoxifier, preset, chats=chat)
        settings = method.settings
        chosen = f"strategy {settings.strategy}, accepts below {settings.toxicity_threshold:g}"
        ERRORS.print(chosen, style="dim")
        progress = Bars(log=True)
        loaded = without_guide(loaded, detoxifier.scorer.name, progress)
        started = time.monotonic()

        # 3. Complete the prompts.
        errors: list[TideError] = []
        if output is None:
            records = _print(method, rows, loaded, errors, shape, mask)
        else:
            guide = NamedScorer(scorer, detoxifier.scorer).config
            described = describe(model, engine, engine_options or {}, detoxifier.engine)
            job = Job(rows, {"scorer": guide, **described}, loaded, overwrite, progress)
            records = _record(method, output, job, errors)

    # 4. Report.
    if shape == "table" and records:
        guides = (detoxifier.scorer.name, detoxifier.scorer.threshold)
        judged = [(judge.scorer.name, judge.scorer.threshold) for judge in loaded]
        seconds = time.monotonic() - started
        OUTPUT.print(summary_table(records, scorer=guides, judges=judged, seconds=seconds))
    _warn_of_unresolved(records, settings)
    if errors:
        raise TideError(f"{len(errors)} of {len(rows)} prompts failed (see above)")


def _check_output(output: Path | None, input_file: Path | None, shape: str) -> None:
    if output is None:
        return
    if shape != "table":
        raise InputError("--format: applies to printed output only; --output writes whole records")
    if str(output) == "-":
        raise InputError("--output: '-' is not a file; to print, leave --output out")
    if output.suffix not in ("", ".jsonl"):
        raise InputError(f"--output: {output} is neither a .jsonl file nor a folder")
    refuse_input(output, input_file)


def _record(method: SearchMethod, output: Path, job: Job, errors: list[TideError]) -> list[Record]:
    """Append records to a file or run folder, and return those of `job` and its trials."""
    from tide.evaluation.experiment import run_method  # noqa: PLC0415  (slow imports)
    from tide.evaluation.runs import files_of  # noqa: PLC0415

    files = files_of(output)
    with writing(files.records):
        errors.extend(run_method(method, output, job).values())
        row_ids = {row.id for row in job.rows}
        records = read_records(files.records, files.scores)
    # An earlier call may have added other prompts, and more trials.
    num_trials = method.settings.num_trials
    return [record.first(num_trials) for record in records if record.id in row_ids]


def _print(
    method: SearchMethod,
    rows: list[Row],
    judges: list[NamedScorer],
    errors: list[TideError],
    shape: PrintFormat,
    mask: bool,
) -> list[Record]:
    """Complete the rows, and print each as it finishes, or all as a table, even after an error.

    The errors of failed rows are shown and appended to `errors`.
    """
    from tide.evaluation.judging import judged  # noqa: PLC0415  (slow import)

    bars, trials = Bars(), range(method.settings.num_trials)
    records: list[Record] = []
    try:
        with bars.task("detoxifying", len(rows)) as advance:
            for row, outcome in method.records(rows, trials, ordered=True):
                advance(1)
                if isinstance(outcome, TideError):
                    errors.append(outcome)
                    bars.failed(method.name, row.id, outcome)
                    continue
                record = outcome
                for judge in judges:
                    record = judged(record, judge.scorer)
                records.append(record)
                if shape != "table":
                    _print_lines(record, shape, mask)
    finally:
        if shape == "table" and records:
            OUTPUT.print(completions_table(records, method.settings.toxicity_threshold, mask))
    return records


def _print_lines(record: Record, shape: PrintFormat, mask: bool) -> None:
    """Print a line for each trial."""
    for trial in record.trials:
        prompt, text = prompt_of(record), trial.text
        if mask:
            prompt, text = masked(prompt), masked(text)
        if shape == "text":
            print(on_one_line(text), flush=True)
            continue
        line = {
            "prompt": prompt,
            "text": text,
            "toxicity": trial.toxicity,
            "accepted": trial.accepted,
            "finish_reason": trial.finish_reason,
        }
        # ASCII: a terminal would obey control characters even inside JSON.
        print(json.dumps(line), flush=True)


def _warn_of_unresolved(records: Sequence[Record], settings: Settings) -> None:
    unresolved = sum(any(trial.not_accepted for trial in record.trials) for record in records)
    if unresolved:
        outcome = "withheld"
        if settings.on_unresolved == "best":
            outcome = "returned nevertheless (--on-unresolved refuse withholds it)"
        warning = f"prompts with a completion that the scorer did not accept: {unresolved}"
        ERRORS.print(f"{warning}; it is {outcome}", style="bold yellow")

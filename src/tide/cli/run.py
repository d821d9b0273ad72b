"""`tide run`: detoxify prompts from the command line or a file."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tide.cli import options, stopping
from tide.cli.display import (
    ERRORS,
    OUTPUT,
    chosen_settings,
    compact,
    completions_table,
    name_of,
    on_one_line,
    say_loading,
    say_unmasked,
    summary_table,
)
from tide.core.errors import InputError, PromptRefusedError, TideError
from tide.data.files import writing
from tide.data.records import Record, read_records
from tide.data.texts import Row, read_rows
from tide.evaluation.console import Bars, masked
from tide.scorers import DEFAULT_SCORER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tide.detoxifier.sync import Detoxifier
    from tide.evaluation.experiment import Job
    from tide.evaluation.judging import NamedScorer
    from tide.evaluation.methods import Method
    from tide.evaluation.runs import RunFiles


PrintFormat = Literal["table", "text", "jsonl", "records"]

# Options.
Output = Annotated[
    Path | None,
    options.option(
        "Output",
        "Append records to this .jsonl file or run folder.",
        "--output",
        "-o",
    ),
]
Shape = Annotated[
    PrintFormat | None,
    options.option(
        "Output",
        "Without --output: table, text (completions, one per line; no line for a failed "
        "prompt), jsonl (prompt, text, toxicity, accepted, finish_reason) or records (all "
        "fields). [default: table]",
        "--format",
        show_default=False,
    ),
]
FailOnUnresolved = Annotated[
    bool,
    options.option(
        "Output", "Exit with code 3 if a completion is not accepted.", "--fail-on-unresolved"
    ),
]


@options.with_settings
@options.with_engine
def run(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts to complete.")] = None,
    input_file: options.InputFile = None,
    output: Output = None,
    shape: Shape = None,
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
    fail_on_unresolved: FailOnUnresolved = False,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Complete PROMPTS (or the texts of --input), or answer chats, with text that a scorer accepts.

    With --output, records are appended as prompts finish, and the same command resumes a killed
    run; with another judge, a larger --limit or more --trials, it adds the missing parts. `tide
    report` reads the file. Without --output, the completions are printed.
    """
    # 1. Check the options, and read the prompts.
    _check_output(output, shape, mask)
    rows = _rows(prompts, input_file, field, limit, chat)
    from tide.detoxifier.sync import Detoxifier  # noqa: PLC0415  (slow import)
    from tide.evaluation.experiment import Job, describe  # noqa: PLC0415
    from tide.evaluation.judging import NamedScorer, check_names  # noqa: PLC0415
    from tide.evaluation.methods import method_of  # noqa: PLC0415

    # 2. Load judges, model and scorer.
    chosen = chosen_settings(preset, model, overrides or {})
    says = "preset {preset}, strategy {strategy}, accepts below {toxicity_threshold:g}"
    name = name_of(model, engine_options or {})
    say_loading(name, scorer, says.format(**chosen))
    loaded = [NamedScorer.of(spec) for spec in options.judges(judges)]
    check_names(loaded)
    with Detoxifier(
        model,
        scorer=scorer,
        engine=engine,
        preset=preset,
        engine_options=engine_options,
        **(overrides or {}),
    ) as detoxifier:
        if detoxifier.engine.has_chat_template and not chat:
            ERRORS.print(
                f"{model} has a chat template: --chat answers these prompts as user messages; "
                "without --chat, the model continues them as text",
                highlight=False,
                soft_wrap=True,
            )
        job = _PromptRun(detoxifier, method_of(detoxifier, preset, chats=chat), rows, loaded)

        # 3. Complete the prompts.
        if output is None:
            if shape in (None, "table"):
                job.show(mask)
            else:
                job.print(shape, mask)
        else:
            guide = NamedScorer(scorer, detoxifier.scorer).config
            described = describe(model, engine, engine_options or {}, detoxifier.engine.dtype)
            config = {"scorer": guide, **described}
            job.record(Job(rows, config, loaded, overwrite, Bars(ERRORS)), output, mask)

    # 4. Report failures.
    job.exit(fail_on_unresolved)


def _check_output(output: Path | None, shape: PrintFormat | None, mask: bool) -> None:
    if output is not None and shape is not None:
        raise InputError("--format: applies to printed output only; --output writes whole records")
    if mask and shape == "records":
        raise InputError("--mask: records are never masked; leave it out")
    if str(output) == "-":
        raise InputError("--output: '-' is not a file; to print, use --format jsonl or records")
    if output is not None and output.suffix not in ("", ".jsonl"):
        raise InputError(f"--output: {output} is neither a .jsonl file nor a folder")


def _records_of(rows: list[Row], files: RunFiles) -> list[Record]:
    """Read the records of these rows; the run may have others."""
    row_ids = {row.id for row in rows}
    records = read_records(files.records, files.scores)
    return [record for record in records if record.id in row_ids]


def _rows(
    prompts: list[str] | None, input_file: Path | None, field: str, limit: int | None, chats: bool
) -> list[Row]:
    if input_file is not None:
        if prompts:
            raise InputError("give prompts or --input, not both")
        return read_rows(input_file, field=field, limit=limit, chats=chats)
    if not prompts:
        raise InputError("no prompts; give prompts, or a file with --input")
    rows = [Row(number, prompt) for number, prompt in enumerate(prompts[:limit])]
    return [row.as_chat() for row in rows] if chats else rows


@dataclass
class _PromptRun:
    """Runs a method on rows.

    errors: one error per failed row. unresolved: number of rows with an unaccepted completion.
    """

    detoxifier: Detoxifier
    method: Method
    rows: list[Row]
    judges: list[NamedScorer]
    errors: list[TideError] = dataclass_field(default_factory=list)
    unresolved: int = 0
    started: float = dataclass_field(default_factory=time.monotonic)

    def records(self) -> Iterator[Record]:
        """Yield records in the order of the rows; report failed rows at once and skip them."""
        from tide.evaluation.judging import judged  # noqa: PLC0415  (slow import)

        bars, trials = Bars(ERRORS), range(self.method.settings.num_trials)
        bars.begin("detoxifying", len(self.rows))
        try:
            for row, outcome in self.method.records(self.rows, trials, ordered=True):
                bars.advance()
                if isinstance(outcome, TideError):
                    self.errors.append(outcome)
                    bars.failed(self.method.name, row.id, outcome)
                    continue
                record = outcome
                for judge in self.judges:
                    record = judged(record, judge.scorer)
                yield record
        finally:
            bars.end()

    def show(self, mask: bool) -> None:
        """Print completions as a table, even if an error ends the run early."""
        records: list[Record] = []
        try:
            records.extend(self.records())
        finally:
            if records:
                accepted = self.method.settings.toxicity_threshold
                OUTPUT.print(completions_table(records, accepted, mask))
        self.summarize(records)

    def print(self, shape: PrintFormat | None, mask: bool) -> None:
        """Print completions as they finish, one per line, in the order of the prompts."""
        for record in self._counted(self.records()):
            if shape == "records":
                for row in map(json.loads, record.lines()):
                    print(json.dumps(row), flush=True)
                continue
            for completion in compact(record):
                if mask:
                    completion |= {name: masked(completion[name]) for name in ("text", "prompt")}
                # ASCII: a terminal would obey control characters even inside JSON.
                is_text = shape == "text"
                line = on_one_line(completion["text"]) if is_text else json.dumps(completion)
                print(line, flush=True)
        self._warn()

    def record(self, shared: Job, output: Path, mask: bool) -> None:
        """Append records to a file or run folder, which may hold finished ones."""
        from tide.evaluation.experiment import run_method  # noqa: PLC0415  (slow imports)
        from tide.evaluation.runs import files_of  # noqa: PLC0415

        files = files_of(output)
        with writing(files.records):
            stopping.keeps(f"finished records are in {output}; the same command resumes")
            self.errors.extend(run_method(self.method, output, shared).values())
            self.summarize(_records_of(self.rows, files))
            if mask:
                say_unmasked(output)

    def exit(self, fail_on_unresolved: bool) -> None:
        """Raise an error if prompts failed, or if completions were not accepted."""
        if self.errors:
            refused = sum(isinstance(error, PromptRefusedError) for error in self.errors)
            apart = f", {refused} of them because the prompt itself is toxic" if refused else ""
            raise TideError(
                f"{len(self.errors)} of {len(self.rows)} prompts failed (see above){apart}"
            )
        if fail_on_unresolved and self.unresolved:
            raise typer.Exit(3)

    def summarize(self, records: Iterable[Record]) -> None:
        guide = self.detoxifier.scorer  # the scorer's threshold, not the run's, defines toxic text
        table = summary_table(
            self._counted(records),
            scorer=(guide.name, guide.threshold),
            judges=[(judge.scorer.name, judge.scorer.threshold) for judge in self.judges],
            seconds=time.monotonic() - self.started,
        )
        if table is not None:
            OUTPUT.print(table)
        self._warn()

    def _counted(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            self.unresolved += any(trial.not_accepted for trial in record.trials)
            yield record

    def _warn(self) -> None:
        """Warn of completions that the scorer did not accept."""
        if not self.unresolved:
            return
        if self.method.settings.on_unresolved == "best":
            way = "it is returned nevertheless (--on-unresolved refuse withholds it)"
        else:
            way = "it is withheld"
        prompts = "1 prompt has" if self.unresolved == 1 else f"{self.unresolved} prompts have"
        warning = f"{prompts} a completion that the scorer did not accept; {way}"
        ERRORS.print(warning, style="bold yellow")

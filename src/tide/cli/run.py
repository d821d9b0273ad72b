"""`tide run`: detoxify prompts from the command line or a file."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from tide.cli import options
from tide.cli.display import ERRORS, OUTPUT, completions_table, progress_bar, summary_table
from tide.config import EmptyPolicy
from tide.detoxifier import Detoxifier
from tide.errors import InputError
from tide.inputs import Row, read_rows
from tide.records import RecordFile, to_record
from tide.results import Result
from tide.scorers import Scorer, load_scorer, score_texts

_PACKAGES = ("tide-detox", "torch", "transformers", "numpy", "scikit-learn")


@options.with_settings
def run(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts to complete.")] = None,
    input_file: options.InputFile = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Append records to this .jsonl; '-' prints them. Resumes."
        ),
    ] = None,
    model: options.Model = "pocket",
    scorer: options.Scorer = "pocket",
    judge: options.Judge = None,
    preset: Annotated[
        str, typer.Option(help="Step sizes of a published model, or auto.", show_default=True)
    ] = "auto",
    engine: Annotated[str, typer.Option(help="What runs the model.")] = "transformers",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    max_batch: options.MaxBatch = None,
    limit: options.Limit = None,
    field: options.Field = "prompt",
    overwrite: options.Overwrite = False,
    mask: options.Mask = False,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Complete PROMPTS (or those of --input) with text that the scorer accepts.

    With --output, records are appended as prompts finish, and the same command goes on where a
    killed run stopped. Without it, the completions are shown.
    """
    rows = _rows(prompts, input_file, field, limit)
    judge_scorer = None if judge is None else load_scorer(judge)
    detoxifier = Detoxifier(
        model,
        scorer=scorer,
        engine=engine,
        preset=preset,
        engine_options={"device": device, "dtype": dtype, "max_batch": max_batch},
        **(overrides or {}),
    )
    detoxifier.check([row.text for row in rows])
    started = time.monotonic()
    if output is None or str(output) == "-":
        records = []
        for record in _records(rows, detoxifier, judge_scorer, ordered=True):
            records.append(record)
            if output is not None:
                print(json.dumps(record, ensure_ascii=False), flush=True)
        if output is not None:
            return
        OUTPUT.print(completions_table(records, detoxifier.settings.toxicity_threshold, mask))
    else:
        config = _config(model, engine, detoxifier, judge_scorer)
        with RecordFile(output, config, overwrite=overwrite) as file:
            finished = file.finished({row.id: row.text for row in rows})
            left = [row for row in rows if row.id not in finished]
            if finished:
                ERRORS.print(f"{output}: {len(finished)} records are there, {len(left)} to go")
            for record in _records(left, detoxifier, judge_scorer, ordered=False):
                file.append(record)
            wanted = {row.id for row in rows}
            records = [record for record in file.records if record["id"] in wanted]
    OUTPUT.print(
        summary_table(
            records,
            scorer=(detoxifier.scorer.name, detoxifier.settings.toxicity_threshold),
            judge=None if judge_scorer is None else (judge_scorer.name, judge_scorer.threshold),
            seconds=time.monotonic() - started,
        )
    )


def _rows(
    prompts: list[str] | None, input_file: Path | None, field: str, limit: int | None
) -> list[Row]:
    if input_file is not None:
        if prompts:
            raise InputError("give prompts or --input, not both")
        return read_rows(input_file, field=field, limit=limit)
    if not prompts:
        raise InputError("no prompts; give some, or a file with --input")
    return [Row(number, prompt) for number, prompt in enumerate(prompts[:limit])]


def _records(
    rows: list[Row], detoxifier: Detoxifier, judge: Scorer | None, *, ordered: bool
) -> Any:
    """Records as prompts finish, with a progress bar. `ordered` keeps the order of the rows."""
    with progress_bar() as bar:
        task = bar.add_task("detoxifying", total=len(rows))
        finished = detoxifier.map_numbered([row.text for row in rows], ordered=ordered)
        for number, result in finished:
            record = to_record(rows[number].id, result)
            if judge is not None:
                record.update(_judged(result, judge, detoxifier.settings.empty_policy))
            yield record
            bar.advance(task)


def _judged(result: Result, judge: Scorer, empty_policy: EmptyPolicy) -> dict[str, list[float]]:
    # The judge sees a withheld text too: withholding must not make a method look better.
    after = [trial.returned.text for trial in result.trials]
    before = [trial.base.text for trial in result.trials]
    scores = score_texts(judge, after + before, empty_policy).values.tolist()
    return {"judge_scores": scores[: len(after)], "base_judge_scores": scores[len(after) :]}


def _config(
    model: str, engine: str, detoxifier: Detoxifier, judge: Scorer | None
) -> dict[str, Any]:
    return {
        "model": model,
        "engine": engine,
        "dtype": str(detoxifier.engine.dtype).removeprefix("torch."),
        "scorer": detoxifier.scorer.name,
        "judge": None if judge is None else judge.name,
        "settings": detoxifier.settings.model_dump(),
        "versions": {name: version(name) for name in _PACKAGES},
    }

"""`tide run`: detoxify prompts from the command line or a file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from tide.cli import options
from tide.cli.display import ERRORS, OUTPUT, completions_table, progress_bar, summary_table
from tide.config import EmptyPolicy
from tide.data.prompts import Row, read_rows
from tide.data.records import RecordFile, to_record
from tide.detoxifier import Detoxifier
from tide.errors import InputError, TideError
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
    judges: options.Judges = None,
    preset: options.Preset = "auto",
    engine: options.EngineName = "transformers",
    base_url: options.BaseUrl = None,
    engine_option: options.EngineOption = None,
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
    specs = options.judges(judges)
    if len(specs) > 1:
        raise InputError("--judges: a record of tide run holds one")
    judge_scorer = load_scorer(specs[0]) if specs else None
    engine_options = options.engine_options(
        device=device, dtype=dtype, max_batch=max_batch, base_urls=base_url, further=engine_option
    )
    with Detoxifier(
        model,
        scorer=scorer,
        engine=engine,
        preset=preset,
        engine_options=engine_options,
        **(overrides or {}),
    ) as detoxifier:
        # A bad prompt is worth a stop before hours of work, not after them.
        for row, error in zip(rows, detoxifier.check([row.text for row in rows]), strict=True):
            if error is not None:
                raise InputError(f"id {row.id}: {error}")
        started = time.monotonic()
        job = _Job(rows, detoxifier, judge_scorer)
        if output is None:
            records = _show(job, mask)
        elif str(output) == "-":
            records = _print(job)
        else:
            config = _config(model, engine, engine_options, detoxifier, judge_scorer)
            records = _append(job, output, config, overwrite)
    if records and str(output) != "-":
        table = summary_table(
            records,
            scorer=(detoxifier.scorer.name, detoxifier.settings.toxicity_threshold),
            judge=None if judge_scorer is None else (judge_scorer.name, judge_scorer.threshold),
            seconds=time.monotonic() - started,
        )
        OUTPUT.print(table)
    if job.failed:
        raise TideError(f"{job.failed} of {len(rows)} prompts failed (see above)")


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


@dataclass
class _Job:
    """Rows to detoxify, and how many of them failed."""

    rows: list[Row]
    detoxifier: Detoxifier
    judge: Scorer | None
    failed: int = 0

    def records(self, rows: list[Row], *, ordered: bool) -> Iterator[dict[str, Any]]:
        """Records of `rows` as prompts finish, or in their order, with a progress bar.

        A prompt that fails is told at once and does not stop the others.
        """
        texts = [row.text for row in rows]
        with progress_bar() as bar:
            task = bar.add_task("detoxifying", total=len(rows))
            for number, result in self.detoxifier.map_numbered(texts, ordered=ordered):
                bar.advance(task)
                if isinstance(result, TideError):
                    self.failed += 1
                    ERRORS.print(f"id {rows[number].id}: {result}", style="red", markup=False)
                    continue
                record = to_record(rows[number].id, result)
                if self.judge is not None:
                    policy = self.detoxifier.settings.empty_policy
                    record.update(_judged(result, self.judge, policy))
                yield record


def _show(job: _Job, mask: bool) -> list[dict[str, Any]]:
    """Completions as a table; after an error, those that were finished before it."""
    records: list[dict[str, Any]] = []
    try:
        records.extend(job.records(job.rows, ordered=True))
    finally:
        if records:
            threshold = job.detoxifier.settings.toxicity_threshold
            OUTPUT.print(completions_table(records, threshold, mask))
    return records


def _print(job: _Job) -> list[dict[str, Any]]:
    records = []
    for record in job.records(job.rows, ordered=True):
        print(json.dumps(record, ensure_ascii=False), flush=True)
        records.append(record)
    return records


def _append(
    job: _Job, output: Path, config: dict[str, Any], overwrite: bool
) -> list[dict[str, Any]]:
    """Append the records that are not in the file yet; returns those of all rows."""
    with RecordFile(output, config, overwrite=overwrite) as file:
        finished = file.finished({row.id: row.text for row in job.rows})
        left = [row for row in job.rows if row.id not in finished]
        if finished:
            ERRORS.print(f"{output}: {len(finished)} records are there, {len(left)} to go")
        for record in job.records(left, ordered=False):
            file.append(record)
        wanted = {row.id for row in job.rows}
        return [record for record in file.records if record["id"] in wanted]


def _judged(result: Result, judge: Scorer, empty_policy: EmptyPolicy) -> dict[str, list[float]]:
    # The judge sees a withheld text too: withholding must not make a method look better.
    after = [trial.returned.text for trial in result.trials]
    before = [trial.base.text for trial in result.trials]
    scores = score_texts(judge, after + before, empty_policy).values.tolist()
    return {"judge_scores": scores[: len(after)], "base_judge_scores": scores[len(after) :]}


def _config(
    model: str,
    engine: str,
    engine_options: dict[str, Any],
    detoxifier: Detoxifier,
    judge: Scorer | None,
) -> dict[str, Any]:
    return {
        "model": model,
        **options.engine_config(engine, engine_options, detoxifier.engine.dtype),
        "scorer": detoxifier.scorer.name,
        "judge": None if judge is None else judge.name,
        "settings": detoxifier.settings.model_dump(),
        "versions": {name: version(name) for name in _PACKAGES},
    }

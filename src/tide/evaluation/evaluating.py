"""Runs methods over a benchmark, each into a run folder, and measures their fluency afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tide.config import EmptyPolicy
from tide.data.prompts import Row
from tide.data.records import RecordFile
from tide.errors import TideError
from tide.evaluation import runs
from tide.evaluation.benchmarks import Benchmark
from tide.evaluation.methods import Method, Record
from tide.evaluation.perplexity import Reference
from tide.evaluation.protocols import Protocol
from tide.scorers import Scorer, score_texts

# Prompts whose completions are measured and written at a time.
_PROMPTS = 128


@dataclass(frozen=True)
class Setting:
    """What the methods of one comparison share. config: of model, engine and versions."""

    benchmark: Benchmark
    protocol: Protocol
    scorer: Scorer
    judges: Sequence[Scorer]
    config: dict[str, Any]
    empty_policy: EmptyPolicy = "zero"

    def config_of(self, method: Method) -> dict[str, Any]:
        """Everything that decides the records of `method`."""
        return {
            "format": 1,
            "method": method.name,
            "benchmark": {
                "name": self.benchmark.name,
                "source": self.benchmark.source,
                "prompts": len(self.benchmark.rows),
                "fingerprint": self.benchmark.fingerprint,
            },
            "protocol": asdict(self.protocol),
            "scorer": self.scorer.name,
            "judges": [judge.name for judge in self.judges],
            **method.config,
            **self.config,
        }


def run_method(
    method: Method,
    setting: Setting,
    folder: Path,
    *,
    overwrite: bool = False,
    on_start: Callable[[int], None] = lambda left: None,
) -> Iterator[tuple[Row, TideError | None]]:
    """Append a record of every prompt that `folder` has none of yet.

    Yields each row when its record is on disk, or with the error that left it without one.
    on_start: told how many rows are left. Raises InputError if the folder holds a run of another
    configuration, and what concerns all rows: EngineError, ScorerError, ScorerUnavailable.
    """
    if overwrite:
        for name in (runs.PERPLEXITY, runs.PERPLEXITY_CONFIG, runs.SUMMARY):
            (folder / name).unlink(missing_ok=True)
    rows = setting.benchmark.rows
    with RecordFile(
        folder / runs.RECORDS,
        setting.config_of(method),
        config_path=folder / runs.CONFIG,
        overwrite=overwrite,
    ) as file:
        finished = file.finished({row.id: row.text for row in rows})
        left = [row for row in rows if row.id not in finished]
        on_start(len(left))
        for row, record in method.records(left):
            if isinstance(record, TideError):
                yield row, record
                continue
            if row.group is not None:
                record["group"] = row.group
            _judge(record, setting)
            file.append(record)
            yield row, None


def _judge(record: Record, setting: Setting) -> None:
    """Add the scores of every judge, for the completions and what the search had before them."""
    # A judge sees a withheld text too, so that withholding does not make a method look better.
    returned = record.pop("returned_texts")
    steps = [step for trial in record.get("steps", []) for step in trial]
    texts = [*returned, *(step["text"] for step in steps)]
    record["judge_scores"] = {}
    for judge in setting.judges:
        scores = score_texts(judge, texts, setting.empty_policy).values.tolist()
        record["judge_scores"][judge.name] = scores[: len(returned)]
        for step, score in zip(steps, scores[len(returned) :], strict=True):
            step.setdefault("judge_scores", {})[judge.name] = score


def measure_perplexity(folder: Path, reference: Reference) -> Iterator[int]:
    """Append the fluency of every record of a run that has none yet; yields how many were added.

    Raises InputError if the folder holds that of another reference.
    """
    run = runs.read_run(folder)
    with RecordFile(
        folder / runs.PERPLEXITY,
        {"reference": reference.name},
        config_path=folder / runs.PERPLEXITY_CONFIG,
    ) as file:
        finished = {record["id"] for record in file.records}
        left = [record for record in run.records if record["id"] not in finished]
        for start in range(0, len(left), _PROMPTS):
            some = left[start : start + _PROMPTS]
            pairs = [(record["prompt"], text) for record in some for text in record["completions"]]
            measured = iter(reference.measure(pairs))
            for record in some:
                fluency = [next(measured) for _ in record["completions"]]
                file.append(
                    {
                        "id": record["id"],
                        "nll": [one.nll for one in fluency],
                        "num_tokens": [one.num_tokens for one in fluency],
                    }
                )
            yield len(some)

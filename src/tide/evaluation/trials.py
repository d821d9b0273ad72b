"""All trials of runs as one pandas frame, from which metrics, tables and figures are made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tide.core.text import is_degenerate
from tide.data.records import Record, TrialRecord
from tide.scorers.base import is_nearly_empty

if TYPE_CHECKING:
    from pandas import DataFrame

    from tide.evaluation.runs import Run

# Fields of a trial that are columns as they are.
_NUMBERS = (
    *("iterations", "cosine", "displacement", "num_tokens", "evaluations", "rounds"),
    *("generated_tokens", "forward_tokens", "scorer_calls"),
)
# Flags that a method may lack; the value is then <NA>.
_FLAGS = ("accepted", "refused")
# Largest mean negative log-likelihood whose exponential is a finite float.
_LARGEST_NLL = 695.0


def frame(runs: Run | Sequence[Run]) -> DataFrame:
    """Return one row for each trial of `runs`. A value that a run did not record is missing.

    Columns: `method`, `model`, `benchmark`, `protocol` and `seed` of the run; `id`, `group` and
    `prompt` (of a chat, its messages as JSON); `trial`, `text`, the numbers and flags of the trial
    (`iterations`, `forward_tokens`, `accepted`, ...), `seconds` (an equal share of the prompt's);
    for each scorer NAME `toxicity NAME` and `toxic NAME` (by the run's protocol); and for each
    reference model NAME `perplexity NAME` and `tokens NAME`, the length in its tokens.
    """
    from pandas import DataFrame  # noqa: PLC0415  (slow import)

    listed = runs if isinstance(runs, Sequence) else [runs]
    trials = DataFrame([row for run in listed for row in _rows(run)])
    return trials.astype(dict.fromkeys(_FLAGS, "boolean"))


def score_of(run: Run, trial: TrialRecord, source: str) -> float | None:
    """Return the score of a completion by the run's scorer or by a judge."""
    return trial.toxicity if source == run.scorer else trial.judge_scores.get(source)


def is_toxic(run: Run, score: float) -> bool:
    """Return whether the run's protocol calls a completion with this score toxic."""
    protocol = run.config.get("protocol") or {}
    threshold: float = protocol.get("toxic_threshold", 0.5)
    return score >= threshold if protocol.get("toxic_inclusive", False) else score > threshold


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    of_run = {
        "method": run.name,
        "model": run.config.get("model"),
        "benchmark": (run.config.get("benchmark") or {}).get("name"),
        "protocol": (run.config.get("protocol") or {}).get("name"),
        "seed": run.settings.get("seed"),
    }
    for record, trial in run.trials:
        yield {**of_run, **_of_trial(record, trial), **_of_scorers(run, trial)}


def _of_trial(record: Record, trial: TrialRecord) -> dict[str, Any]:
    seconds = math.nan if record.seconds is None else record.seconds / len(record.trials)
    row: dict[str, Any] = {
        "id": record.id,
        "group": record.group,
        "prompt": record.asked,
        "trial": trial.number,
        "text": trial.text,
        "seconds": seconds,
        "empty": _is_empty(trial),
        "degenerate": is_degenerate(trial.text),
    }
    for name in _FLAGS:
        row[name] = getattr(trial, name)
    for name in _NUMBERS:
        row[name] = _number(getattr(trial, name))
    return row


def _of_scorers(run: Run, trial: TrialRecord) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for source in run.sources:
        score = score_of(run, trial, source)
        row[f"toxicity {source}"] = _number(score)
        row[f"toxic {source}"] = math.nan if score is None else float(is_toxic(run, score))
    for reference in run.references:
        likelihood = trial.perplexity.get(reference)
        nll = None if likelihood is None else likelihood.nll
        perplexity = math.nan if nll is None else math.exp(min(nll, _LARGEST_NLL))
        row[f"perplexity {reference}"] = perplexity
        row[f"tokens {reference}"] = _number(None if likelihood is None else likelihood.num_tokens)
    return row


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _is_empty(trial: TrialRecord) -> bool:
    """Return whether a completion is empty and not withheld; imported records lack `empty`."""
    if trial.empty is None:
        return is_nearly_empty(trial.text) and not trial.refused
    return trial.empty

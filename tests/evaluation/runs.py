"""Runs made up for the tests of the reports: mild texts, scores drawn at random."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tide.data.records import Record, TrialRecord
from tide.evaluation.runs import FORMAT, Run, read_run

JUDGE = "judge@1"
REFERENCE = "larger"


def with_values(record: Record, **values: Any) -> Record:
    """Replaces fields of a record or of its trials; a list has an entry for each trial."""
    old = record.model_dump(mode="json", exclude_defaults=True)
    for name, value in values.items():
        if name in Record.model_fields:
            old[name] = value
            continue
        for place, trial in enumerate(old["trials"]):
            trial[name] = value[place] if isinstance(value, list) else value
    return Record.model_validate(old)


def column(record: Record, name: str) -> list[Any]:
    """A field of all trials."""
    return [getattr(trial, name) for trial in record.trials]


def record(
    number: int, scores: list[float], judged: list[float] | None = None, **more: Any
) -> Record:
    """A record like those of a baseline."""
    both = zip(scores, judged or scores, strict=True)
    trials = [_trial(number, trial, *pair) for trial, pair in enumerate(both)]
    return with_values(Record(id=number, prompt=f"prompt {number}", trials=trials), **more)


def _trial(number: int, trial: int, score: float, judged: float, **more: Any) -> TrialRecord:
    text = f"a kind text of {number} words and {trial} more of {score:.6f}"
    scores = {"toxicity": score, "judge_scores": {JUDGE: judged}}
    return TrialRecord.model_validate({"number": trial, "text": text, **scores, **more})


def likelihoods(
    perplexity: Sequence[float | None], tokens: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """The field `perplexity` of each trial."""
    made = []
    for value, count in zip(perplexity, tokens or [20] * len(perplexity), strict=True):
        nll = None if value is None else float(np.log(value))
        made.append({REFERENCE: {"nll": nll, "num_tokens": count}})
    return made


def measured(
    run: Run,
    perplexity: Sequence[Sequence[float | None]],
    tokens: Sequence[Sequence[int]] | None = None,
) -> Run:
    """`run` with the perplexity of each record's completions."""
    for number, values in enumerate(perplexity):
        counts = tokens[number] if tokens else None
        changed(run, number, perplexity=likelihoods(values, counts))
    run.config["references"] = [REFERENCE]
    return run


def changed(run: Run, number: int, **values: Any) -> Run:
    """Replaces values in one record of `run`."""
    run.records[number] = with_values(run.records[number], **values)
    return run


def config(method: str, **more: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "method": method,
        "benchmark": {"name": "toy", "source": "made up"},
        "protocol": {"name": "tide", "toxic_inclusive": False},
        "model": "pocket",
        "scorer": {"spec": "scorer", "name": "scorer@1"},
        "judges": [{"spec": "judge", "name": JUDGE}],
        "references": [],
        **more,
    }


def run(scores: list[list[float]], method: str = "base", **more: Any) -> Run:
    """A run in memory; scores: by prompt, of each trial."""
    return Run(
        method, config(method, **more), [record(i, values) for i, values in enumerate(scores)]
    )


def _search_trial(number: int, trial: int, generator: np.random.Generator) -> TrialRecord:
    """A trial like those of a search: the toxicity falls with the evaluations."""
    count = int(generator.integers(2, 6))
    scores = sorted(generator.random(count).tolist(), reverse=True)
    return _trial(
        number,
        trial,
        scores[-1],
        scores[-1],
        iterations=2,
        cosine=1.1 - 0.1 * count,
        displacement=0.1 * count - 0.1,
        accepted=scores[-1] < 0.5,
        refused=False,
        empty=False,
        evaluations=count,
        rounds=2,
        generated_tokens=20 * count,
        forward_tokens=30 * count,
        scorer_calls=count,
        num_tokens=20,
        seconds=0.25,
        base_judge_scores={JUDGE: scores[0]},
    )


def search_run(
    method: str, prompts: int = 6, seed: int = 0, trials: int = 2, **settings: Any
) -> Run:
    """seed: of the random numbers; the seed of the run may be in `settings`."""
    generator = np.random.default_rng(seed)
    records = []
    for number in range(prompts):
        made = [_search_trial(number, trial, generator) for trial in range(trials)]
        records.append(Record(id=number, prompt=f"prompt {number}", trials=made))
    perplexity = [generator.uniform(2, 9, trials).tolist() for _ in records]
    settings = {"strategy": "tide", "toxicity_threshold": 0.5, "seed": 0, **settings}
    return measured(Run(method, config(method, settings=settings), records), perplexity)


def write(run: Run, folder: Path, **config: Any) -> Path:
    """Write a run folder as `tide eval` does."""
    folder.mkdir(parents=True)
    created = f"{len(list(folder.parent.parent.rglob('config.json'))):09}"
    whole = {**run.config, "created": created, **config}
    (folder / "config.json").write_text(json.dumps(whole))
    lines = [line for record in run.records for line in record.lines()]
    (folder / "records.jsonl").write_bytes(b"".join(lines))
    assert read_run(folder).records == run.records
    return folder

"""Runs made up for the tests of the reports: mild texts, scores drawn at random."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tide.data.records import Record
from tide.evaluation.runs import FORMAT, Run, read_run

JUDGE = "judge@1"
REFERENCE = "larger"


def from_columns(values: dict[str, Any]) -> Record:
    """A record from lists by field, with an entry per trial; fields that are None are left out."""
    lists = {k: v for k, v in values.items() if k not in Record.model_fields and v is not None}
    trials = [{"number": n, **_entry(lists, n)} for n in range(len(values["text"]))]
    about = {k: v for k, v in values.items() if k in Record.model_fields}
    return Record.model_validate({**about, "trials": trials})


def _entry(lists: dict[str, Any], number: int) -> dict[str, Any]:
    entry = {
        name: _entry(values, number) if isinstance(values, dict) else values[number]
        for name, values in lists.items()
    }
    return {name: value for name, value in entry.items() if value is not None}


def to_columns(record: Record) -> dict[str, Any]:
    """The inverse of `from_columns`."""
    values = json.loads(record.model_dump_json(exclude_defaults=True))
    return {**values, **_lists(values.pop("trials"))}


def _lists(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    lists: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        entries = [row.get(name) for row in rows]
        nested = any(isinstance(entry, dict) for entry in entries)
        lists[name] = _lists([entry or {} for entry in entries]) if nested else entries
    return lists


def column(record: Record, name: str) -> Any:
    """A field of all trials, None where no trial has it."""
    return to_columns(record).get(name)


def record(
    number: int, scores: list[float], judged: list[float] | None = None, **more: Any
) -> Record:
    """A record like those of a baseline."""
    words = [
        f"a kind text of {number} words and {trial} more of {score:.6f}"
        for trial, score in enumerate(scores)
    ]
    values = {
        "id": number,
        "prompt": f"prompt {number}",
        "text": words,
        "toxicity": scores,
        "judge_scores": {JUDGE: scores if judged is None else judged},
    }
    return from_columns({**values, **more})


def likelihoods(
    perplexity: Sequence[float | None], tokens: Sequence[int] | None = None
) -> dict[str, dict[str, Any]]:
    nll = [None if value is None else float(np.log(value)) for value in perplexity]
    return {REFERENCE: {"nll": nll, "num_tokens": list(tokens or [20] * len(nll))}}


def measured(
    run: Run,
    perplexity: Sequence[Sequence[float | None]],
    tokens: Sequence[Sequence[int]] | None = None,
) -> Run:
    """`run` with the perplexity of each record's completions."""
    lengths = tokens or [None] * len(perplexity)
    records = [
        from_columns({**to_columns(row), "perplexity": likelihoods(values, counts)})
        for row, values, counts in zip(run.records, perplexity, lengths, strict=True)
    ]
    return Run(run.name, {**run.config, "references": [REFERENCE]}, records, run.path)


def changed(run: Run, number: int, **update: Any) -> Run:
    """Replaces lists in one record of `run`."""
    run.records[number] = from_columns({**to_columns(run.records[number]), **update})
    return run


def config(method: str, **more: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "method": method,
        "benchmark": {"name": "toy", "source": "made up", "prompts": 0},
        "protocol": {"name": "tide", "toxic_threshold": 0.5, "toxic_inclusive": False},
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


def search_record(number: int, generator: np.random.Generator, trials: int = 2) -> Record:
    """A record like those of a search: the toxicity falls with the evaluations."""
    traces, steps = [], []
    for _ in range(trials):
        count = int(generator.integers(2, 6))
        scores = sorted(generator.random(count).tolist(), reverse=True)
        roles = ["initial", *["perturbation"] * (count - 2), "iterate"]
        rows = enumerate(zip(roles, scores, strict=True), 1)
        traces.append(
            [(n, 1, role, score, 1.1 - 0.1 * n, 0.1 * n - 0.1) for n, (role, score) in rows]
        )
        counted = enumerate(scores, 1)
        steps.append([{"evaluations": n, "text": "", "toxicity": score} for n, score in counted])
    last = [trace[-1][3] for trace in traces]
    return record(
        number,
        last,
        iterations=[2] * trials,
        cosine=[trace[-1][4] for trace in traces],
        displacement=[trace[-1][5] for trace in traces],
        accepted=[score < 0.5 for score in last],
        refused=[False] * trials,
        empty=[False] * trials,
        evaluations=[len(trace) for trace in traces],
        rounds=[2] * trials,
        generated_tokens=[20 * len(trace) for trace in traces],
        forward_tokens=[30 * len(trace) for trace in traces],
        scorer_calls=[len(trace) for trace in traces],
        num_tokens=[20] * trials,
        seconds=[0.25] * trials,
        trace=traces,
        steps=steps,
        step_judge_scores={JUDGE: [[step["toxicity"] for step in of_trial] for of_trial in steps]},
    )


def search_run(
    method: str, prompts: int = 6, seed: int = 0, trials: int = 2, **settings: Any
) -> Run:
    """seed: of the random numbers; the seed of the run may be in `settings`."""
    generator = np.random.default_rng(seed)
    records = [search_record(number, generator, trials) for number in range(prompts)]
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

"""Run folders made up for the tests of the reports: mild texts, scores drawn at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tide.evaluation.runs import Run, read_run

JUDGE = "judge@1"


def record(
    number: int, scores: list[float], judged: list[float] | None = None, **more: Any
) -> dict[str, Any]:
    """A record as a baseline writes it."""
    words = [f"a kind text of {number} words and {trial} more" for trial in range(len(scores))]
    return {
        "id": number,
        "prompt": f"prompt {number}",
        "completions": words,
        "toxicity_scores": scores,
        "judge_scores": {JUDGE: scores if judged is None else judged},
        **more,
    }


def config(method: str, **more: Any) -> dict[str, Any]:
    return {
        "method": method,
        "benchmark": {"name": "toy", "source": "made up", "prompts": 0},
        "protocol": {"name": "tide", "toxic_threshold": 0.5, "toxic_inclusive": False},
        "model": "pocket",
        "scorer": "scorer@1",
        "judges": [JUDGE],
        "seed": 0,
        **more,
    }


def run(scores: list[list[float]], method: str = "base", **more: Any) -> Run:
    """A run in memory; scores: by prompt, of each trial."""
    return Run(method, config(method, **more), [record(i, some) for i, some in enumerate(scores)])


def search_record(number: int, generator: np.random.Generator, trials: int = 2) -> dict[str, Any]:
    """A record as a search writes it: the toxicity falls with the evaluations."""
    traces, steps = [], []
    for _ in range(trials):
        count = int(generator.integers(2, 6))
        scores = sorted(generator.random(count).tolist(), reverse=True)
        roles = ["initial", *["perturbation"] * (count - 2), "iterate"]
        rows = zip(roles, scores, strict=True)
        traces.append(
            [[1 + n, 1, role, score, 1 - 0.1 * n, 0.1 * n] for n, (role, score) in enumerate(rows)]
        )
        steps.append(
            [
                {"evaluations": n, "text": "", "toxicity": score, "judge_scores": {JUDGE: score}}
                for n, score in enumerate(scores, start=1)
            ]
        )
    last = [trace[-1][3] for trace in traces]
    return record(
        number,
        last,
        num_iter_steps=[2] * trials,
        cosine_sims=[trace[-1][4] for trace in traces],
        displacements=[trace[-1][5] for trace in traces],
        accepted=[score < 0.5 for score in last],
        refused=[False] * trials,
        empty=[False] * trials,
        evaluations=[len(trace) for trace in traces],
        rounds=[2] * trials,
        generated_tokens=[20 * len(trace) for trace in traces],
        forward_tokens=[30 * len(trace) for trace in traces],
        scorer_calls=[len(trace) for trace in traces],
        num_tokens=[20] * trials,
        seconds=0.5,
        traces=traces,
        steps=steps,
    )


def search_run(method: str, prompts: int = 6, seed: int = 0, **settings: Any) -> Run:
    generator = np.random.default_rng(seed)
    records = [search_record(number, generator) for number in range(prompts)]
    perplexity = {r["id"]: generator.uniform(2, 9, 2).tolist() for r in records}
    settings = {"strategy": "tide", "toxicity_threshold": 0.5, "seed": 0, **settings}
    return Run(method, config(method, settings=settings), records, perplexity)


def write(run: Run, folder: Path, **config: Any) -> Path:
    """Write a run folder as `tide eval` does."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(run.config | config))
    (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in run.records))
    lines = []
    for row_id, values in run.perplexity.items():
        line = {
            "id": row_id,
            "nll": [None if value is None else float(np.log(value)) for value in values],
            "num_tokens": run.reference_tokens.get(row_id, [20] * len(values)),
        }
        lines.append(json.dumps(line) + "\n")
    if lines:
        (folder / "perplexity.jsonl").write_text("".join(lines))
        (folder / "perplexity.config.json").write_text('{"reference": "larger"}')
    assert read_run(folder).records == run.records
    return folder

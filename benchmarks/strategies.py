"""Compare search strategies and controls: what each costs, and what becomes of the text.

    python benchmarks/strategies.py [--limit 400] [--trials 3] [--only A,B] [--add 'NAME:K=V,...']

Runs every configuration on the bundled model and the first prompts of RealToxicityPrompts-
challenging. The search optimises against the pocket scorer; `profanity-check` judges; perplexity is
that of the completion after its prompt under the larger pocket reference model. Prints a table,
writes `benchmarks/results/strategies.json` row by row; rows that are there are not run again.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tide import Detoxifier, Result, load_scorer
from tide.data.prompts import read_rows
from tide.engines.local.engine import TransformersEngine
from tide.evaluation.perplexity import Reference
from tide.presets import PRESETS
from tide.scorers import Scorer
from tide.specs import parse_spec

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"
RESULTS = REPOSITORY / "benchmarks" / "results"
CURVE_EVALUATIONS = 40
console = Console()

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "tide": {},
    "tide crn": {"strategy": "tide:common_random_numbers=true"},
    "tide antithetic": {"strategy": "tide:antithetic=true"},
    "tide rank": {"strategy": "tide:estimator=rank"},
    "tide N 4": {"num_samples": 4},
    "tide N 32 mu .6 step .3": {"num_samples": 32, "mu_relative": 0.6, "step_relative": 0.3},
    "tide floor 12": {"max_perplexity": 12.0},
    "shuffled": {"strategy": "shuffled"},
    "random-walk": {"strategy": "random-walk"},
    "random-walk floor 12": {"strategy": "random-walk", "max_perplexity": 12.0},
    "accept-any N 8": {"strategy": "accept-any"},
    "accept-any N 4 mu .8": {"strategy": "accept-any", "num_samples": 4, "mu_relative": 0.8},
    "accept-any N 2 mu .8 floor": {
        "strategy": "accept-any",
        "num_samples": 2,
        "mu_relative": 0.8,
        "max_perplexity": 12.0,
    },
    "ladder N 4": {"strategy": "ladder", "num_samples": 4, "mu_relative": 1.3},
    "fast": PRESETS["fast"],
    "fast no floor": {**PRESETS["fast"], "max_perplexity": None},
    "fast floor 6": {**PRESETS["fast"], "max_perplexity": 6.0},
    "fast bar stays": {**PRESETS["fast"], "perplexity_growth": 1.0},
    "fast N stays": {**PRESETS["fast"], "strategy": "ladder:from=0.6,growth=1.3"},
    "fast N 4": {**PRESETS["fast"], "num_samples": 4},
    "fast nearest": {**PRESETS["fast"], "select": "nearest"},
    "resample T .1": {"strategy": "resample"},
    "resample T .7": {"strategy": "resample", "temperature": 0.7},
    "resample T 1": {"strategy": "resample", "temperature": 1.0},
}


def perplexities(results: list[Result], reference: Reference) -> np.ndarray:
    """Of each returned completion after its prompt; NaN for one without tokens."""
    pairs = [(result.prompt, trial.text) for result in results for trial in result.trials]
    measured = reference.measure(pairs)
    return np.exp([np.nan if one.nll is None else one.nll for one in measured])


def anytime(results: list[Result], judge: Scorer, threshold: float) -> list[float]:
    """Judge's toxic rate of what would be returned after 1, 2, ... evaluations of each trial."""
    trials = [trial for result in results for trial in result.trials]
    texts = sorted({e.text for trial in trials for e in trial.trace[:CURVE_EVALUATIONS]})
    judged = dict(zip(texts, judge.score(texts), strict=True))
    toxic = np.zeros(CURVE_EVALUATIONS)
    for trial in trials:
        for spent in range(1, CURVE_EVALUATIONS + 1):
            if trial.accepted and spent > trial.chosen:
                shown = trial.returned
            else:
                shown = min(trial.trace[:spent], key=lambda e: e.toxicity)
            toxic[spent - 1] += judged[shown.text] >= threshold
    return [float(value) for value in toxic / len(trials)]


def measure(
    name: str,
    overrides: dict[str, Any],
    prompts: list[str],
    engine: TransformersEngine,
    reference: Reference,
    judge: Scorer,
) -> dict[str, Any]:
    detoxifier = Detoxifier(engine, preset="relative", **overrides)
    started = time.perf_counter()
    results = list(detoxifier.map(prompts))
    seconds = time.perf_counter() - started
    trials = [trial for result in results for trial in result.trials]
    judged = judge.score([trial.text for trial in trials])
    perplexity = perplexities(results, reference)
    moved = [trial.returned.displacement for trial in trials if trial.chosen != 0]
    return {
        "name": name,
        "settings": overrides,
        "prompts": len(prompts),
        "trials": len(trials),
        "evaluations": float(np.mean([trial.evaluations for trial in trials])),
        "rounds": float(np.mean([trial.rounds for trial in trials])),
        "iterations": float(np.mean([trial.iterations for trial in trials])),
        "likelihood_calls": float(np.mean([trial.likelihood_calls for trial in trials])),
        "unresolved": float(np.mean([not trial.accepted for trial in trials])),
        "empty": float(np.mean([trial.returned.empty for trial in trials])),
        "judge_toxic": float(np.mean(judged >= judge.threshold)),
        "judge_before": float(
            np.mean(judge.score([trial.base.text for trial in trials]) >= judge.threshold)
        ),
        "perplexity_median": float(np.nanmedian(perplexity)),
        "perplexity_mean": float(np.nanmean(perplexity)),
        "displacement": float(np.mean(moved)) if moved else 0.0,
        "milliseconds_per_prompt": 1000 * seconds / len(trials),
        "curve": anytime(results, judge, judge.threshold),
    }


def show(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 0))
    table.add_column("", no_wrap=True)
    for column in ("eval.", "rounds", "unres.", "empty", "judge", "ppl", "mean", "moved"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        keys = ("evaluations", "rounds", "unresolved", "empty", "judge_toxic",
                "perplexity_median", "perplexity_mean", "displacement")  # fmt: skip
        digits = (2, 2, 3, 3, 3, 2, 2, 2)
        values = [f"{row[key]:.{d}f}" for key, d in zip(keys, digits, strict=True)]
        table.add_row(row["name"], *values)
    return table


def main(
    limit: int = 400,
    trials: int = 3,
    only: Annotated[str, typer.Option(help="Names, comma-separated.")] = "",
    add: Annotated[list[str] | None, typer.Option(help="NAME:KEY=VALUE,...")] = None,
    data: Path = SHARED / "data" / "benchmarks" / "rtp_challenging.jsonl",
    out: Path = RESULTS / "strategies.json",
) -> None:
    chosen = {
        name: overrides
        for name, overrides in CONFIGURATIONS.items()
        if not only or name in only.split(",")
    }
    chosen.update({spec: parse_spec(spec)[1] for spec in add or []})
    prompts = [row.text for row in read_rows(data, limit=limit)]
    engine, reference = TransformersEngine(), Reference("pocket-reference")
    judge = load_scorer("profanity-check")
    header = {"torch": torch.__version__, "limit": limit}
    done = json.loads(out.read_text()) if out.exists() else {}
    if {key: done.get(key) for key in header} != header:
        done = {"rows": []}
    rows = [
        row for row in done["rows"] if row["name"] not in chosen or _is_same(row, chosen, trials)
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for name, overrides in bar.track(chosen.items(), description="strategies"):
            if any(row["name"] == name for row in rows):
                continue
            settings = {"num_trials": trials, **overrides}
            rows.append(measure(name, settings, prompts, engine, reference, judge))
            out.write_text(json.dumps({**header, "rows": rows}, indent=1) + "\n")
    order = [*CONFIGURATIONS, *(row["name"] for row in rows)]
    console.print(show(sorted(rows, key=lambda row: order.index(row["name"]))))


def _is_same(row: dict[str, Any], chosen: dict[str, dict[str, Any]], trials: int) -> bool:
    settings = {"num_trials": trials, **chosen[row["name"]]}
    return bool(row["settings"] == settings)


if __name__ == "__main__":
    typer.run(main)

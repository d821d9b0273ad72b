"""Choose mu, N and eta for a model as the paper does: by a grid, on the most toxic prompts.

    python reproduction/select_settings.py smollm2 --choose-on rtp:1-150 --report-on rtp:601-700

The paper tries every combination at temperature 0, on about 100 prompts whose completions by the
model itself have a mean toxicity above 0.9, and scales its grid by E_bar / sqrt(d): the mean norm
of the model's embedding rows over the square root of their width. GPT-2 Large's published values
are on the unscaled grid, so the factor here is relative to that of GPT-2 Large. The winner has the
lowest mean toxicity by the search's scorer, among the settings that leave at most a tenth of the
completions nearly empty: an empty completion is never toxic. (The paper names no such rule.) It is
reported at the temperature of the protocol, as `base` and the default are. Runs
are kept in --out, and the same command resumes.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tide import evaluate, load_engine
from tide.evaluation import Run
from tide.evaluation.benchmarks import load_benchmark

MU = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5)
NUM_SAMPLES = (4, 8, 16)
STEP_SIZE = (0.05, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5)
# E_bar / sqrt(d) of GPT-2 Large; E_bar is that of its prompts, by the published runs.
GPT2_LARGE = 1.46 / math.sqrt(1280)
MOST_EMPTY = 0.1


def mean_toxicity(run: Run) -> float:
    return fmean(trial.toxicity for _, trial in run.trials)


def empty_share(run: Run) -> float:
    return fmean(bool(trial.empty) for _, trial in run.trials)


def main(
    model: str,
    choose_on: Annotated[str, typer.Option(help="Prompts that choose.")] = "rtp:1-600",
    report_on: Annotated[str, typer.Option(help="Other prompts, to report on.")] = "rtp:601-1199",
    worst: Annotated[int, typer.Option(help="Choose on the N most toxic prompts.")] = 100,
    num_samples: Annotated[int | None, typer.Option(help="Try only this N.")] = None,
    judges: Annotated[str, typer.Option(help="Judges of the report.")] = "profanity-check,lexicon",
    out: Path = Path("runs/selection"),
) -> None:
    engine = load_engine("transformers", model)
    factor = float(engine.mean_row_norm) / math.sqrt(engine.dim) / GPT2_LARGE  # type: ignore[attr-defined]
    common = {"model": engine, "reference": "none", "num_trials": 1, "temperature": 0.0}
    (base,) = evaluate(choose_on, "base", out=out / "base", **common)  # type: ignore[arg-type]
    by_toxicity = sorted(base.trials, key=lambda pair: pair[1].toxicity, reverse=True)
    chosen_ids = {record.id for record, _ in by_toxicity[:worst]}
    prompts = [row.text for row in load_benchmark(choose_on).rows if row.id in chosen_ids]

    counts = NUM_SAMPLES if num_samples is None else (num_samples,)
    methods = [
        f"tide:mu={mu * factor:.4g},num_samples={count},step_size={eta * factor:.4g}"
        for mu, count, eta in itertools.product(MU, counts, STEP_SIZE)
    ]
    runs = evaluate(prompts, methods, out=out / "tries", **common)  # type: ignore[arg-type]
    tries = list(zip(methods, runs, strict=True))
    tries.sort(key=lambda pair: (empty_share(pair[1]) > MOST_EMPTY, mean_toxicity(pair[1])))
    table = Table("setting", "mean toxicity", "empty")
    for method, run in tries[:10]:
        table.add_row(method, f"{mean_toxicity(run):.3f}", f"{empty_share(run):.3f}")
    console = Console()
    console.print(table)

    # The name of the run would keep the temperature 0 of the choice.
    winner, _ = tries[0]
    evaluate(
        report_on,
        ["base", "tide", winner],
        model=engine,
        judges=judges.split(","),
        reference="none",
        out=out / "report",
    )
    engine.close()
    console.print(f"chosen: {winner}; tide report {out / 'report'} compares it with the default")


if __name__ == "__main__":
    typer.run(main)

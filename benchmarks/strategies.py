"""Compare search strategies and controls: cost, toxicity and fluency.

    python benchmarks/strategies.py [--limit 400] [--trials 3] [--only A,B] [--add SPEC]

Runs every configuration on the bundled model and the first prompts of RealToxicityPrompts-
challenging. Each has a run folder in `benchmarks/results/strategies`; existing runs are reused, and
`tide report` can read them. The search optimises against the pocket scorer; `profanity-check`
judges; perplexity is that of the completion after its prompt under the larger pocket reference
model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box, print
from rich.table import Table

from tide.evaluation import Bars, Run, evaluate

RESULTS = Path(__file__).resolve().parent / "results"
JUDGE, REFERENCE = "profanity-check", "pocket-reference"
# Name in the tables, and the method.
CONFIGURATIONS = {
    "tide": "tide",
    "tide crn": "tide:common_random_numbers=true",
    "tide antithetic": "tide:antithetic=true",
    "tide rank": "tide:estimator=rank",
    "tide N 4": "tide:num_samples=4",
    "tide N 32 mu .6 step .3": "tide:num_samples=32,mu_relative=0.6,step_relative=0.3",
    "tide floor 12": "tide:max_perplexity=12",
    "shuffled": "shuffled",
    "random-walk": "random-walk",
    "random-walk floor 12": "random-walk:max_perplexity=12",
    "resample T .1": "resample",
    "resample T .7": "resample:temperature=0.7",
    "resample T 1": "resample:temperature=1",
}


def means(run: Run) -> dict[str, float]:
    """Return averages over the completions of all trials of a run."""
    judge, trials = run.sources[-1], [one for record in run.records for one in record.trials]

    def all_of(field: str) -> np.ndarray:
        return np.array([x for one in trials if (x := getattr(one, field)) is not None])

    judged = np.array([one.judge_scores[judge] for one in trials])
    measured = [one.perplexity[REFERENCE] for one in trials]
    nll = [one.nll for one in measured if one.nll is not None]
    of_20 = [one.nll for one in measured if one.nll is not None and one.num_tokens == 20]
    moved = all_of("displacement")[all_of("displacement") > 0]
    return {
        "eval.": all_of("evaluations").mean(),
        "rounds": all_of("rounds").mean(),
        "unres.": 1 - all_of("accepted").mean() if all_of("accepted").size else np.nan,
        "empty": all_of("empty").mean(),
        "judge": (judged >= 0.5).mean(),
        "toxicity": judged.mean(),
        "ppl": float(np.median(np.exp(nll))),
        "of 20": np.exp(of_20).mean(),
        "mean": np.exp(nll).mean(),
        "moved": moved.mean() if moved.size else 0.0,
        "tokens": all_of("forward_tokens").mean(),
        "ms": 1000 * sum(record.seconds or 0 for record in run.records) / len(judged),
    }


def main(
    limit: int = 400,
    trials: int = 3,
    only: Annotated[str, typer.Option(help="Names, comma-separated.")] = "",
    add: Annotated[list[str] | None, typer.Option(help="NAME:KEY=VALUE,...")] = None,
    data: str = "rtp",
    out: Path = RESULTS / "strategies",
) -> None:
    chosen = {k: v for k, v in CONFIGURATIONS.items() if not only or k in only.split(",")}
    chosen |= {spec: spec for spec in add or []}
    runs = evaluate(
        data,
        list(chosen.values()),
        judges=JUDGE,
        reference=REFERENCE,
        limit=limit,
        num_trials=trials,
        out=out,
        progress=Bars(),
    )
    digits = {"eval.": 2, "rounds": 2, "unres.": 3, "empty": 3, "judge": 3}
    digits |= {"ppl": 2, "of 20": 2, "mean": 2, "moved": 2}
    table = Table("", *digits, box=box.SIMPLE, padding=(0, 0))
    for name, run in zip(chosen, runs, strict=True):
        found = means(run)
        table.add_row(name, *(f"{found[key]:.{places}f}" for key, places in digits.items()))
    print(table)


if __name__ == "__main__":
    typer.run(main)

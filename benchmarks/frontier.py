"""Settings of `fast` with a margin, looked for on prompts 1 to 600, to be reported on 601 to 1199.

    python benchmarks/frontier.py [--trials 60] [--budget 3.0]

Optuna tries thresholds, radii, numbers of samples, floors and rows to move. It minimises the
evaluations, and what a setting misses of: judges' rates of 0.022, 0.002 unresolved, and moved
completions of median perplexity 4.3 and a 95th percentile of 17. With `--budget`, it minimises the
judges' rates and the perplexity instead, within so many evaluations. Trials are kept in
`benchmarks/results/frontier.db`, and further ones go on from there. Prints the best ones, as specs
for `python benchmarks/margin.py --only "" --add SPEC`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import optuna
import typer
from rich import print

from tide.evaluation import evaluate
from tide.evaluation.benchmarks import load_benchmark
from tide.evaluation.metrics import Summary, summarize

RESULTS = Path(__file__).resolve().parent / "results"
JUDGES = ["profanity-check", "lexicon"]
SHOWN = 8
_FAST = {"perturb": "content", "mu_relative": 1.3, "toxicity_threshold": 0.2}
# Where to begin: the preset `margin`, and one completion at a time.
KNOWN = (
    {
        **_FAST,
        **{"max_perplexity": 12, "perplexity_growth": 2.0, "num_samples": 2},
        **{"samples_growth": 1.5, "from": 0.6, "to": 1.0, "growth": 1.3},
    },
    {
        **_FAST,
        **{"max_perplexity": 10, "perplexity_growth": 1.2, "num_samples": 1},
        **{"samples_growth": 1.0, "from": 0.6, "to": 0.6, "growth": 1.2},
    },
)


def spec_of(trial: optuna.Trial) -> str:
    choices = {
        "toxicity_threshold": trial.suggest_float("toxicity_threshold", 0.1, 0.3, step=0.02),
        "max_perplexity": trial.suggest_categorical("max_perplexity", [5, 6, 8, 10, 12, 16]),
        "perplexity_growth": trial.suggest_categorical("perplexity_growth", [1.0, 1.2, 1.5, 2.0]),
        "num_samples": trial.suggest_int("num_samples", 1, 3),
        "samples_growth": trial.suggest_categorical("samples_growth", [1.0, 1.5, 2.0]),
        "mu_relative": trial.suggest_float("mu_relative", 0.8, 1.8, step=0.1),
        "from": trial.suggest_float("from", 0.3, 0.6, step=0.1),
        "to": trial.suggest_float("to", 0.4, 1.0, step=0.1),
        "growth": trial.suggest_float("growth", 1.0, 1.6, step=0.1),
        "perturb": trial.suggest_categorical(
            "perturb", ["content", "last:3", "last:5", "last:8", "last:12"]
        ),
    }
    return "fast:" + ",".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in choices.items()
    )


def measures(found: Summary) -> dict[str, float]:
    fluency = found.fluency["pocket-reference"]
    rates = {name.partition("@")[0]: one["rate"].value for name, one in found.toxicity.items()}
    return {
        "evaluations": found.averages["evaluations"].value,
        "unresolved": found.averages["unresolved"].value,
        **{judge: rates[judge] for judge in JUDGES},
        "median": fluency.moved_median or 0.0,
        "p95": fluency.moved_p95 or 0.0,
    }


def missed(found: dict[str, float], rate: float) -> float:
    """How far the texts are from what is wanted, in evaluations."""
    return (
        100 * sum(max(0.0, found[judge] - rate) for judge in JUDGES)
        + 100 * max(0.0, found["unresolved"] - 0.002)
        + max(0.0, found["median"] - 4.3)
        + 0.1 * max(0.0, found["p95"] - 17)
    )


def main(
    trials: int = 60,
    budget: Annotated[float, typer.Option(help="Most evaluations; 0: as few as possible.")] = 0.0,
    first: int = 1,
    last: int = 600,
    seed: int = 0,
) -> None:
    prompts = [row.text for row in load_benchmark("rtp").rows[first - 1 : last]]

    def objective(trial: optuna.Trial) -> float:
        with tempfile.TemporaryDirectory() as folder:
            (run,) = evaluate(
                prompts,
                [spec := spec_of(trial)],
                judges=JUDGES,
                reference="pocket-reference",
                num_trials=1,
                out=folder,
            )
        found = measures(summarize(run))
        trial.set_user_attr("spec", spec)
        trial.set_user_attr("found", found)
        spent = found["evaluations"]
        return (
            20 * max(0.0, spent - budget) + missed(found, 0.0)
            if budget
            else spent + missed(found, 0.022)
        )

    RESULTS.mkdir(exist_ok=True)
    study = optuna.create_study(
        study_name=f"{first}-{last}-{budget:g}-radii",
        storage=f"sqlite:///{RESULTS / 'frontier.db'}",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=seed),
    )
    for known in KNOWN:
        study.enqueue_trial(known, skip_if_exists=True)
    study.optimize(objective, n_trials=trials)
    done = [trial for trial in study.trials if trial.value is not None]
    for trial in sorted(done, key=lambda trial: trial.value or 0.0)[:SHOWN]:
        found = {name: round(value, 3) for name, value in trial.user_attrs["found"].items()}
        print(f"{trial.value:.3f}", trial.user_attrs["spec"], found)


if __name__ == "__main__":
    typer.run(main)

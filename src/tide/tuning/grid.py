"""The paper's selection of mu, N and eta: a grid, on the prompts that are hardest for the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from tide.core.errors import InputError
from tide.core.results import format_score
from tide.evaluation import Benchmark
from tide.evaluation.metrics import summarize
from tide.tuning.bench import Bench, TuningTrial, with_values
from tide.tuning.published import GRID, GRID_SCALE

# Fewer prompts decide nothing; the paper had about 100.
_FEW = 20
# Who says nothing says nothing toxic: settings that leave more empty completions are passed over.
_SILENT = 0.1
# A scale that is given, absolute or relative, is not looked for.
_GIVEN = {"mu": {"mu", "mu_relative"}, "step_size": {"step_size", "step_relative"}}


def by_grid(
    bench: Bench, prompts: Benchmark, worst: int, above: float | None, scale: str
) -> list[TuningTrial]:
    """Every combination of the grid, the winner first.

    The prompts are the `worst` ones of `prompts` by the mean toxicity of the model's own
    completions under the protocol, or all of more than `above`. Decoding is greedy, with one
    completion a prompt. The winner has the lowest mean toxicity, by the search's scorer, of those
    settings that leave at most a tenth of the completions empty (where there are any such); of
    equal ones, the fewest iterations, and then evaluations.
    """
    grid = {
        name: values
        for name, values in GRID.items()
        if not bench.overrides.keys() & _GIVEN.get(name, {name})
    }
    if not grid:
        raise InputError("nothing is left to tune: mu, num_samples and step_size are all given")
    factor = _factor(bench, scale)
    hard = _hard(bench, prompts, worst, above)
    tried = []
    total = math.prod(map(len, grid.values()))
    greedy = {"temperature": 0.0, "num_trials": 1}
    for number, combination in enumerate(itertools.product(*grid.values()), start=1):
        values = {
            name: value if name == "num_samples" else float(f"{value * factor:.4g}")
            for name, value in zip(grid, combination, strict=True)
        }
        method = with_values(bench.usual, values)
        (run,) = bench.runs(
            hard, [method], "tries", judged=False, counted=(number, total), **greedy
        )
        found = summarize(run)
        measures = {
            "toxicity": found.toxicity[run.scorer]["mean"].value,
            "iterations": found.averages["iterations"].value,
            "evaluations": found.averages["evaluations"].value,
            "empty": found.averages["empty"].value,
        }
        tried.append(TuningTrial(method, values, measures))
    return ranked(tried)


def ranked(tried: Sequence[TuningTrial]) -> list[TuningTrial]:
    """The settings in the order that `by_grid` says."""
    return sorted(tried, key=lambda one: (one.measures["empty"] > _SILENT, *one.measures.values()))


def _hard(bench: Bench, prompts: Benchmark, worst: int, above: float | None) -> Benchmark:
    (base,) = bench.runs(prompts, ["base"], "base", judged=False)
    means = {record.id: record.avg_toxicity for record in base.records}
    if above is None:
        chosen = sorted(prompts.rows, key=lambda row: means[row.id], reverse=True)[:worst]
        ids = {row.id for row in chosen}
        least, most = means[chosen[-1].id], means[chosen[0].id]
        bench.progress.say(
            f"tuning on the {len(ids)} of {len(means)} prompts that the model completes worst: "
            f"mean toxicity {least:.2f} to {most:.2f} (--worst)"
        )
        return replace(prompts, rows=[row for row in prompts.rows if row.id in ids])
    rows = [row for row in prompts.rows if means[row.id] > above]
    if not rows:
        raise InputError(
            f"--above {above:g}: no prompt of {len(means)} has such a mean toxicity, the largest "
            f"is {format_score(max(means.values()), True)}; {_instead(list(means.values()))}"
        )
    bench.progress.say(f"{len(rows)} of {len(means)} prompts have a mean toxicity above {above:g}")
    if len(rows) < _FEW:
        bench.progress.say(f"these are few to choose by; {_instead(list(means.values()))}")
    return replace(prompts, rows=rows)


def _instead(means: Sequence[float]) -> str:
    lower = next((t for t in (0.8, 0.7, 0.6) if sum(m > t for m in means) >= _FEW), 0.5)
    return f"above {lower:g} there are {sum(mean > lower for mean in means)} (--above {lower:g})"


def _factor(bench: Bench, scale: str) -> float:
    """What the grid of the scales is multiplied by."""
    if scale not in ("ratio", "literal"):
        try:
            factor = float(scale)
        except ValueError:
            factor = math.nan
        if not 1e-6 <= factor <= 1e6:
            raise InputError(f"--grid-scale: expected ratio, literal, or a number (got {scale!r})")
        return factor
    norm = getattr(bench.engine.engine, "mean_row_norm", None)
    if norm is None:
        raise InputError("--grid-scale: this engine does not know its embeddings: give a number")
    own = float(norm) / math.sqrt(bench.engine.dim)
    return own / GRID_SCALE if scale == "ratio" else own

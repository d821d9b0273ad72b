"""Tests whether one method writes less toxic text than another, or takes fewer iterations.

The tests are paired over the prompts of two runs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

import numpy as np

from tide.core.errors import InputError
from tide.data.records import RecordId, all_or_none
from tide.evaluation.metrics import (
    Estimate,
    Ratios,
    Valid,
    bootstrapped,
    check_records,
    is_toxic,
    kept_trials,
    scores_of,
    wilson,
)
from tide.evaluation.runs import Run, is_base

MEASURES: dict[str, Callable[[Sequence[float]], float]] = {"max": max, "mean": fmean}
# Used in place of a source of scores to compare the iterations of searches (the paper's K).
ITERATIONS = "iterations"


@dataclass(frozen=True)
class Comparison:
    """One-sided Wilcoxon signed-rank test of "`method` is less toxic than `against`".

    source: source of the scores, or "iterations" to test that `method` takes fewer iterations.
    measure: the `max` or `mean` score of a prompt's completions. pairs: prompts in both runs.
    unequal: pairs whose two values differ; the test leaves out ties. difference: mean over all
    pairs of method minus against; None without pairs. p_value: 1.0 if no pair differs. p_holm:
    p-value corrected for all comparisons of the call.
    rate: difference of the toxic rates (shares of prompts with a toxic completion), method minus
    against, with its 95 % interval over pairs (`_difference`); None for iterations. If the upper
    end of the interval is below a margin that was chosen beforehand, the method is non-inferior
    (one-sided, at 2.5 %).
    """

    source: str
    measure: str
    method: str
    against: str
    pairs: int
    unequal: int
    difference: float | None
    p_value: float
    p_holm: float
    rate: Estimate | None


def compare(
    runs: Sequence[Run], against: str | None = None, *, valid: Valid | None = None, seed: int = 0
) -> list[Comparison]:
    """Compare every run with the run named `against`, by every common source and by iterations.

    against: by default `base`, or the first run if `base` is missing. Prompts are paired by id, and
    only if their texts are equal. Runs of one name are seeds of one configuration: a prompt's value
    is the mean over the seeds. Holm's correction covers all comparisons returned.
    seed: bootstrap seed.

    Raises InputError if no run is named `against`, or if a record cannot be used.
    """
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        check_records(run)
        by_name.setdefault(run.name, []).append(run)
    name_of_other = resolve_against([*by_name], against)
    if name_of_other is None:
        raise InputError(f"no run of method {against!r} to compare with; there are {[*by_name]}")
    other = by_name[name_of_other]
    # With one completion per prompt, maximum and mean are equal, so one test is enough.
    single = all(len(record.trials) == 1 for run in runs for record in run.records)
    measures = ["mean"] if single else list(MEASURES)
    found: list[Comparison] = []
    others = {name: some for name, some in by_name.items() if name != name_of_other}
    for source in other[0].sources:
        of_methods = [
            _compare(some, other, source, measures, valid, seed)
            for some in others.values()
            if source in some[0].sources
        ]
        found += chain.from_iterable(zip(*of_methods, strict=True))
    for some in others.values():
        (steps,) = _compare(some, other, ITERATIONS, ["mean"], valid, seed)
        found += [steps] if steps.pairs else []
    corrected = holm([one.p_value for one in found])
    return [replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True)]


def resolve_against(names: Sequence[str], against: str | None) -> str | None:
    """Return the name that `against` selects, or None; `tide` also selects `tide (3 seeds)`."""
    wanted = "base" if against is None else against
    found = [name for name in names if name == wanted or name.startswith(f"{wanted} (")]
    found += [name for name in names if wanted == "base" and is_base(name)]
    return found[0] if found else names[0] if against is None else None


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's step-down correction, in the given order."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        adjusted[number] = largest
    return adjusted


def signed_rank(differences: Sequence[float]) -> float:
    """Return the one-sided Wilcoxon p-value of differences below 0; 1.0 if all are 0."""
    from scipy.stats import wilcoxon  # noqa: PLC0415  (slow import)

    unequal = [difference for difference in differences if difference != 0]
    if not unequal:
        return 1.0
    with warnings.catch_warnings():
        # With few pairs the test is weak but valid, and the table shows the number of pairs.
        warnings.simplefilter("ignore")
        return float(wilcoxon(np.asarray(unequal), alternative="less").pvalue)


def _compare(
    runs: Sequence[Run],
    others: Sequence[Run],
    source: str,
    measures: Sequence[str],
    valid: Valid | None,
    seed: int,
) -> Iterator[Comparison]:
    """Yield one comparison per measure; pairs and the interval of the rate are computed once."""
    mine, theirs = (_values(some, source, valid) for some in (runs, others))
    both = [(value, theirs[key]) for key, value in mine.items() if key in theirs]
    rates = [(one["rate"], other["rate"]) for one, other in both]
    rate = _difference(rates, seed) if rates and source != ITERATIONS else None
    for measure in measures:
        differences = [one[measure] - other[measure] for one, other in both]
        p_value = signed_rank(differences)
        yield Comparison(
            source=source,
            measure=measure,
            method=runs[0].name,
            against=others[0].name,
            pairs=len(differences),
            unequal=sum(difference != 0 for difference in differences),
            difference=fmean(differences) if differences else None,
            p_value=p_value,
            p_holm=p_value,
            rate=rate,
        )


def _difference(rates: Sequence[tuple[float, float]], seed: int) -> Estimate:
    """Return the mean of first minus second with its 95 % interval. seed: bootstrap seed.

    If all values are 0 or 1, the interval is Newcombe's (1998, paired differences, method 10),
    since resampling has no variance if no pair differs. Means over seeds are resampled.
    """
    if any(value not in (0, 1) for pair in rates for value in pair):
        rows: list[Ratios] = [{"rate": (one - other, 1)} for one, other in rates]
        return bootstrapped(rows, seed)["rate"]
    n = len(rates)
    both, mine, theirs = (
        sum(pair in some for pair in rates) for some in ([(1, 1)], [(1, 0)], [(0, 1)])
    )
    neither = n - both - mine - theirs
    found = []
    for toxic in (both + mine, both + theirs):
        low, high = wilson(toxic, n)
        found.append((toxic / n, toxic / n - low, high - toxic / n))
    (first, below, above), (second, other_below, other_above) = found
    product = (both + mine) * (both + theirs) * (neither + mine) * (neither + theirs)
    excess = float(both * neither - mine * theirs)
    excess = max(excess - n / 2, 0.0) if excess > 0 else excess
    phi = excess / math.sqrt(product) if product else 0.0
    difference = first - second
    return Estimate(
        difference,
        difference - math.sqrt(below**2 - 2 * phi * below * other_above + other_above**2),
        difference + math.sqrt(above**2 - 2 * phi * above * other_below + other_below**2),
    )


def _values(
    runs: Sequence[Run], source: str, valid: Valid | None
) -> dict[tuple[RecordId, str], dict[str, float]]:
    """Return the measures and the rate of each prompt with a kept trial, by id and text."""
    found: dict[tuple[RecordId, str], list[dict[str, float]]] = {}
    for run in runs:
        for record in run.records:
            trials = kept_trials(run, record, valid)
            scores: Sequence[float] | None
            if source == ITERATIONS:
                scores = all_or_none(trial.iterations for trial in trials)
            else:
                scores = scores_of(run, trials, source)
            if scores:
                values = {name: measure(scores) for name, measure in MEASURES.items()}
                values["rate"] = float(is_toxic(run, max(scores)))
                found.setdefault((record.id, record.asked), []).append(values)
    return {
        key: {name: fmean(one[name] for one in some) for name in some[0]}
        for key, some in found.items()
    }

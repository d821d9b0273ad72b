"""Tests whether one method writes less toxic text than another, paired over the prompts."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tide.core.errors import InputError
from tide.evaluation.metrics import Estimate, wilson
from tide.evaluation.runs import Run, frame, is_base

if TYPE_CHECKING:
    from pandas import DataFrame

# Two values that differ by less are equal: scorers round, in the order of a batch.
TIE = 1e-6
# Largest number of differences of equal sizes for an exact test; more take a second and longer.
_MOST_EXACT = 500


@dataclass(frozen=True)
class Comparison:
    """One-sided Wilcoxon signed-rank test of "`method` is less toxic than `against`".

    source: source of the scores. measure: the `max` or `mean` score of a prompt's completions.
    pairs: prompts in both runs.
    unequal: pairs whose two values differ; the test leaves out ties. Equal texts, and values that
    differ by less than `TIE`, are ties. difference: mean over all pairs of method minus against.
    p_value: 1.0 if no pair differs. p_holm: p-value corrected for all comparisons of the call.
    rate: difference of the toxic rates (shares of prompts with a toxic completion), method minus
    against, with its 95 % interval over pairs (`_difference`). If the upper end of the interval is
    below a margin that was chosen beforehand, the method is non-inferior (one-sided, at 2.5 %).
    Without pairs, difference, p_value, p_holm and rate are None.
    """

    source: str
    measure: str
    method: str
    against: str
    pairs: int
    unequal: int
    difference: float | None
    p_value: float | None
    p_holm: float | None
    rate: Estimate | None


def compare(runs: Sequence[Run], against: str | None = None) -> list[Comparison]:
    """Compare every run with the run named `against`, by every common source.

    against: by default `base`, or the first run if `base` is missing. A run of another seed is
    compared with that method's run of this seed, if there is one. Prompts are paired by id, and
    only if their texts are equal. Of each pair, the same number of completions is compared: the
    first trials. Holm's correction covers all comparisons returned.

    Raises InputError if no run is named `against`.
    """
    names = [run.name for run in runs]
    opponent_name = resolve_against(names, against)
    if opponent_name is None:
        raise InputError(f"no run of method {against!r} to compare with; there are {names}")
    named = runs[names.index(opponent_name)]
    opponents = {named.settings.get("seed"): named}
    method = _without_seed(named)
    for run in runs:
        if _without_seed(run) == method:
            opponents.setdefault(run.settings.get("seed"), run)
    frames = {id(run): frame(run).astype({"id": object}) for run in runs}
    comparisons: list[Comparison] = []
    for source in named.sources:
        for run in runs:
            opponent = opponents.get(run.settings.get("seed"), named)
            if run is not opponent and source in run.sources and source in opponent.sources:
                pairs = frames[id(run)].merge(
                    frames[id(opponent)], on=["id", "prompt", "trial"], suffixes=("", " against")
                )
                comparisons += _compare(pairs, run.name, opponent.name, source)
    p_values = [test.p_value for test in comparisons if test.p_value is not None]
    corrected = iter(holm(p_values))
    return [
        test if test.p_value is None else replace(test, p_holm=next(corrected))
        for test in comparisons
    ]


def _without_seed(run: Run) -> str:
    """Return the method of a run; its seed is the last of the settings that the name holds."""
    return re.sub(r"[:,]seed=\d+$", "", run.config["method"])


def resolve_against(names: Sequence[str], against: str | None) -> str | None:
    """Return the name that `against` selects, or None; `tide` also selects `tide (FOLDER)`."""
    wanted = "base" if against is None else against
    matches = [name for name in names if name == wanted or name.startswith(f"{wanted} (")]
    matches += [name for name in names if wanted == "base" and is_base(name)]
    return matches[0] if matches else names[0] if against is None else None


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's step-down correction, in the given order."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        adjusted[number] = largest
    return adjusted


def signed_rank(differences: Sequence[float]) -> float:
    """Return the one-sided Wilcoxon p-value of differences below 0; 1.0 if all are ties.

    It is exact for up to 50 differences, and for up to 500 of which some have equal sizes.
    """
    from scipy.stats import wilcoxon  # noqa: PLC0415  (slow import)

    unequal = np.array([difference for difference in differences if abs(difference) >= TIE])
    if not len(unequal):
        return 1.0
    has_equal_sizes = len(np.unique(_sizes(unequal))) < len(unequal)
    if has_equal_sizes and len(unequal) <= _MOST_EXACT:
        return _exact_signed_rank(unequal)
    with warnings.catch_warnings():
        # With few pairs the test is weak but valid, and the table shows the number of pairs.
        warnings.simplefilter("ignore")
        return float(wilcoxon(unequal, alternative="less").pvalue)


def _sizes(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the absolute values, equal where only the rounding of a mean differs."""
    return np.abs(differences).round(9)


def _exact_signed_rank(differences: NDArray[np.float64]) -> float:
    """Return the probability of a sum of positive ranks up to that of `differences`.

    Every sign has the probability 1/2. scipy approximates by a normal distribution if sizes are
    equal: of 14 differences of one size, of which 3 are positive, by 0.016 instead of 0.029.
    """
    from scipy.stats import rankdata  # noqa: PLC0415  (slow import)

    # Equal sizes share the mean of their ranks, a multiple of 1/2.
    doubled_ranks = np.rint(2 * rankdata(_sizes(differences))).astype(int)
    observed = int(doubled_ranks[differences > 0].sum())
    probabilities = np.zeros(doubled_ranks.sum() + 1)
    probabilities[0] = 1.0
    for rank in doubled_ranks:
        if_positive = np.zeros_like(probabilities)
        if_positive[rank:] = probabilities[:-rank]
        probabilities = (probabilities + if_positive) / 2
    return min(1.0, float(probabilities[: observed + 1].sum()))


def _compare(pairs: DataFrame, method: str, against: str, source: str) -> list[Comparison]:
    """Compare by each measure. pairs: the trials that both runs have, a row for each."""
    score, toxic = f"toxicity {source}", f"toxic {source}"
    # A prompt counts only if all of its completions are scored.
    prompt = ["id", "prompt"]
    pairs["is scored"] = pairs[[score, f"{score} against"]].notna().all(axis=1)
    pairs = pairs[pairs.groupby(prompt, sort=False)["is scored"].transform("all")].copy()
    # A scorer's result for a text varies in the seventh digit with the other texts of its batch, or
    # more in half precision. The text of a refused trial is not the text that was scored.
    is_refused = (pairs["refused"] | pairs["refused against"]).fillna(False)
    is_same = (pairs["text"] == pairs["text against"]) & ~is_refused
    for column in (score, toxic):
        of_opponent = pairs[f"{column} against"]
        pairs[f"{column} against"] = of_opponent.mask(is_same, pairs[column])
    by_prompt = pairs.groupby(prompt, sort=False)
    columns = by_prompt[[score, f"{score} against", toxic, f"{toxic} against"]]
    measures = {"max": columns.max(), "mean": columns.mean()}
    largest, rate = measures["max"], None
    if len(pairs):
        rate = _difference(list(zip(largest[toxic], largest[f"{toxic} against"], strict=True)))
    if not (by_prompt.size() > 1).any():  # maximum and mean are equal, so one test is enough
        del measures["max"]
    comparisons = []
    for name, values in measures.items():
        differences = (values[score] - values[f"{score} against"]).tolist()
        p_value = signed_rank(differences) if differences else None
        comparison = Comparison(
            source=source,
            measure=name,
            method=method,
            against=against,
            pairs=len(differences),
            unequal=sum(abs(difference) >= TIE for difference in differences),
            difference=fmean(differences) if differences else None,
            p_value=p_value,
            p_holm=p_value,
            rate=rate,
        )
        comparisons.append(comparison)
    return comparisons


def _difference(rates: Sequence[tuple[float, float]]) -> Estimate:
    """Return the mean of first minus second, which are 0 or 1, with its 95 % interval.

    The interval is Newcombe's (1998, paired differences, method 10), since resampling has no
    variance if no pair differs.
    """
    n = len(rates)
    both_toxic = rates.count((1, 1))
    only_first = rates.count((1, 0))
    only_second = rates.count((0, 1))
    neither = n - both_toxic - only_first - only_second
    shares = []
    for toxic in (both_toxic + only_first, both_toxic + only_second):
        low, high = wilson(toxic, n)
        shares.append((toxic / n, toxic / n - low, high - toxic / n))
    (first, below, above), (second, other_below, other_above) = shares
    product = (
        (both_toxic + only_first)
        * (both_toxic + only_second)
        * (neither + only_first)
        * (neither + only_second)
    )
    excess = float(both_toxic * neither - only_first * only_second)
    excess = max(excess - n / 2, 0.0) if excess > 0 else excess
    phi = excess / math.sqrt(product) if product else 0.0
    difference = first - second
    return Estimate(
        difference,
        difference - math.sqrt(below**2 - 2 * phi * below * other_above + other_above**2),
        difference + math.sqrt(above**2 - 2 * phi * above * other_below + other_below**2),
    )

"""Metrics of a run: toxicity by every source, fluency, diversity and cost, with intervals.

Every average is a ratio of two sums over prompts: the sum of the values, and the number of prompts
or of completions. One bootstrap over prompts therefore gives all intervals of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tide.core.settings import derive_seed
from tide.evaluation.runs import Run, frame, is_toxic

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# The name of an average; for averages by a scorer or reference model, with its name before.
Name = tuple[str, ...]

_RESAMPLES = 2000
# Averages that are shares of completions or prompts, by the last part of their names.
_SHARES = {"rate", "each", "changed", "empty", "degenerate", "unresolved", "refused"}
# Costs, summed over the trials of a prompt.
_COSTS = ("evaluations", "generated_tokens", "forward_tokens", "scorer_calls", "seconds")


@dataclass(frozen=True)
class Estimate:
    """An average with its 95 % bootstrap interval over prompts.

    low, high: None if too few prompts have values.
    """

    value: float
    low: float | None = None
    high: float | None = None


class Share(Estimate):
    """A share of prompts with Wilson's interval, or of completions with a bootstrap interval.

    A share of 0 or 1 has no variance under resampling, so its interval is always Wilson's, with the
    number of prompts as the sample size.
    """


@dataclass(frozen=True)
class Summary:
    """The metrics of one run. A value that a run did not record is absent, never zero.

    toxicity: by source (the search's scorer, then the judges):
    `max`, `mean`: averages over prompts of the largest and the mean score of their completions.
    `rate`: share of prompts with a toxic completion. `each`: share of toxic completions.
    `changed` (with the unmodified model's run): share of the unmodified model's completions called
    harmless by this source that the method changed or withheld.

    fluency: by reference model, `mean` and `median` perplexity of completions.
    unscored: by source or reference model, the number of prompts that lack scores. Averages by a
    source leave these prompts out, averages by a reference model their completions without a score.
    missing: number of prompts without a record, since they failed or the run was stopped.

    averages: over completions, `iterations` (the paper's K-bar; the prompt itself is 1),
    `num_tokens`, `empty` and `degenerate` (`core.text.is_degenerate`); over prompts,
    `dist_2` and `dist_3` (distinct n-grams per word of a prompt's completions, as in DExperts),
    `evaluations`, `generated_tokens`, `forward_tokens`, `scorer_calls`, `seconds`, and
    `unresolved` and `refused` (shares of prompts with an unresolved or a refused trial).
    """

    method: str
    prompts: int
    completions: int
    toxicity: dict[str, dict[str, Estimate]]
    unscored: dict[str, int]
    missing: int
    fluency: dict[str, dict[str, Estimate]]
    averages: dict[str, Estimate]

    @property
    def perplexity(self) -> Estimate | None:
        """The mean perplexity under the first reference model."""
        return next((fluency.get("mean") for fluency in self.fluency.values()), None)


class _Averages:
    """Collects, for each average, the sum and the number of values of each prompt."""

    def __init__(self, trials: DataFrame) -> None:
        self._prompts = trials.index.unique()
        self.sums: dict[Name, NDArray[np.float64]] = {}
        self.counts: dict[Name, NDArray[np.float64]] = {}

    def add(self, name: Name, values: Series) -> None:
        """values: of completions, or one of each prompt, with the ids of their prompts."""
        by_prompt = values.groupby(level=0, sort=False)
        self.sums[name] = self._of_prompts(by_prompt.sum())
        self.counts[name] = self._of_prompts(by_prompt.count())

    def _of_prompts(self, values: Series) -> NDArray[np.float64]:
        numbers = values.astype(float).reindex(self._prompts, fill_value=0.0)
        return np.array(numbers)

    def estimates(self) -> dict[Name, Estimate]:
        estimates = bootstrapped(self.sums, self.counts)
        for name in estimates:
            if name[-1] in _SHARES:
                estimates[name] = as_share(estimates[name], self.counts[name])
        return estimates


def summarize(run: Run, *, unmodified_run: Run | None = None) -> Summary:
    """Compute the metrics of `run`.

    The order of the records does not matter.
    unmodified_run: the unmodified model's run with the same seed; its records of other prompts do
    not count.
    """
    records = sorted(run.records, key=lambda record: (type(record.id) is str, record.id))
    trials = frame(replace(run, records=records)).set_index("id")
    averages = _Averages(trials)
    unscored = {source: _add_toxicity(averages, trials, source) for source in run.sources}
    if unmodified_run is not None:
        _add_changed(averages, run, unmodified_run)
    _add_text(averages, trials)
    _add_costs(averages, trials, run.scorer)
    for reference in run.references:
        averages.add((reference, "mean"), trials[f"perplexity {reference}"])
        unscored[reference] = int(trials.index[trials[f"tokens {reference}"].isna()].nunique())
    estimates = averages.estimates()
    fluency = {reference: _of(estimates, reference) for reference in run.references}
    for reference, of_completions in fluency.items():
        if of_completions:
            median = trials[f"perplexity {reference}"].median()
            of_completions["median"] = Estimate(float(median))
    return Summary(
        method=run.name,
        prompts=len(records),
        completions=len(trials),
        toxicity={source: _of(estimates, source) for source in run.sources},
        unscored=unscored,
        missing=max(0, (run.config.get("num_prompts") or 0) - len(records)),
        fluency=fluency,
        averages={name[0]: value for name, value in estimates.items() if len(name) == 1},
    )


def _of(estimates: Mapping[Name, Estimate], source: str) -> dict[str, Estimate]:
    """Return the averages by a scorer or reference model, by the last part of their names."""
    return {name[-1]: value for name, value in estimates.items() if name[:-1] == (source,)}


def _add_toxicity(averages: _Averages, trials: DataFrame, source: str) -> int:
    """Add the averages by one source; returns the number of prompts that it has not scored."""
    scores, toxic = trials[f"toxicity {source}"], trials[f"toxic {source}"]
    # A prompt counts only if all of its completions are scored.
    is_scored = scores.notna().groupby(level=0, sort=False).transform("all")
    by_prompt = scores[is_scored].groupby(level=0, sort=False)
    averages.add((source, "max"), by_prompt.max())
    averages.add((source, "mean"), by_prompt.mean())
    averages.add((source, "rate"), toxic[is_scored].groupby(level=0, sort=False).max())
    averages.add((source, "each"), toxic[is_scored])
    return int(trials.index[~is_scored].nunique())


def _add_changed(averages: _Averages, run: Run, unmodified_run: Run) -> None:
    """Add, by source, the share of the model's own harmless completions that were changed.

    For the search's scorer, harmless means a score below the search's threshold; for any other
    source, a score that the protocol does not call toxic.
    """
    keys = ["id", "prompt", "trial"]
    pairs = frame(run)[[*keys, "text"]].merge(
        frame(unmodified_run), on=keys, suffixes=("", " before")
    )
    pairs = pairs.set_index("id")
    is_changed = (pairs["text"] != pairs["text before"]).astype(float)
    threshold = (run.config.get("settings") or {}).get("toxicity_threshold")
    for source in run.sources:
        if source not in unmodified_run.sources:
            continue
        scores = pairs[f"toxicity {source}"]
        is_harmless = ~is_toxic(run, scores) & scores.notna()
        if source == run.scorer and threshold is not None:
            is_harmless = scores < threshold
        averages.add((source, "changed"), is_changed[is_harmless])


def _add_text(averages: _Averages, trials: DataFrame) -> None:
    for name in ("iterations", "num_tokens", "empty", "degenerate"):
        averages.add((name,), trials[name])
    by_prompt = trials["text"].groupby(level=0, sort=False)
    for n in (2, 3):
        averages.add((f"dist_{n}",), by_prompt.agg(_distinct, n=n).astype(float))


def _distinct(texts: Series, n: int) -> float:
    """Return the number of distinct n-grams of words, per word; missing without words."""
    words = [tuple(text.split()) for text in texts]
    total = sum(map(len, words))
    grams = {text_words[i : i + n] for text_words in words for i in range(len(text_words) - n + 1)}
    return len(grams) / total if total else math.nan


def _add_costs(averages: _Averages, trials: DataFrame, scorer: str) -> None:
    by_prompt = trials.groupby(level=0, sort=False)
    for name in _COSTS:
        averages.add((name,), by_prompt[name].sum(min_count=1))
    searched = trials[trials["accepted"].notna()]
    # The prompt's own empty completion scores 0.0 and is neither detoxified nor unresolved.
    is_empty = searched["empty"] & (searched[f"toxicity {scorer}"] == 0)
    is_unresolved = ~(searched["accepted"] | is_empty).astype(bool)
    unresolved = is_unresolved.groupby(level=0, sort=False).any()
    averages.add(("unresolved",), unresolved.astype(float))
    refused = trials["refused"].dropna().groupby(level=0, sort=False).any()
    averages.add(("refused",), refused.astype(float))


def as_share(ratio: Estimate, counts: NDArray[np.float64]) -> Share:
    """Give a share of prompts, and a share of 0 or 1, Wilson's interval. counts: by prompt."""
    prompts = counts[counts > 0]
    if (prompts == 1).all() or ratio.value in (0.0, 1.0):
        low, high = wilson(round(ratio.value * len(prompts)), len(prompts))
        return Share(ratio.value, min(low, ratio.value), max(high, ratio.value))
    return Share(ratio.value, ratio.low, ratio.high)


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of the share `count / total`."""
    from scipy.stats import binomtest  # noqa: PLC0415  (slow import)

    ends = binomtest(count, total).proportion_ci(method="wilson")
    return float(ends.low), float(ends.high)


def bootstrapped(
    sums: Mapping[Name, Sequence[float] | NDArray[np.float64]],
    counts: Mapping[Name, Sequence[float] | NDArray[np.float64]],
) -> dict[Name, Estimate]:
    """Return sum / count over all prompts by name, with percentile intervals over the prompts.

    sums, counts: by name, a number for each prompt; a prompt without a value has the count 0.
    """
    names = [name for name in sums if np.sum(counts[name])]
    above = np.array([sums[name] for name in names], dtype=float).T
    below = np.array([counts[name] for name in names], dtype=float).T
    values = above.sum(axis=0) / below.sum(axis=0)
    prompts = len(above)
    if prompts < 2:  # nothing to resample
        return {name: Estimate(float(value)) for name, value in zip(names, values, strict=True)}

    rng = np.random.default_rng(derive_seed(0, "bootstrap"))
    ratios = np.empty((_RESAMPLES, len(names)))
    # A resample may miss the few prompts that have a value; then there is no interval. The square
    # of a broken text's perplexity may overflow.
    with np.errstate(invalid="ignore", over="ignore"):
        for ratio in ratios:
            drawn = np.bincount(rng.integers(prompts, size=prompts), minlength=prompts)
            ratio[:] = (drawn @ above) / (drawn @ below)
        lows, highs = np.percentile(ratios, [2.5, 97.5], axis=0)
    estimates = {}
    for name, mean, low, high in zip(names, values, lows, highs, strict=True):
        value = float(mean)
        # If all prompts are equal, rounding may put the value outside its interval.
        estimates[name] = Estimate(
            value,
            None if np.isnan(low) else min(float(low), value),
            None if np.isnan(high) else max(float(high), value),
        )
    return estimates

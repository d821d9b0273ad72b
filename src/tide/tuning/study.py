"""The trials of a tuning: the paper's grid, or the suggestions of Optuna's TPE."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tide.core.errors import InputError, TideError
from tide.core.optional import require
from tide.core.results import format_score
from tide.core.settings import Settings
from tide.engines import Engine
from tide.evaluation import Benchmark, Run, evaluate
from tide.evaluation.judges import NamedScorer
from tide.evaluation.methods import load_method
from tide.evaluation.metrics import Summary, summarize
from tide.evaluation.perplexity import Reference
from tide.evaluation.progress import Progress
from tide.evaluation.protocols import load_protocol
from tide.plugins.options import format_value
from tide.plugins.specs import format_spec, parse_spec
from tide.search import load_strategy
from tide.tuning.settings import GRID, GRID_SCALE, SPACES, TuningSettings

# Minimum number of prompts for choosing settings without a warning.
_FEW = 20
# Settings with a larger share of empty completions, which are never toxic, are ranked last.
_SILENT = 0.1
# If one of the two settings of a scale is given, the scale is not tuned.
_GIVEN = {"mu": {"mu", "mu_relative"}, "step_size": {"step_size", "step_relative"}}

# Measures that TPE minimises; the winner must not be worse in `p95` and `empty` either.
OBJECTIVES = ("evaluations", "judged", "perplexity")
_RANDOM = 10  # random tries before TPE starts


@dataclass(frozen=True)
class TuningTrial:
    """Settings that were evaluated.

    method: their spec, for `evaluate`. values: the settings that were varied. measures: lower
    values are better.
    """

    method: str
    values: dict[str, Any]
    measures: dict[str, float]


@dataclass(frozen=True)
class Bench:
    """A model, a scorer and everything else that all tries share, loaded once.

    usual: spec of the method before tuning. judges: scorers that take no part in the search. out:
    the folder of all runs. overrides: settings that are not tuned.
    """

    usual: str
    engine: Engine
    scorer: NamedScorer
    judges: Sequence[NamedScorer]
    reference: Reference | None
    protocol: str
    out: Path
    overrides: Mapping[str, Any]
    progress: Progress = field(default_factory=Progress)

    @property
    def given(self) -> set[str]:
        """Names of the settings that the caller gave, which are not tuned."""
        return {*self.overrides, *parse_spec(self.usual)[1]}

    def runs(
        self,
        prompts: Benchmark,
        methods: Sequence[str],
        folder: str,
        *,
        judged: bool = True,
        counted: tuple[int, int] | None = None,
        **settings: Any,
    ) -> list[Run]:
        """Run `methods` into the folder `folder`; existing records are kept.

        judged: also score the runs by the judges and the reference. counted: number of this try and
        total number of tries. Raises TideError if a prompt failed, since averages over different
        prompts cannot be compared.
        """
        self.progress.place = "{}/{} ".format(*counted) if counted else ""
        made = evaluate(
            prompts,
            methods,
            model=self.engine,
            scorer=self.scorer,
            judges=self.judges if judged else [],
            protocol=self.protocol,
            reference=self.reference if judged and self.reference else "none",
            out=self.out / folder,
            progress=self.progress,
            **{**self.overrides, **settings},
        )
        for run in made:
            for error in run.failed.values():
                raise TideError(
                    f"{run.name}: {len(run.failed)} prompts failed ({error}); repeat the "
                    "command to run these prompts again"
                )
        return made

    def settings(self, method: str) -> Settings:
        """Return all settings of a method. Raises InputError if they are invalid."""
        protocol, scorer = load_protocol(self.protocol), self.scorer.scorer
        return load_method(method, self.engine, scorer, protocol, self.overrides).settings

    def tried(
        self, prompts: Benchmark, values: dict[str, Any], number: int, total: int, **how: Any
    ) -> tuple[TuningTrial, Summary]:
        """Run `usual` with `values`; returns the trial, still without measures, and its summary."""
        name, options = parse_spec(self.usual, "methods")
        written = {k: f"{v:.6g}" if isinstance(v, float) else str(v) for k, v in values.items()}
        method = format_spec(name, {**options, **written}) if values else self.usual
        (run,) = self.runs(prompts, [method], "tries", counted=(number, total), **how)
        return TuningTrial(method, values, {}), summarize(run)


def by_grid(bench: Bench, prompts: Benchmark, how: TuningSettings) -> list[TuningTrial]:
    """Try every combination of the grid; the winner comes first.

    Uses the `worst` prompts by the mean toxicity of the model's own completions under the
    protocol, or all prompts with a mean above `above`. Decoding is greedy, with one completion per
    prompt. The winner has the lowest mean toxicity by the search's scorer among the settings that
    leave at most a tenth of the completions empty, or among all settings if all of them leave more
    completions empty. Ties are broken by fewer iterations, and then by fewer evaluations.
    """
    grid = {n: values for n, values in GRID.items() if not bench.given & _GIVEN.get(n, {n})}
    if not grid:
        raise InputError("nothing is left to tune: mu, num_samples and step_size are all given")
    if not load_strategy(bench.settings(bench.usual).strategy).moves:
        raise InputError(f"--start: {bench.usual} moves no embeddings; the grid tunes their moves")
    factor = _factor(bench, how.grid_scale)
    scaled: dict[str, list[Any]] = {
        name: [v if name == "num_samples" else float(f"{v * factor:.4g}") for v in values]
        for name, values in grid.items()
    }
    hard = _hard(bench, prompts, how)
    total, tried = math.prod(map(len, scaled.values())), []
    once: dict[str, Any] = {"judged": False, "temperature": 0.0, "num_trials": 1}
    for number, combination in enumerate(itertools.product(*scaled.values()), start=1):
        values = dict(zip(scaled, combination, strict=True))
        one, found = bench.tried(hard, values, number, total, **once)
        measures = {"toxicity": found.toxicity[bench.scorer.scorer.name]["mean"].value}
        for name in ("iterations", "evaluations", "empty"):
            measures[name] = found.averages[name].value
        tried.append(replace(one, measures=measures))
    return by_toxicity(tried)


def by_toxicity(tried: Sequence[TuningTrial]) -> list[TuningTrial]:
    """Sort the settings; `by_grid` describes the order."""
    return sorted(tried, key=lambda one: (one.measures["empty"] > _SILENT, *one.measures.values()))


def by_tpe(
    bench: Bench, prompts: Benchmark, tries: int, seed: int
) -> tuple[list[TuningTrial], Any]:
    """Try `tries` settings. Returns the winner, the Pareto front and the others; and the study.

    The first try is `bench.usual`. The winner is no worse than `bench.usual` in any measure and
    has the largest total gain (the product of ratios). A try depends only on the earlier tries and
    the seed, so a repeated call finds the existing runs and resumes.
    Raises InputError for a strategy without ranges.
    """
    optuna = require("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space, begun = _space(optuna, bench)
    with _quiet():
        sampler = optuna.samplers.TPESampler(
            seed=seed % (1 << 32), multivariate=True, n_startup_trials=_RANDOM
        )
        study = optuna.create_study(directions=["minimize"] * len(OBJECTIVES), sampler=sampler)
    tried: list[TuningTrial] = []
    for number in range(1, tries + 1):
        with _quiet():
            asked = study.ask(space) if tried else None
        values = asked.params if asked is not None else {}
        one, found = bench.tried(prompts, values, number, tries, num_trials=1)
        try:
            measures = _measures(found, bench)
        except InputError as error:
            if asked is None:  # nothing to compare other settings with
                raise
            bench.progress.say(str(error))
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            continue
        one = replace(one, values=values or begun, measures=measures)
        tried.append(one)
        objectives = [one.measures[name] for name in OBJECTIVES]
        if asked is not None:
            study.tell(asked, objectives)
            continue
        # The first setting may lie outside the ranges; TPE then cannot learn from it.
        with _quiet(), suppress(ValueError, TypeError):
            first = optuna.trial.create_trial(params=begun, distributions=space, values=objectives)
            study.add_trial(first)
    return ranked(tried, 0.5 / len(prompts.rows)), study


def ranked(tried: Sequence[TuningTrial], least: float) -> list[TuningTrial]:
    """Return the distinct settings in the order that `by_tpe` describes.

    `tried[0]` has the settings to improve. least: added to each measure, to avoid division by zero.
    """
    usual, once = tried[0].measures, list({one.method: one for one in tried}.values())

    def gain(one: TuningTrial) -> float:
        return sum(math.log((usual[k] + least) / (v + least)) for k, v in one.measures.items())

    def beats(one: TuningTrial, other: TuningTrial) -> bool:
        pairs = [(one.measures[name], other.measures[name]) for name in OBJECTIVES]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    no_worse = [one for one in once if all(v <= usual[k] for k, v in one.measures.items())]
    winner = max(no_worse, key=gain)
    on_it = [one for one in once if not any(beats(other, one) for other in once)]
    rest = sorted((one for one in once if one is not winner), key=lambda one: one not in on_it)
    return [winner, *rest]


def figures(study: Any) -> dict[str, Any]:
    """Draw Optuna's plots of a study, by name: two views of the Pareto front, and importances.

    Raises MissingDependencyError without matplotlib.
    """
    pyplot, drawn = require("matplotlib.pyplot", "tune"), {}
    with _quiet(), pyplot.rc_context():  # Optuna sets a style for all later plots
        from optuna.visualization import matplotlib as plots  # noqa: PLC0415  (optional)

        for place in (1, 2):
            axes = plots.plot_pareto_front(
                study,
                targets=lambda trial, place=place: (trial.values[0], trial.values[place]),
                target_names=[OBJECTIVES[0], OBJECTIVES[place]],
            )
            drawn[f"frontier-{OBJECTIVES[place]}"] = axes.figure
        for place, name in enumerate(OBJECTIVES):
            # If all tries are equal, Optuna cannot compute importances.
            with suppress(RuntimeError, ValueError):
                axes = plots.plot_param_importances(
                    study, target=lambda trial, place=place: trial.values[place], target_name=name
                )
                drawn[f"importances-{name}"] = axes.figure
    for figure in drawn.values():
        pyplot.close(figure)  # or a notebook would show each figure twice
    return drawn


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Optuna's warnings about experimental features."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _space(optuna: Any, bench: Bench) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ranges as Optuna's distributions, and the values of `bench.usual`.

    Settings given by the caller are left out.
    """
    settings = bench.settings(bench.usual)
    strategy = parse_spec(settings.strategy)[0]
    if strategy not in SPACES:
        raise InputError(f"--start: {strategy} has no ranges to try; use {' or '.join(SPACES)}")
    given = bench.given | {
        f"{name.partition('_')[0]}_relative" for name in bench.given & {"mu", "step_size"}
    }
    space = {name: found for name, found in SPACES[strategy].items() if name not in given}
    own = load_strategy(settings.strategy).options.model_dump(by_alias=True)
    current = {**settings.model_dump(), **own}
    begun = {
        name: format_value(current[name]) if name == "max_perplexity" else current[name]
        for name in space
    }
    make = optuna.distributions
    ranges = {
        name: make.CategoricalDistribution(found)
        if isinstance(found, list)
        else make.FloatDistribution(found[0], found[1], step=found[2])
        for name, found in space.items()
    }
    return ranges, begun


def _measures(found: Summary, bench: Bench) -> dict[str, float]:
    """Return the measures of a trial.

    judged: the largest toxic rate by a judge, plus the share of unresolved prompts.

    perplexity, p95: median and 95th percentile over the moved completions. empty: the share of
    empty completions, which are not toxic and have no perplexity.
    """
    (fluency,) = found.fluency.values()
    if fluency.moved_median is None or fluency.moved_p95 is None:
        raise InputError(f"{found.method}: moved no completion with tokens, so it cannot be tuned")
    guide = bench.scorer.scorer.name
    rates = [one["rate"].value for name, one in found.toxicity.items() if name != guide]
    return {
        "evaluations": found.averages["evaluations"].value,
        "judged": max(rates) + found.averages["unresolved"].value,
        "perplexity": fluency.moved_median,
        "p95": fluency.moved_p95,
        "empty": found.averages["empty"].value,
    }


def _hard(bench: Bench, prompts: Benchmark, how: TuningSettings) -> Benchmark:
    (base,) = bench.runs(prompts, ["base"], "base", judged=False)
    means = {record.id: record.avg_toxicity for record in base.records}
    if (above := how.above) is None:
        chosen = sorted(prompts.rows, key=lambda row: means[row.id], reverse=True)[: how.worst]
        ids = {row.id for row in chosen}
        least, most = means[chosen[-1].id], means[chosen[0].id]
        bench.progress.say(
            f"tuning on the {len(ids)} of {len(means)} prompts with the most toxic completions: "
            f"mean toxicity {least:.2f} to {most:.2f} (--worst)"
        )
        return replace(prompts, rows=[row for row in prompts.rows if row.id in ids])
    rows = [row for row in prompts.rows if means[row.id] > above]
    if not rows:
        raise InputError(
            f"--above {above:g}: no prompt of {len(means)} has a higher mean toxicity (maximum "
            f"{format_score(max(means.values()), True)}); {_instead(list(means.values()))}"
        )
    bench.progress.say(f"{len(rows)} of {len(means)} prompts have a mean toxicity above {above:g}")
    if len(rows) < _FEW:
        bench.progress.say(f"a good choice needs more prompts; {_instead(list(means.values()))}")
    return replace(prompts, rows=rows)


def _instead(means: Sequence[float]) -> str:
    lower = next((t for t in (0.8, 0.7, 0.6) if sum(m > t for m in means) >= _FEW), 0.5)
    return f"--above {lower:g} leaves {sum(mean > lower for mean in means)} prompts"


def _factor(bench: Bench, scale: str) -> float:
    """Return the factor for the scales of the grid."""
    if scale not in ("ratio", "literal"):
        try:
            factor = float(scale)
        except ValueError:
            factor = math.nan
        if not 1e-6 <= factor <= 1e6:
            raise InputError(f"--grid-scale: expected ratio, literal, or a number (got {scale!r})")
        return factor
    norm = getattr(bench.engine, "mean_row_norm", None)
    if norm is None:
        raise InputError("--grid-scale: this engine has no embedding table; give a number")
    own = float(norm) / math.sqrt(bench.engine.dim)
    return own / GRID_SCALE if scale == "ratio" else own

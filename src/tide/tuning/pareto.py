"""Optuna's search: fewer evaluations, less toxicity by judges, and likelier text, all at once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tide.core.errors import InputError, guarded
from tide.core.optional import require
from tide.core.seeds import derive_seed
from tide.evaluation import Benchmark
from tide.evaluation.metrics import Summary, summarize
from tide.plugins.options import format_value
from tide.plugins.specs import parse_spec
from tide.search import load_strategy
from tide.tuning.bench import Bench, TuningTrial, with_values

# What Optuna minimises; the winner must not lose in `p95` and `empty` either.
OBJECTIVES = ("evaluations", "judged", "perplexity")
# Of each strategy: a range (low, high, step), or a list of choices.
_Space = dict[str, tuple[float, float, float] | list[Any]]
_COMMON: _Space = {
    "toxicity_threshold": (0.1, 0.5, 0.02),
    "max_perplexity": ["none", "5", "6", "8", "10", "12", "16"],
    "perplexity_growth": (1.0, 2.0, 0.1),
    "perturb": ["content", "last:3", "last:5", "last:8", "last:12"],
}
_SPACES: dict[str, _Space] = {
    "ladder": {
        **_COMMON,
        "num_samples": [1, 2, 3, 4],
        "mu_relative": (0.8, 1.8, 0.1),
        "from": (0.2, 0.6, 0.1),
        "to": (0.4, 1.0, 0.1),
        "growth": (1.0, 1.6, 0.1),
        "samples_growth": (1.0, 2.0, 0.25),
    },
    "tide": {
        **_COMMON,
        "num_samples": [2, 4, 8, 16],
        "mu_relative": (0.2, 2.4, 0.1),
        "step_relative": (0.2, 1.2, 0.1),
        "cosine_threshold": (0.0, 0.8, 0.2),
    },
}
# To begin with, too: one completion at a time, which did well for the bundled model.
_KNOWN: dict[str, list[dict[str, Any]]] = {
    "ladder": [
        {
            **{"num_samples": 1, "samples_growth": 1.0, "mu_relative": 1.4, "from": 0.6, "to": 0.7},
            **{"growth": 1.0, "max_perplexity": "6", "perplexity_growth": 1.2},
        }
    ]
}
_KEPT = ("method", "values", "measures")  # of a try
_RANDOM = 10  # tries before the sampler has anything to learn from


def by_frontier(
    bench: Bench, prompts: Benchmark, tries: int, seed: int, journal: Path
) -> list[TuningTrial]:
    """So many settings, the winner first, then the frontier, then the others.

    The first one is `bench.usual`. The winner is no worse than that in any measure; of those that
    are not, it has the largest gain over all (the product of ratios). A try follows from those
    before it and the seed, and is written to `journal` when it is finished.
    Raises InputError for a strategy without ranges.
    """
    optuna = _optuna()
    space, begun = _space(optuna, bench)
    with _quiet(), guarded(InputError, f"{journal}: cannot be used"):
        study = _study(optuna, journal)
    tried: list[TuningTrial] = []
    for number in range(tries):
        there = next((t for t in study.trials if t.user_attrs.get("number") == number), None)
        if there is not None:
            tried.append(TuningTrial(*(there.user_attrs[name] for name in _KEPT)))
            continue
        known = number < len(begun)
        values = (
            begun[number]
            if known
            else _suggested(optuna, study, space, derive_seed(seed, "tune", number))
        )
        method = with_values(bench.usual, values) if tried else bench.usual
        (run,) = bench.runs(prompts, [method], "tries", counted=(number + 1, tries), num_trials=1)
        one = TuningTrial(method, values, _measures(summarize(run), run.scorer))
        tried.append(one)
        kept = {**{name: getattr(one, name) for name in _KEPT}, "number": number}
        objectives = [one.measures[name] for name in OBJECTIVES]
        # What is begun with may lie outside of the ranges; then nothing follows from it.
        with _quiet(), suppress(*([ValueError, TypeError] if known else [])):
            finished = optuna.trial.create_trial(
                params=values, distributions=space, values=objectives, user_attrs=kept
            )
            study.add_trial(finished)
    return ranked(tried, 0.5 / len(prompts.rows))


def ranked(tried: Sequence[TuningTrial], least: float) -> list[TuningTrial]:
    """Each setting once, in the order that `by_frontier` says; what was begun with stands first.

    least: is added to each measure, so that zeros have ratios.
    """
    usual, once = tried[0].measures, list({one.method: one for one in tried}.values())

    def gain(one: TuningTrial) -> float:
        return sum(math.log((usual[k] + least) / (v + least)) for k, v in one.measures.items())

    def beats(one: TuningTrial, other: TuningTrial) -> bool:
        pairs = [(one.measures[name], other.measures[name]) for name in OBJECTIVES]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    winner = max((one for one in once if _no_worse(one.measures, usual)), key=gain)
    on_it = [one for one in once if not any(beats(other, one) for other in once)]
    rest = sorted((one for one in once if one is not winner), key=lambda one: one not in on_it)
    return [winner, *rest]


def _no_worse(measures: Mapping[str, float], than: Mapping[str, float]) -> bool:
    return all(value <= than[name] for name, value in measures.items())


def figures(journal: Path) -> dict[str, Any]:
    """Optuna's plots of the tries in a journal, by name: two sides of the frontier, importances.

    Raises MissingDependencyError without matplotlib.
    """
    optuna, pyplot = _optuna(), require("matplotlib.pyplot", "tune")
    with _quiet(), pyplot.rc_context():  # its plots set a style for all that come after
        from optuna.visualization import matplotlib as plots  # noqa: PLC0415  (not always there)

        study, drawn = _study(optuna, journal), {}
        for place in (1, 2):
            axes = plots.plot_pareto_front(
                study,
                targets=lambda trial, place=place: (trial.values[0], trial.values[place]),
                target_names=[OBJECTIVES[0], OBJECTIVES[place]],
            )
            drawn[f"frontier-{OBJECTIVES[place]}"] = axes.figure
        for place, name in enumerate(OBJECTIVES):
            # Where all tries came out alike, nothing is important.
            with suppress(RuntimeError, ValueError):
                axes = plots.plot_param_importances(
                    study, target=lambda trial, place=place: trial.values[place], target_name=name
                )
                drawn[f"importances-{name}"] = axes.figure
    for figure in drawn.values():
        pyplot.close(figure)  # a notebook would show each once more
    return drawn


def _optuna() -> Any:
    optuna = require("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, Optuna does not warn of what it may change one day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _study(optuna: Any, journal: Path) -> Any:
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    return optuna.create_study(
        study_name="tide",
        storage=optuna.storages.JournalStorage(backend),
        directions=["minimize"] * len(OBJECTIVES),
        load_if_exists=True,
    )


def _space(optuna: Any, bench: Bench) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is tried, as Optuna has it, and what to begin with, first of all `bench.usual`.

    A setting that is given is not tried.
    """
    settings = bench.settings(bench.usual)
    strategy = parse_spec(settings.strategy)[0]
    if strategy not in _SPACES:
        raise InputError(f"--start: {strategy} has no ranges to try; {', '.join(_SPACES)} have")
    given = {*bench.overrides, *parse_spec(bench.usual)[1]}
    given |= {f"{name.partition('_')[0]}_relative" for name in given & {"mu", "step_size"}}
    space = {name: found for name, found in _SPACES[strategy].items() if name not in given}
    own = load_strategy(settings.strategy).options.model_dump(by_alias=True)
    stands = {**settings.model_dump(), **own}
    begun = {
        name: format_value(stands[name]) if name == "max_perplexity" else stands[name]
        for name in space
    }
    known = [
        {name: one.get(name, begun[name]) for name in space} for one in _KNOWN.get(strategy, ())
    ]
    make = optuna.distributions
    ranges = {
        name: make.CategoricalDistribution(found)
        if isinstance(found, list)
        else make.FloatDistribution(found[0], found[1], step=found[2])
        for name, found in space.items()
    }
    return ranges, [begun, *known]


def _suggested(optuna: Any, study: Any, space: dict[str, Any], seed: int) -> dict[str, Any]:
    """What to try next: from the finished tries and the seed alone, so that a restart changes none.

    The journal never holds an unfinished try.
    """
    with _quiet():
        sampler = optuna.samplers.TPESampler(
            seed=seed % (1 << 32), multivariate=True, n_startup_trials=_RANDOM
        )
        draft = optuna.create_study(directions=["minimize"] * len(OBJECTIVES), sampler=sampler)
        draft.add_trials(study.get_trials(deepcopy=False))
        found: dict[str, Any] = draft.ask(space).params
        return found


def _measures(found: Summary, scorer: str) -> dict[str, float]:
    """judged: the stricter judge's share of toxic prompts, those without an accepted text added.

    perplexity, p95: median and 95th percentile of the completions that were moved. empty: the share
    of empty completions, which are not toxic and have no perplexity.
    """
    (fluency,) = found.fluency.values()
    if fluency.moved_median is None or fluency.moved_p95 is None:
        raise InputError(f"{found.method}: moved no completion that has tokens: nothing to tune by")
    rates = [one["rate"].value for name, one in found.toxicity.items() if name != scorer]
    return {
        "evaluations": found.averages["evaluations"].value,
        "judged": max(rates) + found.averages["unresolved"].value,
        "perplexity": fluency.moved_median,
        "p95": fluency.moved_p95,
        "empty": found.averages["empty"].value,
    }

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.search.test_tide import problem
from tests.worlds import drive, toxicity
from tide.core.errors import InputError
from tide.core.settings import Settings
from tide.search import (
    REGISTRY,
    Candidate,
    Strategy,
    load_strategy,
    resolve_settings,
)
from tide.search.base import Point, Steps

HALF = Settings(strategy="tide", toxicity_threshold=0.5)
HARD = {"toxicity_threshold": 1e-9, "max_iterations": 3}
# `backtrack` evaluates no points; see tests/runtime/test_backtrack.py.
ALL = [name for name in REGISTRY.names() if name != "backtrack"]


def make(spec: str, seed: int = 0, **changes: Any) -> Strategy:
    settings = resolve_settings({"strategy": spec, "toxicity_threshold": 0.5, **changes})
    strategy = load_strategy(settings.strategy).create(problem(seed=seed), settings)
    assert isinstance(strategy, Strategy)
    return strategy


def candidates(strategy: Strategy) -> list[Candidate]:
    """All candidates of a search on `toxicity` in which nothing passes."""
    asked_for: list[Candidate] = []
    while not strategy.done:
        asked = strategy.ask()
        asked_for += asked
        strategy.tell([toxicity(candidate.embeddings) for candidate in asked])
    return asked_for


def tell(strategy: Strategy, *rounds: list[float]) -> None:
    for values in rounds:
        strategy.ask()
        strategy.tell(values)


# Every strategy


@pytest.mark.parametrize("name", ALL)
def test_costs_one_evaluation_on_a_clean_prompt(name: str) -> None:
    strategy = make(name)
    (candidate,) = strategy.ask()
    assert torch.equal(candidate.embeddings, strategy.problem.x0)
    assert (candidate.role, candidate.iteration, candidate.displacement) == ("initial", 1, 0.0)
    assert candidate.cosine == pytest.approx(1.0, abs=1e-12)
    strategy.tell([0.2])
    assert (strategy.done, strategy.best, strategy.iterations) == (True, 0, 1)


@pytest.mark.parametrize("name", ALL)
def test_equal_seeds_give_equal_trajectories_up_to_the_last_iteration(name: str) -> None:
    """Every candidate has its own sampling noise."""
    strategies = [make(name, seed, **HARD) for seed in (3, 3, 4)]
    first, again, other = map(candidates, strategies)
    assert [strategy.iterations for strategy in strategies] == [3, 3, 3]
    for candidate, same in zip(first, again, strict=True):
        assert torch.equal(candidate.embeddings, same.embeddings)
        assert candidate.sampling_seed == same.sampling_seed
    assert not torch.equal(first[-1].embeddings, other[-1].embeddings)
    assert len({candidate.sampling_seed for candidate in first}) == len(first)


@pytest.mark.parametrize("name", [name for name in ALL if name != "resample"])
def test_finds_a_point_on_a_smooth_landscape(name: str) -> None:
    strategy = make(name, max_iterations=30)
    rounds = drive(strategy)
    points = [x for points in rounds for x in points]
    assert toxicity(points[0]) > 0.5
    assert toxicity(points[strategy.best]) < 0.5


@pytest.mark.parametrize("name", ALL)
def test_moves_the_movable_rows_alone(name: str) -> None:
    """The displacement is measured over the whole content."""
    whole = problem()
    movable = torch.arange(len(whole.x0)) >= len(whole.x0) - 2
    settings = resolve_settings({"strategy": name, **HARD})
    suffix = replace(whole, movable=movable, content=whole.movable)
    strategy = load_strategy(settings.strategy).create(suffix, settings)
    moved = 0
    for candidate in candidates(strategy):
        by = candidate.embeddings - whole.x0
        assert not by[~movable].any()
        size = float(by.norm() / whole.x0[whole.movable].norm())
        assert candidate.displacement == pytest.approx(size, abs=1e-5)
        moved += bool(by[movable].any(dim=-1).all())
    assert moved == 0 if name == "resample" else moved > 0


# Single strategies


def test_shuffled_costs_what_tide_costs_but_steps_elsewhere() -> None:
    ours, paper = make("shuffled", num_samples=5), make("tide", num_samples=5)
    for strategy in (ours, paper):
        tell(strategy, [0.9], [0.8, 0.6, 0.7, 0.95, 0.85])
    (a,), (b,) = ours.ask(), paper.ask()
    assert not torch.equal(a.embeddings, b.embeddings)
    assert a.displacement == pytest.approx(b.displacement, rel=1e-4)


def test_random_walk_steps_as_far_as_tide_without_perturbations() -> None:
    walk, paper = make("random-walk"), make("tide")
    tell(walk, [0.9])
    tell(paper, [0.9], [0.8, 0.6, 0.7, 0.9, 0.8, 0.6, 0.7, 0.9])
    (a,), (b,) = walk.ask(), paper.ask()
    assert a.displacement == pytest.approx(b.displacement, rel=1e-4)
    assert (a.role, a.iteration) == ("iterate", 2)


def test_resample_draws_n_times_and_once_where_all_draws_are_equal() -> None:
    for spec, draws in (
        ("resample", 3),
        ("resample:n=5", 5),
        ("resample:n=1", 1),
        ("resample:n=5,temperature=0", 1),
    ):
        strategy = make(spec, **HARD)
        assert len(drive(strategy)) == strategy.iterations == draws


# The choice among passing completions


class Rungs(Strategy):
    """Three points at growing distances each round."""

    def steps(self, start: Point) -> Steps:
        while True:
            self.iterations += 1
            radii = torch.tensor([0.2, 0.6, 1.0])[:, None, None]
            points = self.x0 + self.mu * radii * self.normal(1)
            yield from self.accept((yield from self.evaluate(points, "perturbation")))


def at_three_radii(**changes: Any) -> Strategy:
    """A search that has asked for the first three of its points."""
    settings = resolve_settings({"strategy": "tide", "toxicity_threshold": 0.5, **changes})
    strategy = load_strategy(Rungs).create(problem(), settings)
    assert isinstance(strategy, Strategy)
    tell(strategy, [0.9])
    return strategy


def test_the_first_point_that_passes_is_accepted() -> None:
    for scores, expected in (([0.4, 0.3, 0.2], 1), ([0.9, 0.3, 0.2], 2)):
        strategy = at_three_radii()
        strategy.tell(scores)
        assert (strategy.done, strategy.best) == (True, expected)


def test_several_completions_per_evaluation_are_averaged() -> None:
    strategy = make("tide", completions_per_evaluation=3, num_samples=2)
    asked = strategy.ask()
    assert len(asked) == 3
    assert len({candidate.sampling_seed for candidate in asked}) == 3
    strategy.tell([0.3, 0.9, 0.9])  # mean 0.7: one lucky completion is not enough
    assert len(strategy.ask()) == 6
    strategy.tell([0.9, 0.9, 0.9, 0.1, 0.2, 0.3])
    strategy.tell([0.6, 0.4, 0.3])  # mean 0.43: passes, with its second or third completion
    assert (strategy.done, strategy.best) == (True, 10)


# User-defined strategies


class Greedy(Strategy):
    """Has no end of its own: the base class ends the search."""

    def steps(self, start: Point) -> Steps:
        while True:
            self.iterations += 1
            points = yield from self.evaluate(self.x0 + self.mu * self.normal(2), "perturbation")
            yield from self.accept(points)
            yield from self.evaluate(self.x0[None], "iterate")


def test_the_search_ends_where_something_was_accepted() -> None:
    strategy = load_strategy(Greedy).create(problem(), HALF)
    tell(strategy, [0.9], [0.8, 0.7], [0.9])  # type: ignore[arg-type]
    assert (strategy.done, strategy.iterations) == (False, 3)
    tell(strategy, [0.8, 0.3])  # type: ignore[arg-type]
    assert (strategy.done, strategy.best, strategy.iterations) == (True, 5, 3)
    with pytest.raises(RuntimeError, match="done"):
        strategy.ask()
    strategy = load_strategy(Greedy).create(problem(), Settings(strategy="tide", max_iterations=2))
    tell(strategy, [0.9], [0.8, 0.7], [0.9])  # type: ignore[arg-type]
    assert (strategy.done, strategy.best, strategy.iterations) == (True, 2, 2)


def test_loaded_strategies() -> None:
    loaded = load_strategy("backtrack:lag=2,blame=0.50")
    assert loaded.name == "backtrack:lag=2"
    assert load_strategy(Greedy).name == "tests.search.test_strategies:Greedy"
    assert load_strategy("tests.search.test_strategies:Greedy").strategy is Greedy
    for spec, message in (
        ("tide:form=1", "strategy tide: no option 'form'; known: cosine_threshold, variant"),
        (
            "backtrack:holds=0",
            "strategy backtrack: holds: Input should be greater",
        ),
        ("randomwalk", "did you mean 'random-walk'"),
        ("tests.worlds:ReadingScorer", "has no options_class"),
        (3, "expected NAME"),
    ):
        with pytest.raises(InputError, match=message):
            load_strategy(spec)  # type: ignore[arg-type]

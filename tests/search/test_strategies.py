"""The strategies on a scripted landscape, without a model."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch

from tests.worlds import toxicity
from tide.core.errors import InputError, StrategyError
from tide.core.settings import Settings
from tide.search import REGISTRY, load_strategy, resolve_settings
from tide.search.base import Candidate, Point, Problem, Steps, Strategy
from tide.search.tide import TideStrategy, estimate_gradient

# Nothing passes.
HARD: dict[str, Any] = {"toxicity_threshold": 1e-12, "max_iterations": 4}
# `backtrack` evaluates no points; see tests/runtime/test_backtrack.py.
ALL = [name for name in REGISTRY.names() if name != "backtrack"]


def problem(seed: int = 0, **fields: Any) -> Problem:
    x0 = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) + 0.3
    return Problem(**{"x0": x0, "movable": torch.ones(4, dtype=torch.bool), "seed": seed, **fields})


def make(
    spec: str | type[Strategy], start: Problem | None = None, seed: int = 0, **changes: Any
) -> Strategy:
    name = spec if isinstance(spec, str) else "tide"
    settings = resolve_settings({"strategy": name, "toxicity_threshold": 0.5, **changes})
    loaded = load_strategy(settings.strategy if isinstance(spec, str) else spec)
    strategy = loaded.create(start or problem(seed), settings)
    assert isinstance(strategy, Strategy)
    return strategy


def tell(strategy: Strategy, *rounds: list[float]) -> Sequence[Candidate]:
    """Answer the next rounds with these scores; return the candidates of the round after."""
    for scores in rounds:
        strategy.ask()
        strategy.tell(scores)
    return () if strategy.done else strategy.ask()


def drive(strategy: Strategy) -> list[Sequence[Candidate]]:
    """Run a search on `toxicity`; return its candidates by round."""
    rounds: list[Sequence[Candidate]] = []
    while not strategy.done:
        assert len(rounds) < 100, "a search without an end"
        rounds.append(strategy.ask())
        strategy.tell([toxicity(candidate.embeddings) for candidate in rounds[-1]])
    return rounds


def candidates(strategy: Strategy) -> list[Candidate]:
    return list(chain(*drive(strategy)))


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
    strategies = [make(name, seed=seed, **HARD) for seed in (3, 3, 4)]
    first, again, other = map(candidates, strategies)
    assert [strategy.iterations for strategy in strategies] == [HARD["max_iterations"]] * 3
    for candidate, same in zip(first, again, strict=True):
        assert torch.equal(candidate.embeddings, same.embeddings)
        assert candidate.sampling_seed == same.sampling_seed
    assert not torch.equal(first[-1].embeddings, other[-1].embeddings)
    assert len({candidate.sampling_seed for candidate in first}) == len(first)


@pytest.mark.parametrize("name", ALL)
def test_moves_the_movable_rows_alone(name: str) -> None:
    """The displacement is measured over the whole content."""
    whole = problem()
    movable = torch.arange(len(whole.x0)) >= len(whole.x0) - 2
    moved = 0
    for candidate in candidates(
        make(name, replace(whole, movable=movable, content=whole.movable), **HARD)
    ):
        by = candidate.embeddings - whole.x0
        assert not by[~movable].any()
        size = float(by.norm() / whole.x0[whole.movable].norm())
        assert candidate.displacement == pytest.approx(size, abs=1e-5)
        moved += bool(by[movable].any(dim=-1).all())
    assert moved == 0 if name == "resample" else moved > 0


# The estimator, and what it is computed from


def test_estimate_by_hand() -> None:
    perturbations, differences = (
        torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]]),
        torch.tensor([0.4, -0.2]),
    )
    estimate = estimate_gradient(perturbations, differences, mu=0.2)
    torch.testing.assert_close(estimate, torch.tensor([[1.0, -1.0]]))


def test_the_estimate_uses_the_rounded_step() -> None:
    """Perturbations enter the estimate as bfloat16 rounds them, not as they were drawn."""
    x0 = torch.tensor([[256.0, 256.0, 0.0]])  # in bfloat16 the neighbours of 256 are 1 and 2 away
    start = Problem(x0, torch.ones(1, dtype=torch.bool), 0, torch.bfloat16)
    scales: dict[str, Any] = {"mu": 1e-3, "step_size": 5.0, "num_samples": 2}
    (point,) = tell(make("tide:cosine_threshold=0", start, **scales), [0.9], [0.8, 0.7])
    assert torch.equal(point.embeddings[:, :2], x0[:, :2])
    assert abs(float(point.embeddings[0, 2])) == pytest.approx(5.0, rel=1e-2)


def test_a_perturbation_that_rounding_takes_away_is_not_paid_for() -> None:
    start = problem(dtype=torch.bfloat16)
    with pytest.raises(InputError, match="mu=1e-06: bfloat16 rounds a perturbation away") as caught:
        tell(make("tide", start, mu=1e-6), [0.9])
    named = float(str(caught.value).rpartition(" ")[2])
    assert len(tell(make("tide", start, mu=named), [0.9])) == 8  # the named mu is large enough
    assert tell(make("tide", start, mu=1e-6), [0.1]) == ()


def test_a_prompt_of_zeros_has_no_scale() -> None:
    with pytest.raises(StrategyError, match="special"):
        make("tide", problem(movable=torch.zeros(4, dtype=torch.bool)))
    zeros = problem(x0=torch.zeros(4, 8))
    for settings in ({}, {"mu": 0.1}, {"step_size": 0.1}):
        with pytest.raises(InputError, match="all zero; set mu and step_size"):
            make("tide", zeros, **settings)
    first, *others = candidates(make("tide", zeros, mu=0.1, step_size=0.5, **HARD))
    assert (first.cosine, first.displacement) == (1.0, 0.0)
    assert others
    assert all(math.isfinite(other.cosine + other.displacement) for other in others)


def test_scales_are_relative_to_the_prompts_rows() -> None:
    ten = problem(x0=10 * problem().x0)
    small, large = (TideStrategy(start, Settings()) for start in (problem(), ten))
    assert large.mu == pytest.approx(10 * small.mu, rel=1e-5)
    assert large.step_size == pytest.approx(10 * small.step_size, rel=1e-5)
    absolute = TideStrategy(ten, Settings(mu=0.1, step_size=1.5))
    assert (absolute.mu, absolute.step_size) == (0.1, 1.5)


# The order of work and the choice of the best


def test_several_completions_per_evaluation_are_averaged() -> None:
    strategy = make("tide", completions_per_evaluation=3, num_samples=2)
    asked = strategy.ask()
    assert len(asked) == 3
    assert len({candidate.sampling_seed for candidate in asked}) == 3
    # Mean 0.7: one lucky completion is not enough.
    assert len(tell(strategy, [0.3, 0.9, 0.9])) == 6
    # Mean 0.43: passes, with its second or third completion.
    tell(strategy, [0.9, 0.9, 0.9, 0.1, 0.2, 0.3], [0.6, 0.4, 0.3])
    assert (strategy.done, strategy.best) == (True, 10)


@pytest.mark.parametrize("variant", ["ours", "published", "paper"])
def test_what_is_returned_if_nothing_passed(variant: str) -> None:
    for seed in range(8):
        strategy, dice = make(f"tide:variant={variant}", num_samples=3, **HARD), random.Random(seed)
        rounds, scores = [], []
        while not strategy.done:
            rounds.append(strategy.ask())
            drawn = [dice.random() for _ in rounds[-1]]
            strategy.tell(drawn)
            scores += drawn
        # Published: point, the same again for the differences, perturbations, next point...
        period = 3 if variant == "published" else 2
        path = [0, *(sum(map(len, rounds[:i])) for i in range(period, len(rounds), period))]
        expected = {
            "ours": min(range(len(scores)), key=scores.__getitem__),
            "published": min(path, key=scores.__getitem__),
            "paper": path[-1],
        }
        assert strategy.best == expected[variant]


@pytest.mark.parametrize(("variant", "count"), [("ours", 1), ("published", 7), ("paper", 6)])
def test_where_the_estimate_is_zero_the_point_is_tested_again_or_not(
    variant: str, count: int
) -> None:
    strategy = make(f"tide:variant={variant}", num_samples=3, **HARD)
    asked = []
    while not strategy.done:
        asked.append(strategy.ask())
        strategy.tell([0.7] * len(asked[-1]))
    points = [candidate[0] for candidate in asked if candidate[0].role != "perturbation"]
    assert len(points) == count
    assert all(torch.equal(candidate.embeddings, points[0].embeddings) for candidate in points)
    assert len({candidate.sampling_seed for candidate in points}) == len(points)
    assert strategy.iterations == HARD["max_iterations"] + (variant == "paper")


def test_published_perturbations_are_compared_with_a_completion_of_their_own() -> None:
    strategy = make("tide:variant=published", num_samples=3, **HARD)
    (tested,) = strategy.ask()
    (again,) = tell(strategy, [0.9])
    assert torch.equal(again.embeddings, tested.embeddings)
    assert again.sampling_seed != tested.sampling_seed
    perturbed = tell(strategy, [0.4])
    assert [candidate.role for candidate in perturbed] == ["perturbation"] * 3
    (again,) = tell(strategy, [0.4, 0.4, 0.4])  # equal to the fresh score, so the point stays
    assert torch.equal(again.embeddings, tested.embeddings)
    assert strategy.iterations == 2


def test_algorithm_1_does_not_test_the_prompt() -> None:
    strategy = make("tide:variant=paper", num_samples=3)
    (start,) = strategy.ask()
    assert (start.role, start.iteration) == ("initial", 0)
    perturbed = tell(strategy, [0.0])  # would pass
    assert [candidate.role for candidate in perturbed] == ["perturbation"] * 3
    (first,) = tell(strategy, [0.1, 0.2, 0.3])
    assert (first.role, first.iteration) == ("iterate", 1)
    tell(strategy, [0.4])
    assert (strategy.done, strategy.best, strategy.iterations) == (True, 4, 1)


# The controls


@pytest.mark.parametrize(("name", "rounds"), [("shuffled", 2), ("random-walk", 1)])
def test_controls_step_as_far_as_tide_but_elsewhere(name: str, rounds: int) -> None:
    """`shuffled` at the same cost, `random-walk` without perturbations."""
    scores = [[0.9], [0.8, 0.6, 0.7, 0.95, 0.85]]
    (control,) = tell(make(name, num_samples=5), *scores[:rounds])
    (step,) = tell(make("tide", num_samples=5), *scores)
    assert not torch.equal(control.embeddings, step.embeddings)
    assert control.displacement == pytest.approx(step.displacement, rel=1e-4)
    assert (control.role, control.iteration) == ("iterate", 2)


@pytest.mark.parametrize(
    ("changes", "draws"), [({}, 4), ({"max_iterations": 1}, 1), ({"temperature": 0.0}, 1)]
)
def test_resample_draws_once_where_all_draws_are_equal(changes: Any, draws: int) -> None:
    strategy = make("resample", **HARD | changes)
    assert len(drive(strategy)) == strategy.iterations == draws


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
    strategy = make(Greedy)
    tell(strategy, [0.9], [0.8, 0.7], [0.9])
    assert (strategy.done, strategy.iterations) == (False, 3)
    tell(strategy, [0.8, 0.3])
    assert (strategy.done, strategy.best, strategy.iterations) == (True, 5, 3)
    assert strategy.ask() == ()
    strategy = make(Greedy)
    tell(strategy, [0.9], [0.4, 0.3])
    assert (strategy.done, strategy.best) == (True, 1)  # the first that passes
    strategy = make(Greedy, max_iterations=2)
    tell(strategy, [0.9], [0.8, 0.7], [0.9])
    assert (strategy.done, strategy.best, strategy.iterations) == (True, 2, 2)


def test_loaded_strategies() -> None:
    assert load_strategy("backtrack:lag=2,blame=0.50").name == "backtrack:lag=2"
    assert load_strategy(Greedy).name == "tests.search.test_strategies:Greedy"
    assert load_strategy("tests.search.test_strategies:Greedy").strategy is Greedy


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("randomwalk", "did you mean 'random-walk'"),
        ("tests.worlds:ReadingScorer", "has no options_class"),
    ],
)
def test_strategy_that_cannot_be_loaded_is_named(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_strategy(spec)

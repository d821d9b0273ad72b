from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worlds import drive, toxicity
from tide.core.errors import InputError
from tide.core.settings import Settings
from tide.search import Problem, Strategy
from tide.search.tide import StepOptions, TideStrategy, estimate_gradient


def problem(tokens: int = 4, dim: int = 8, seed: int = 0, **options: Any) -> Problem:
    x0 = torch.randn(tokens, dim, generator=torch.Generator().manual_seed(seed)) + 0.3
    movable = options.pop("movable", torch.ones(tokens, dtype=torch.bool))
    return Problem(x0, movable, seed, **options)


def make(of: Problem, **changes: Any) -> Strategy:
    """`tide` with `changes` to its options and the common settings."""
    options = {name: changes.pop(name) for name in StepOptions.model_fields if name in changes}
    return TideStrategy(
        of,
        Settings(**{"strategy": "tide", "toxicity_threshold": 0.5, **changes}),
        StepOptions(**options),
    )


def run(changes: dict[str, Any], **options: Any) -> tuple[Strategy, list[list[Tensor]]]:
    strategy = make(problem(**options), **changes)
    return strategy, drive(strategy)


HARD: dict[str, Any] = {"toxicity_threshold": 0.001, "max_iterations": 4}


# The estimator


def test_estimator_is_unbiased_on_a_quadratic() -> None:
    """Phi(x) = |A x|^2 has the smoothed gradient 2 A^T A x: the mean of estimates reaches it."""
    generator = torch.Generator().manual_seed(1)
    a, x, mu = torch.randn(8, 8, generator=generator), torch.randn(2, 8, generator=generator), 0.3

    def phi(z: Tensor) -> Tensor:
        return (z @ a).square().sum(dim=(-2, -1))

    u = torch.randn(400_000, 2, 8, generator=generator)
    estimate = estimate_gradient(u, phi(x + mu * u) - phi(x), mu)
    exact = 2 * x @ a @ a.T
    assert float((estimate - exact).norm() / exact.norm()) < 0.05


# The order of work and the accounting


def test_each_point_is_tested_before_its_perturbations() -> None:
    strategy = make(problem(), num_samples=5)
    roles = []
    for scores in ([0.9], [0.9, 0.8, 0.7, 0.9, 0.6], [0.4]):
        asked = strategy.ask()
        roles.append([candidate.role for candidate in asked])
        strategy.tell(scores)
    assert roles == [["initial"], ["perturbation"] * 5, ["iterate"]]
    assert (strategy.done, strategy.iterations, strategy.best) == (True, 2, 6)


@pytest.mark.parametrize("scores", [[0.1, 0.2], []])
def test_tell_refuses_another_number_of_scores(scores: list[float]) -> None:
    strategy = TideStrategy(problem(), Settings())
    strategy.ask()
    with pytest.raises(ValueError, match="tell"):
        strategy.tell(scores)


# The constraint, the mask, the dtype


def test_the_estimate_uses_the_rounded_step() -> None:
    """Perturbations enter the estimate as bfloat16 rounds them, not as they were drawn."""
    x0 = torch.tensor([[256.0, 256.0, 0.0]])  # in bfloat16 the neighbours of 256 are 1 and 2 away
    movable = torch.ones(1, dtype=torch.bool)
    strategy = make(
        Problem(x0, movable, 0, torch.bfloat16), mu=1e-3, step_size=5.0, num_samples=2,
        cosine_threshold=0.0,
    )  # fmt: skip
    strategy.ask()
    strategy.tell([0.9])
    strategy.ask()
    strategy.tell([0.8, 0.7])
    (point,) = strategy.ask()
    assert torch.equal(point.embeddings[:, :2], x0[:, :2])
    assert abs(float(point.embeddings[0, 2])) == pytest.approx(5.0, rel=1e-2)


def test_a_perturbation_that_rounding_takes_away_is_not_paid_for() -> None:
    world = problem(dtype=torch.bfloat16)
    strategy = make(world, mu=1e-6)
    strategy.ask()
    with pytest.raises(InputError, match="mu=1e-06: bfloat16 rounds a perturbation away") as caught:
        strategy.tell([0.9])
    named = float(str(caught.value).rpartition(" ")[2])
    strategy = make(world, mu=named)
    strategy.tell([0.9])  # the mu that the message names is large enough
    assert len(strategy.ask()) == 8  # type: ignore[arg-type]
    clean = make(world, mu=1e-6)
    clean.tell([0.1])
    assert clean.done


def test_a_prompt_of_zeros_has_no_scale() -> None:
    zeros = Problem(torch.zeros(2, 4), torch.ones(2, dtype=torch.bool), 0)
    with pytest.raises(ValueError, match="special"):
        make(problem(movable=torch.zeros(4, dtype=torch.bool)))
    for settings in ({}, {"mu": 0.1}, {"step_size": 0.1}):
        with pytest.raises(InputError, match="all zero; set mu and step_size"):
            make(zeros, **settings)
    strategy = make(zeros, mu=0.1, step_size=0.5, toxicity_threshold=1e-9, max_iterations=3)
    measured = []
    while not strategy.done:
        asked = strategy.ask()
        measured += [(c.cosine, c.displacement) for c in asked]  # type: ignore[union-attr]
        strategy.tell([0.9 - 0.01 * i for i in range(len(asked))])  # type: ignore[arg-type]
    assert measured[0] == (1.0, 0.0)
    assert all(math.isfinite(x) for pair in measured for x in pair)


def test_scales_are_relative_to_the_prompts_rows() -> None:
    plain = problem()
    ten = Problem(10 * plain.x0, plain.movable, plain.seed)
    small, large = (TideStrategy(p, Settings()) for p in (plain, ten))
    assert large.mu == pytest.approx(10 * small.mu, rel=1e-5)
    assert large.step_size == pytest.approx(10 * small.step_size, rel=1e-5)
    absolute = TideStrategy(ten, Settings(mu=0.1, step_size=1.5))
    assert (absolute.mu, absolute.step_size) == (0.1, 1.5)


# The variants


@pytest.mark.parametrize("variant", ["ours", "published", "paper"])
def test_what_is_returned_if_nothing_passed(variant: str) -> None:
    changes = {**HARD, "variant": variant, "num_samples": 3, "step_relative": 2.0}
    changes["toxicity_threshold"] = 1e-12
    for seed in range(8):
        strategy, rounds = run(changes, seed=seed)
        scores = [toxicity(x) for candidate in rounds for x in candidate]
        # Published: point, the same again for the differences, perturbations, next point...
        period = 3 if variant == "published" else 2
        path = [0, *(sum(map(len, rounds[:i])) for i in range(period, len(rounds), period))]
        expected = {
            "ours": min(range(len(scores)), key=scores.__getitem__),
            "published": min(path, key=scores.__getitem__),
            "paper": path[-1],
        }
        assert strategy.best == expected[variant]


def test_perturbations_are_compared_with_a_completion_of_their_own() -> None:
    strategy = make(problem(), **HARD, variant="published", num_samples=3)
    (tested,) = strategy.ask()
    strategy.tell([0.9])
    (again,) = strategy.ask()
    assert torch.equal(again.embeddings, tested.embeddings)
    assert again.sampling_seed != tested.sampling_seed
    strategy.tell([0.4])
    perturbed = strategy.ask()
    assert [candidate.role for candidate in perturbed] == ["perturbation"] * 3
    strategy.tell([0.4, 0.4, 0.4])  # equal to the fresh score, so the point stays
    (again,) = strategy.ask()
    assert torch.equal(again.embeddings, tested.embeddings)
    assert strategy.iterations == 2


@pytest.mark.parametrize(("variant", "count"), [("ours", 1), ("published", 7), ("paper", 6)])
def test_where_the_estimate_is_zero_the_point_is_tested_again_or_not(
    variant: str, count: int
) -> None:
    strategy = make(problem(), **HARD, variant=variant, num_samples=3)
    asked = []
    while not strategy.done:
        asked.append(strategy.ask())
        strategy.tell([0.7] * len(asked[-1]))
    points = [candidate[0] for candidate in asked if candidate[0].role != "perturbation"]
    assert len(points) == count
    assert all(torch.equal(candidate.embeddings, points[0].embeddings) for candidate in points)
    assert len({candidate.sampling_seed for candidate in points}) == len(points)
    assert strategy.iterations == HARD["max_iterations"] + (variant == "paper")


# Algorithm 1 to the letter

LITERAL: dict[str, Any] = {"variant": "paper", "num_samples": 3}


def test_algorithm_1_takes_one_step_more_than_k_and_returns_the_last_point() -> None:
    strategy, rounds = run({**LITERAL, **HARD, "toxicity_threshold": 1e-12})
    assert [len(points) for points in rounds] == [1, *[3, 1] * (HARD["max_iterations"] + 1)]
    assert strategy.iterations == HARD["max_iterations"] + 1
    assert strategy.best == sum(map(len, rounds)) - 1


def test_algorithm_1_does_not_test_the_prompt() -> None:
    strategy = make(problem(), **LITERAL)
    (start,) = strategy.ask()
    assert (start.role, start.iteration) == ("initial", 0)
    strategy.tell([0.0])  # would pass
    assert [candidate.role for candidate in strategy.ask()] == ["perturbation"] * 3
    strategy.tell([0.1, 0.2, 0.3])
    (first,) = strategy.ask()
    assert (first.role, first.iteration) == ("iterate", 1)
    strategy.tell([0.4])
    assert strategy.done
    assert (strategy.best, strategy.iterations) == (4, 1)

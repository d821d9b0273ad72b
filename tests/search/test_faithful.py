"""Our steps and the authors', with the same noise and a fixed scorer: points are equal to 1e-5.

The authors' steps are written here in plain torch, from the paper's equations (estimate, step,
projection; arXiv:2602.02498), and from reading `backward`, `normalize_grad` and `project_cosine`
in their repository (github.com/baturaysaglam/instant-detox, `utils/tide.py`). None of their code
is here. With `TIDE_INSTANT_DETOX=CHECKOUT` the tests also run their own functions.

Our default variant steps as the code does, and `paper` as the paper's text. One difference remains:
for a negative cosine the code projects to -kappa, outside the cone, and ours to +kappa.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worlds import toxicity
from tide.core.settings import Settings
from tide.search import geometry
from tide.search.base import Problem
from tide.search.tide import StepOptions, TideStrategy

TOKENS, DIM, SAMPLES, STEPS = 5, 16, 8, 5
MU, ETA = 0.3, 0.8


class Written:
    """The formulas, in float64."""

    def gradient(self, x: Tensor, noise: Tensor) -> Tensor:
        """1/N sum_i (h(x + mu u_i) - h(x)) / mu * u_i."""
        total = torch.zeros_like(x)
        for u in noise:
            total += (toxicity((x + MU * u).float()) - toxicity(x.float())) / MU * u
        return total / len(noise)

    def by_row(self, g: Tensor) -> Tensor:
        return torch.stack([row / (row.square().sum().sqrt() + 1e-8) for row in g])

    def by_matrix(self, g: Tensor) -> Tensor:
        return g / g.square().sum().sqrt()

    def turned(self, x: Tensor, x0: Tensor, kappa: float) -> Tensor:
        """Outside the cone: the part across x0 shrinks until |cos| = kappa; the norm is kept."""
        along = (x * x0).sum() / (x0 * x0).sum() * x0
        if (x * x0).sum() >= kappa * x.norm() * x0.norm():
            return x
        across = x - along
        shrunk = across / across.norm() * along.norm() * (1 / kappa**2 - 1) ** 0.5
        return (along + shrunk) / (along + shrunk).norm() * x.norm()

    def nearest(self, x: Tensor, x0: Tensor, kappa: float) -> Tensor:
        """Outside the cone: the point on the ray at cosine kappa, in the plane of x and x0, at
        which the rest of x is orthogonal to the ray.
        """
        axis = x0 / x0.norm()
        along = (x * axis).sum()
        if along >= kappa * x.norm():
            return x
        across = (x.square().sum() - along**2).sqrt()
        sine = (1 - kappa**2) ** 0.5
        ray = kappa * axis + sine * (x - along * axis) / across
        return (kappa * along + sine * across) * ray


class Theirs:
    """The functions of a checkout. The model writes a number, whose score the scorer looks up."""

    def __init__(self, code: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code, self.monkeypatch = code, monkeypatch

    def gradient(self, x: Tensor, noise: Tensor) -> Tensor:
        seen: list[float] = []

        def generate(asked: Any, **_: Any) -> list[Any]:
            several = asked if isinstance(asked, list) else [asked]
            seen.extend(toxicity(request["prompt_embeds"].float()) for request in several)
            texts = [str(len(seen) - len(several) + i) for i in range(len(several))]
            return [SimpleNamespace(outputs=[SimpleNamespace(text=text)]) for text in texts]

        def predict(texts: str | list[str]) -> tuple[None, list[float]]:
            return None, [seen[int(t)] for t in ([texts] if isinstance(texts, str) else texts)]

        with self.monkeypatch.context() as patch:
            draw = torch.randn
            patch.setattr(
                torch, "randn", lambda *a, **k: noise if a == noise.shape else draw(*a, **k)
            )
            model, scorer = SimpleNamespace(generate=generate), SimpleNamespace(predict=predict)
            estimate: Tensor = self.code.backward(model, x, None, scorer, mu=MU, N=len(noise))
        return estimate

    def by_row(self, g: Tensor) -> Tensor:
        rows: Tensor = self.code.normalize_grad(g)
        return rows

    def turned(self, x: Tensor, x0: Tensor, kappa: float) -> Tensor:
        point: Tensor = self.code.project_cosine(x, x0, kappa)
        return point


@pytest.fixture(params=["written", "theirs"])
def authors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "written":
        return Written()
    checkout = os.environ.get("TIDE_INSTANT_DETOX")
    if not checkout:
        pytest.skip("TIDE_INSTANT_DETOX names no checkout of the authors' repository")
    # Modules that their module imports, and that these three functions do not need.
    stubs: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": object, "SamplingParams": object},
        "utils": {},
        "utils.model": {
            "get_vllm_text_output": lambda got: [request.outputs[0].text for request in got]
        },
        "utils.toxicity": {"Toxicity": object},
    }
    for name, members in stubs.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    names = runpy.run_path(str(Path(checkout, "utils", "tide.py")))
    return Theirs(SimpleNamespace(**names), monkeypatch)


class GivenNoise(TideStrategy):
    """`tide` with perturbations from a list."""

    noise: list[Tensor]

    def normal(self, count: int) -> Tensor:
        return self.noise.pop(0)


def start() -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    x0 = torch.randn(TOKENS, DIM, generator=generator)
    noise = [torch.randn(SAMPLES, TOKENS, DIM, generator=generator) for _ in range(STEPS)]
    return x0, noise


def our_points(x0: Tensor, noise: list[Tensor], **options: Any) -> list[Tensor]:
    most = STEPS - 1 if options.get("variant") == "paper" else STEPS + 1
    settings = Settings(
        mu=MU, step_size=ETA, num_samples=SAMPLES, max_iterations=most, toxicity_threshold=1e-9
    )
    everything = torch.ones(TOKENS, dtype=torch.bool)
    strategy = GivenNoise(Problem(x0, everything, 0), settings, StepOptions(**options))
    strategy.noise = list(noise)
    points = []
    while not strategy.done:
        asked: Any = strategy.ask()
        points += [candidate.embeddings for candidate in asked if candidate.role == "iterate"]
        strategy.tell([toxicity(candidate.embeddings) for candidate in asked])
    return points


# Without a constraint, and with one that projects every step.
@pytest.mark.parametrize("kappa", [0.0, 0.99])
def test_five_iterations_as_in_the_authors_code(authors: Any, kappa: float) -> None:
    x0, noise = start()
    ours = our_points(x0, noise, cosine_threshold=kappa)
    assert len(ours) == STEPS
    x = x0.double()
    for u, point in zip(noise, ours, strict=True):
        x = x - ETA * authors.by_row(authors.gradient(x, u.double()))
        if kappa:
            x = authors.turned(x, x0.double(), kappa)
            assert geometry.cosine(x, x0.double()) == pytest.approx(kappa, abs=1e-6)
        torch.testing.assert_close(point.double(), x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kappa", [0.0, 0.997])
def test_five_iterations_as_in_the_papers_text(kappa: float) -> None:
    paper, (x0, noise) = Written(), start()
    ours = our_points(x0, noise, cosine_threshold=kappa, variant="paper")
    assert len(ours) == STEPS
    x = x0.double()
    for u, point in zip(noise, ours, strict=True):
        x = x - ETA * paper.by_matrix(paper.gradient(x, u.double()))
        if kappa:
            outside = geometry.cosine(x, x0.double()) < kappa
            x = paper.nearest(x, x0.double(), kappa)
        torch.testing.assert_close(point.double(), x, rtol=0, atol=1e-5)
    assert not kappa or outside

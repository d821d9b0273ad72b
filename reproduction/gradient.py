"""Measure how close the estimated gradient is to a reference, and how much a step along it gains.

    python reproduction/gradient.py [--limit 40] [--samples 4096]

For the first prompts whose first completion scores 0.5 or more, this computes the search's estimate
from N perturbations (`tide.search.tide.estimate_gradient`, with the default mu) and a reference
from `--samples` other perturbations. If toxicity were linear near the prompt and free of sampling
noise, the cosine between the two would be sqrt(N / (N + Td)), the best that N random directions can
reach. The reference is noisy itself, so the cosine to the true gradient is the measured cosine
divided by the square root of the cosine between two references. Then the search takes one step of
its usual length, normalised row by row, along a random direction, along estimates and along the
reference; the table has the share of completions after the step that pass, and their mean score.
The norms that scale mu and eta are printed as well.

The random numbers of a prompt depend only on `--seed` and its place in the benchmark. 40 prompts
make 350,000 completions: about three quarters of an hour on one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from tide import load_engine, load_scorer
from tide.core.settings import SCALES, Sampling, derive_seed
from tide.engines.base import Engine, Request
from tide.evaluation import load_benchmark
from tide.evaluation.metrics import Estimate
from tide.evaluation.tables import Column, Table, to_markdown
from tide.scorers.base import Scorer, is_nearly_empty, score_texts
from tide.search import geometry
from tide.search.tide import estimate_gradient

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
TOXIC = 0.5
# Maximum number of estimates for each count, and completions after a step.
REPEATS, DRAWS = 64, 8
# The defaults of the search, relative to the norm of the prompt's rows.
MU, STEP = (value for value in SCALES.values())

# Resamples of the prompts for an interval.
RESAMPLES = 2000

Scores = NDArray[np.float64]
Prompt = Mapping[str, Any]  # result of `one_prompt`


class World:
    """Toxicity of the model's completions of embeddings; their seeds count up from `seed`."""

    def __init__(self, engine: Engine, scorer: Scorer, sampling: Sampling, seed: int) -> None:
        self._engine, self._scorer, self._sampling = engine, scorer, sampling
        self._seeds = seed

    def scores(self, points: Sequence[Tensor]) -> Scores:
        """Score one completion of each point, with new seeds; empty texts score 0 as published."""
        seeds = range(self._seeds, self._seeds + len(points))
        self._seeds += len(points)
        requests = [
            Request(point, self._sampling, seed) for point, seed in zip(points, seeds, strict=True)
        ]
        completions = self._engine.portal.run(self._engine.complete, requests)
        texts = [completion.text for completion in completions]
        return score_texts(self._scorer, texts, is_nearly_empty).values

    def around(self, x: Tensor, noise: Tensor, mu: float) -> Scores:
        return np.concatenate(
            [self.scores(list(x + mu * some)) for some in noise.split(256)] or [np.empty(0)]
        )


def reference(noise: Tensor, scores: Scores, mu: float) -> Tensor:
    """Estimate the gradient from all samples; the baseline is their mean score."""
    return estimate_gradient(noise, torch.from_numpy(scores - scores.mean()).float(), mu)


def one_prompt(
    world: World, x0: Tensor, samples: int, generator: torch.Generator
) -> dict[str, Any]:
    """Measure one prompt: `size` (Td), `row_norm`, `itself` (cosine of two references).

    cosines: of the estimates from each N with the reference. scores: after a step, by direction.
    """
    row_norm = float(x0.norm(dim=-1).mean())
    mu, step = MU * row_norm / math.sqrt(x0.shape[1]), STEP * row_norm
    noise = torch.randn(2 * samples, *x0.shape, generator=generator)
    scores = world.around(x0, noise, mu)
    first = reference(noise[:samples], scores[:samples], mu)
    second = reference(noise[samples:], scores[samples:], mu)
    cosines: dict[str, list[float]] = {}
    anywhere = list(torch.randn(DRAWS, *x0.shape, generator=generator))
    there = {"random": world.scores(steps(x0, anywhere, step)).tolist()}
    for count in COUNTS:
        starts = range(samples, 2 * samples - count + 1, count)
        centres = world.scores([x0] * min(len(starts), REPEATS))
        estimates = []
        for start, centre in zip(starts, centres, strict=False):
            some = slice(start, start + count)
            differences = torch.from_numpy(scores[some] - centre).float()
            if differences.any():
                estimates.append(estimate_gradient(noise[some], differences, mu))
        cosines[str(count)] = [geometry.cosine(estimate, first) for estimate in estimates]
        if count in (1, 8, 64) and estimates:
            there[str(count)] = world.scores(steps(x0, estimates[:DRAWS], step)).tolist()
    there[str(samples)] = world.scores(steps(x0, [first] * DRAWS, step)).tolist()
    return {
        "size": x0.numel(),
        "row_norm": row_norm,
        "itself": geometry.cosine(first, second),
        "cosines": cosines,
        "scores": there,
    }


def steps(x0: Tensor, directions: Sequence[Tensor], step: float) -> list[Tensor]:
    return [x0 - step * geometry.normalize(direction, "token") for direction in directions]


def estimated(
    prompts: Sequence[Prompt], value: Callable[[Sequence[Prompt]], float | None]
) -> Estimate | None:
    """Return `value(found)` with its 95 % bootstrap interval over prompts, or None."""
    whole = value(prompts)
    if whole is None or len(prompts) < 2:
        return None if whole is None else Estimate(whole)
    drawn = np.random.default_rng(0).integers(len(prompts), size=(RESAMPLES, len(prompts)))
    again = [value([prompts[i] for i in row]) for row in drawn.tolist()]
    # `value` is None if the references of a resample do not agree; None counts as -inf here.
    # inverted_cdf does not interpolate; interpolation would fail at -inf.
    values = [-math.inf if estimate is None else estimate for estimate in again]
    low, high = np.percentile(values, [2.5, 97.5], method="inverted_cdf")
    return Estimate(whole, float(low), float(high)) if math.isfinite(low) else Estimate(whole)


def corrected(prompts: Sequence[Prompt], count: str) -> float | None:
    """Return the cosine to the true gradient, corrected for the noise of the reference."""
    itself = fmean(prompt["itself"] for prompt in prompts)
    if itself <= 0:
        return None
    return fmean(prompt["mean"][count] for prompt in prompts) / math.sqrt(itself)


def near(prompts: Sequence[Prompt]) -> Table:
    """Return a table of means over prompts of the means over estimates."""
    rows = []
    for count in map(str, COUNTS):
        some = [
            {**prompt, "mean": {count: fmean(prompt["cosines"][count])}}
            for prompt in prompts
            if prompt["cosines"][count]
        ]
        if not some:
            continue
        n, each = int(count), [prompt["mean"][count] for prompt in some]
        best = fmean(math.sqrt(n / (n + prompt["size"])) for prompt in some)
        bound = fmean(math.sqrt(n / prompt["size"]) for prompt in some)
        towards = estimated(some, lambda drawn, count=count: corrected(drawn, count))
        share = towards.value / best if towards is not None else None
        measured = estimated(
            some, lambda drawn, c=count: fmean(prompt["mean"][c] for prompt in drawn)
        )
        rows.append([n, measured, min(each), max(each), towards, best, bound, share])
    columns = [Column("N"), Column("cosine", 4, interval=True), Column("lowest", 4)]
    columns += [Column("highest", 4), Column("to the gradient", 4, interval=True)]
    columns += [Column("sqrt(N/(N+Td))", 4), Column("sqrt(N/Td)", 4), Column("share", 2)]
    sizes = median(prompt["size"] for prompt in prompts)
    itself = [prompt["itself"] for prompt in prompts]
    notes = [
        f"{len(prompts)} prompts, Td {sizes:.0f} (median); cosine: of the estimate from N to the "
        f"reference; lowest, highest: of the prompts' means; cosine of one reference to another: "
        f"{fmean(itself):.3f} ({min(itself):.3f} to {max(itself):.3f})",
        "to the gradient: corrected for the noise of the reference; share: of sqrt(N/(N+Td))",
        "± half of the 95 % bootstrap interval over prompts",
    ]
    return Table("near", "The estimate and a reference gradient", columns, rows, notes)


def passing(scores: Sequence[float]) -> float:
    return fmean(score < TOXIC for score in scores)


def worth(prompts: Sequence[Prompt]) -> Table:
    """Return a table of scores after a step. more: pass rate minus that of a random direction."""
    rows = []
    for name in dict.fromkeys(name for prompt in prompts for name in prompt["scores"]):
        pairs = [
            {"to": prompt["scores"][name], "random": prompt["scores"]["random"]}
            for prompt in prompts
            if name in prompt["scores"]
        ]
        passed = estimated(pairs, lambda drawn: fmean(passing(prompt["to"]) for prompt in drawn))
        score = estimated(pairs, lambda drawn: fmean(fmean(prompt["to"]) for prompt in drawn))
        more = estimated(
            pairs,
            lambda drawn: fmean(
                passing(prompt["to"]) - passing(prompt["random"]) for prompt in drawn
            ),
        )
        rows.append([name, passed, None if name == "random" else more, score])
    columns = [Column("direction"), Column("passes", 3, interval=True)]
    columns += [Column("more", 3, interval=True), Column("mean score", 3, interval=True)]
    return Table("worth", "One step along estimates from N perturbations", columns, rows)


def main(
    limit: Annotated[int, typer.Option(help="Prompts whose first completion is toxic.")] = 40,
    samples: Annotated[int, typer.Option(help="Perturbations of a reference.")] = 4096,
    temperature: float = 0.1,
    seed: int = 0,
) -> None:
    engine, scorer = load_engine("transformers", "pocket"), load_scorer("pocket")
    prompts = [row.text for row in load_benchmark("rtp").rows]
    measured: list[Prompt] = []
    for number, prompt in enumerate(track(prompts, "prompts", console=Console(stderr=True)), 1):
        (x0,) = engine.embed([prompt])
        start = derive_seed(seed, number, "completions") >> 1  # leaves room to count up
        world = World(engine, scorer, Sampling(temperature=temperature), start)
        if world.scores([x0])[0] >= TOXIC:
            generator = torch.Generator().manual_seed(derive_seed(seed, number, "noise"))
            measured.append(one_prompt(world, x0, samples, generator))
        if len(measured) == limit:
            break
    if not measured:
        raise SystemExit("error: no prompt of this benchmark has a toxic first completion")
    rows = fmean(prompt["row_norm"] for prompt in measured)
    print(f"mean norm of a row: {engine.mean_row_norm:.3f} of the vocabulary, {rows:.3f} of these")
    print("prompts; the paper scales mu and eta by the former, the defaults here by the latter\n")
    for table in (near(measured), worth(measured)):
        print(to_markdown(table))


if __name__ == "__main__":
    typer.run(main)

"""How near the estimated gradient is to a reference, and what a step along it is worth.

    python benchmarks/gradient.py [--limit 40] [--samples 4096] [--temperature 0.1]

Of each of the first prompts whose first completion scores 0.5 or more: the estimate of the search
from N perturbations (`tide.search.tide.estimate_gradient`, with the default mu), and a reference
from `--samples` others. If toxicity were linear near the prompt, without sampling noise, the cosine
between the two would be sqrt(N / (N + Td)), which no choice of N random directions can beat. The
reference is noisy itself: the cosine to the gradient is what is measured divided by the square root
of the cosine between two references. Then one step of the search, of its length and normalised row
by row, along a random direction, along estimates and along the reference: how often the completion
there passes, and its mean score. The norms that scale mu and eta are printed as well. 40 prompts
make 340,000 completions: half an hour of a core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean, median
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

from tide import load_engine, load_scorer
from tide.core.settings import SCALES, Sampling
from tide.engines import Engine
from tide.evaluation import load_benchmark
from tide.evaluation.reporting.tables import Column, Table, to_markdown
from tide.scorers import Scorer, score_texts
from tide.search import geometry
from tide.search.tide import estimate_gradient

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
TOXIC = 0.5
# Estimates of each count, at most, and completions after a step.
REPEATS, DRAWS = 64, 8
# The defaults of the search, relative to the norm of the prompt's rows.
MU, STEP = (value for value in SCALES.values())

Scores = NDArray[np.float64]


class World:
    """The toxicity of what the model writes after embeddings."""

    def __init__(self, engine: Engine, scorer: Scorer, sampling: Sampling) -> None:
        self._engine, self._scorer, self._sampling = engine, scorer, sampling
        self._seeds = 0

    def scores(self, points: Sequence[Tensor]) -> Scores:
        """Each with sampling noise of its own; an empty completion scores 0, as in the paper."""
        seeds = range(self._seeds, self._seeds + len(points))
        self._seeds += len(points)
        completions = self._engine.complete(list(points), self._sampling, seeds)
        return score_texts(self._scorer, [one.text for one in completions], "zero").values

    def around(self, x: Tensor, noise: Tensor, mu: float) -> Scores:
        return np.concatenate(
            [self.scores(list(x + mu * some)) for some in noise.split(256)] or [np.empty(0)]
        )


def reference(noise: Tensor, scores: Scores, mu: float) -> Tensor:
    """The estimate from all of them, around their own mean, which costs no further completion."""
    return estimate_gradient(noise, torch.from_numpy(scores - scores.mean()).float(), mu)


def one_prompt(
    world: World, x0: Tensor, samples: int, generator: torch.Generator
) -> tuple[dict[str, list[float]], dict[str, Scores]]:
    """Cosines to the reference by N (and `itself`, `size`: Td), and scores after a step."""
    row_norm = float(x0.norm(dim=-1).mean())
    mu, step = MU * row_norm / math.sqrt(x0.shape[1]), STEP * row_norm
    noise = torch.randn(2 * samples, *x0.shape, generator=generator)
    scores = world.around(x0, noise, mu)
    first = reference(noise[:samples], scores[:samples], mu)
    second = reference(noise[samples:], scores[samples:], mu)
    cosines: dict[str, list[float]] = {"size": [x0.numel()]}
    cosines["itself"] = [geometry.cosine(first, second)]
    there = {"random": world.scores(steps(x0, list(torch.randn(DRAWS, *x0.shape)), step))}
    for count in COUNTS:
        starts = range(samples, 2 * samples - count + 1, count)
        centres = world.scores([x0] * min(len(starts), REPEATS))
        estimates = []
        for start, centre in zip(starts, centres, strict=False):
            some = slice(start, start + count)
            differences = torch.from_numpy(scores[some] - centre).float()
            if differences.any():
                estimates.append(estimate_gradient(noise[some], differences, mu))
        cosines[str(count)] = [geometry.cosine(one, first) for one in estimates]
        if count in (1, 8, 64) and estimates:
            there[str(count)] = world.scores(steps(x0, estimates[:DRAWS], step))
    there[str(samples)] = world.scores(steps(x0, [first] * DRAWS, step))
    return cosines, there


def steps(x0: Tensor, directions: Sequence[Tensor], step: float) -> list[Tensor]:
    return [x0 - step * geometry.normalize(direction, "token") for direction in directions]


def near(cosines: Sequence[dict[str, list[float]]]) -> Table:
    """Means over prompts of the means over estimates."""
    itself = fmean(one["itself"][0] for one in cosines)
    rows = []
    for count in map(str, COUNTS):
        some = [(fmean(one[count]), one["size"][0]) for one in cosines if one.get(count)]
        if not some:
            continue
        measured, n = fmean(cosine for cosine, _ in some), int(count)
        corrected = measured / math.sqrt(itself) if itself > 0 else None
        best = fmean(math.sqrt(n / (n + size)) for _, size in some)
        bound = fmean(math.sqrt(n / size) for _, size in some)
        share = corrected / best if corrected is not None else None
        rows.append([n, measured, corrected, best, bound, share])
    columns = [Column("N"), Column("cosine", 4), Column("to the gradient", 4)]
    columns += [Column("sqrt(N/(N+Td))", 4), Column("sqrt(N/Td)", 4), Column("share", 2)]
    sizes = median(one["size"][0] for one in cosines)
    notes = [
        f"{len(cosines)} prompts, Td {sizes:.0f} (median); cosine: of the estimate from N to the "
        f"reference; of one reference to another: {itself:.3f}",
        "to the gradient: corrected for the noise of the reference; share: of sqrt(N/(N+Td))",
    ]
    return Table("near", "The estimate and a reference gradient", columns, rows, notes)


def worth(found: Sequence[dict[str, Scores]]) -> Table:
    """What is written after one step."""
    rows = []
    for name in dict.fromkeys(name for one in found for name in one):
        scores = [one[name] for one in found if name in one]
        passed = fmean(float((some < TOXIC).mean()) for some in scores)
        rows.append([name, passed, fmean(float(some.mean()) for some in scores)])
    columns = [Column("direction"), Column("passes", 3), Column("mean score", 3)]
    return Table("worth", "One step along estimates from so many", columns, rows)


def main(
    limit: Annotated[int, typer.Option(help="Prompts whose first completion is toxic.")] = 40,
    samples: Annotated[int, typer.Option(help="Perturbations of a reference.")] = 4096,
    temperature: float = 0.1,
    seed: int = 0,
) -> None:
    engine, scorer = load_engine("transformers", "pocket"), load_scorer("pocket")
    world = World(engine, scorer, Sampling(temperature=temperature))
    prompts = [row.text for row in load_benchmark("rtp").rows]
    torch.manual_seed(seed)

    def toxic() -> Iterator[Tensor]:
        for prompt in prompts:
            (embedded,) = engine.embed([prompt])
            if world.scores([embedded])[0] >= TOXIC:
                yield embedded

    generator = torch.Generator().manual_seed(seed)
    found = [(x0, *one_prompt(world, x0, samples, generator)) for x0 in islice(toxic(), limit)]
    if not found:
        raise SystemExit("error: no prompt of this benchmark has a toxic first completion")
    rows = fmean(float(x0.norm(dim=-1).mean()) for x0, _, _ in found)
    print(f"mean norm of a row: {engine.mean_row_norm:.3f} of the vocabulary, {rows:.3f} of these")
    print("prompts; the paper scales mu and eta by the one, the default here by the other\n")
    for table in (near([one[1] for one in found]), worth([one[2] for one in found])):
        print(to_markdown(table))


if __name__ == "__main__":
    typer.run(main)

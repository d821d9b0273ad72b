"""Which rows of a prompt to move, and in which directions, tried offline on candidates.

    python benchmarks/shapes.py [--first 1 --last 600]

Around each prompt whose first completion scores 0.2 or more, candidates at several radii: with
noise of the same size on all rows, rising or falling along the prompt, and on the last rows alone.
Then directions that are the same for all rows, fitted on the first half of the prompts: the mean of
accepted displacements less that of rejected ones, and the principal directions in which accepted
ones spread more; beside them random directions of the same length, and half of each with noise.
What is printed is of the second half: which pass, and how fluent those are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import typer
from leads import FLOOR, MU, TAU, fluency, perplexities, turn_rows
from rich.console import Console
from rich.table import Table
from torch import Tensor
from writing import completed

from tide.core.settings import Sampling
from tide.engines.local.engine import TransformersEngine
from tide.evaluation.benchmarks import load_benchmark
from tide.scorers import load_scorer

RADII, DRAWS, AXES = (0.6, 1.0, 1.4, 2.0), 4, 4
Noise = Callable[[int, int, torch.Generator], Tensor]


def weighted(weights: Callable[[Tensor], Tensor]) -> Noise:
    """Noise of `DRAWS` points whose row at i of T rows has the weight weights(T - 1 - i)."""

    def draw(rows: int, width: int, generator: torch.Generator) -> Tensor:
        from_end = torch.arange(rows - 1, -1, -1.0)
        noise = torch.randn(DRAWS, rows, width, generator=generator)
        return noise * weights(from_end)[:, None]

    return draw


PROFILES: dict[str, Noise] = {
    "all rows": weighted(torch.ones_like),
    "rising 0.3 to 1": weighted(lambda i: 1 - 0.7 * i / max(1.0, float(i.max()))),
    "falling 1 to 0.3": weighted(lambda i: 0.3 + 0.7 * i / max(1.0, float(i.max()))),
    "halved every 4 rows": weighted(lambda i: 0.5 ** (i / 4)),
    "last 8": weighted(lambda i: (i < 8).float()),
    "last 3": weighted(lambda i: (i < 3).float()),
}


def along(axes: Tensor, share: float) -> Noise:
    """The same displacement on all rows, both ways along each axis, and noise for the rest of it.

    axes: (n, d) of unit length. A row's displacement has the length that noise has.
    """
    both = torch.cat([axes, -axes]) * math.sqrt(axes.shape[1])

    def draw(rows: int, width: int, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(both), rows, width, generator=generator)
        return math.sqrt(share) * both[:, None] + math.sqrt(1 - share) * noise

    return draw


class Bench:
    """The prompts that need a search, and what becomes of candidates around them."""

    def __init__(self, first: int, last: int) -> None:
        self.engine, self.scorer = TransformersEngine("pocket"), load_scorer("pocket")
        texts = [row.text for row in load_benchmark(f"rtp:{first}-{last}").rows]
        prompts = self.engine.embed(texts)
        written = completed(self.engine, prompts, Sampling())
        scores = self.scorer.score([one.text for one in written])
        both = zip(self.engine.tokenize(texts), prompts, scores, strict=True)
        self.prompts = [(ids, x) for ids, x, score in both if score >= TAU]

    def try_out(
        self, noise: Noise, radius: float, part: slice
    ) -> tuple[list[Tensor], np.ndarray, np.ndarray, np.ndarray]:
        """Of these prompts' candidates: mean moves of the rows, scores, perplexities, lengths."""
        moves, near, origins = [], [], []
        for number, (ids, x0) in list(enumerate(self.prompts))[part]:
            mu = MU * float(x0.norm(dim=-1).mean()) / math.sqrt(x0.shape[1])
            drawn = noise(*x0.shape, torch.Generator().manual_seed(number))
            points = turn_rows(x0, radius * mu * drawn)
            moves += [row / row.norm() for row in (points - x0).mean(dim=1)]
            near += list(points)
            origins += [ids] * len(points)
        written = completed(self.engine, near, Sampling())
        ids_written = [one.token_ids for one in written]
        scores = np.asarray(self.scorer.score([one.text for one in written]))
        tokens = np.array([len(row) for row in ids_written])
        return moves, scores, perplexities(self.engine, origins, completed), tokens


def fitted(moves: list[Tensor], passed: np.ndarray) -> tuple[Tensor, Tensor]:
    """The difference of the means (1, d), and the principal directions (AXES, d)."""
    both, accepted = torch.stack(moves), torch.as_tensor(passed)
    yes, no = both[accepted], both[~accepted]
    mean = yes.mean(0) - no.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(yes.T) - torch.cov(no.T))
    return (mean / mean.norm())[None], vectors[:, values.argsort(descending=True)[:AXES]].T


def main(first: int = 1, last: int = 600) -> None:
    bench = Bench(first, last)
    half = len(bench.prompts) // 2
    console, table = (
        Console(width=100),
        Table("noise", "radius", "pass", "pass, fluent", "of those: ppl", "of 20", "median"),
    )

    def report(name: str, noise: Noise, radii: tuple[float, ...]) -> None:
        for radius in radii:
            _, scores, perplexity, tokens = bench.try_out(noise, radius, slice(half, None))
            passed = scores < TAU
            cells = passed.mean(), (passed & (perplexity <= FLOOR)).mean()
            ppl = fluency(perplexity[passed], tokens[passed])
            shown = (f"{cell:.3f}" for cell in (*cells, *ppl))
            table.add_row(name, f"{radius:g}", *shown)
        table.add_section()

    for name, noise in PROFILES.items():
        report(name, noise, RADII)
    moves, scores, *_ = bench.try_out(PROFILES["all rows"], 1.0, slice(half))
    mean, axes = fitted(moves, scores < TAU)
    chance = torch.randn(AXES, mean.shape[1], generator=torch.Generator().manual_seed(0))
    directions = {"mean": mean, "principal": axes, "random": chance / chance.norm(dim=1)[:, None]}
    for name, some in directions.items():
        for share in (1.0, 0.5):
            report(f"{name} direction, {share:.0%}", along(some, share), RADII[:3])
    console.print(f"{len(bench.prompts)} prompts, the second half of them")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)

"""Leads for the search that were tried offline, on candidates drawn around provoking prompts.

    python benchmarks/leads.py [--first 1 --last 600]

Draws 12 directions at four radii around each prompt whose first completion scores 0.2 or more, and
says of them: which pass, and how fluent they are, by radius and by how much the first token's
distribution changes (KL); whether a probe on what the model computes before it writes tells which
will pass; and what the scorer says after 8 tokens. Perplexities are by the bundled model itself:
the mean (of those that have a token), the mean of those of exactly 20 tokens, and the median. About
4 minutes on an idle machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from writing import completed, likelihoods

from tide.core.settings import Sampling
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.stream import left_pad, token_positions
from tide.evaluation.benchmarks import load_benchmark
from tide.scorers import load_scorer

TAU, FLOOR, MU = 0.2, 12.0, 1.3  # threshold, bound on the perplexity, and radius
RADII = (0.6, 0.8, 1.0, 1.4)
DIRECTIONS, EARLY = 12, 8

Values = NDArray[np.float64]


@torch.inference_mode()
def before_writing(engine: TransformersEngine, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the first token (n, V), and the last hidden state (n, d)."""
    x, mask = left_pad(rows)
    out = engine.model(
        inputs_embeds=x,
        attention_mask=mask,
        position_ids=token_positions(mask),
        output_hidden_states=True,
    )
    return out.logits[:, -1].log_softmax(-1), out.hidden_states[-1][:, -1]


def turn_rows(x0: Tensor, by: Tensor) -> Tensor:
    """`x0 + by` with each row rescaled to its former norm: the rows rotate and do not grow."""
    moved = x0 + by
    scale: Tensor = x0.norm(dim=-1, keepdim=True) / (moved.norm(dim=-1, keepdim=True) + 1e-12)
    return moved * scale


def perplexities(
    engine: TransformersEngine, prompts: list[Sequence[int]], ids: list[Sequence[int]]
) -> Values:
    """Of each completion (its token ids) after its prompt's; infinite for an empty one."""
    some = [i for i, row in enumerate(ids) if row]
    likelihood = np.full(len(ids), -np.inf)
    likelihood[some] = likelihoods(engine, [prompts[i] for i in some], [ids[i] for i in some])
    return np.exp(-likelihood)


def fluency(perplexity: Values, tokens: NDArray[np.int64]) -> list[float]:
    """The mean of those that have a token, the mean of those of exactly 20, and the median."""
    some = perplexity[tokens > 0], perplexity[tokens == Sampling().max_new_tokens]
    return [*(float(one.mean()) for one in some), float(np.median(perplexity))]


def draw(first: int, last: int) -> dict[str, Values]:
    """One row a candidate: prompt, radius, score, early score, perplexity, kl, and features."""
    engine, scorer = TransformersEngine("pocket"), load_scorer("pocket")
    prompts = [row.text for row in load_benchmark(f"rtp:{first}-{last}").rows]
    all_ids, sampling = engine.tokenize(prompts), Sampling()
    rows = engine.embed(prompts)
    base = scorer.score([c.text for c in completed(engine, rows, sampling)])
    found: dict[str, list[Values]] = {}
    for number in np.flatnonzero(np.asarray(base) >= TAU).tolist():
        prompt_ids, x0 = all_ids[number], rows[number]
        mu = MU * float(x0.norm(dim=-1).mean()) / math.sqrt(x0.shape[1])
        noise = torch.randn(
            DIRECTIONS, *x0.shape, generator=torch.Generator().manual_seed(first + number)
        )
        near = [x for radius in RADII for x in turn_rows(x0, radius * mu * noise)]
        log_p, hidden = before_writing(engine, [x0, *near])
        kl = (log_p[1:].exp() * (log_p[1:] - log_p[:1])).sum(-1)
        written = completed(engine, near, sampling)
        ids = [c.token_ids for c in written]
        columns = {
            "prompt": np.full(len(near), first + number),
            "radius": np.repeat(RADII, DIRECTIONS),
            "score": scorer.score([c.text for c in written]),
            "early": scorer.score(engine.texts([row[:EARLY] for row in ids])),
            "perplexity": perplexities(engine, [prompt_ids] * len(near), ids),
            "tokens": [len(row) for row in ids],
            "kl": kl.numpy(),
            "hidden": hidden[1:].numpy(),
            "log_p": log_p[1:].numpy(),
        }
        for name, values in columns.items():
            found.setdefault(name, []).append(np.asarray(values))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def within(scores: Values, passed: Values, groups: Values) -> float:
    """Mean AUC within groups, of those that hold both kinds."""
    areas = []
    for group in np.unique(groups):
        rows = groups == group
        if 0 < passed[rows].sum() < rows.sum():
            areas.append(roc_auc_score(passed[rows], scores[rows]))
    return float(np.mean(areas))


def main(first: int = 1, last: int = 600) -> None:
    found = draw(first, last)
    passed = found["score"] < TAU
    fluent = passed & (found["perplexity"] <= FLOOR)
    together = found["prompt"] * 100 + np.round(found["radius"] * 10)
    console = Console(width=100)
    console.print(f"{len(np.unique(found['prompt']))} prompts, {len(passed)} candidates")

    table = Table("candidates", "pass", "pass, fluent", "of those: ppl", "of 20", "median")
    edges = np.quantile(found["kl"], np.linspace(0, 1, 9))
    bands = [(f"KL {a:.1f} to {b:.1f}", a, b) for a, b in pairwise(edges)]
    masks = [(f"radius {radius}", found["radius"] == radius) for radius in RADII]
    masks += [(name, (found["kl"] >= a) & (found["kl"] <= b)) for name, a, b in bands]
    for name, rows in masks:
        those = rows & passed
        ppl = fluency(found["perplexity"][those], found["tokens"][those])
        cells = (passed[rows].mean(), fluent[rows].mean(), *ppl)
        table.add_row(name, *(f"{cell:.3f}" for cell in cells))
    console.print(table)

    kl = within(found["kl"], passed, together)
    console.print(f"KL tells which pass, within a prompt and radius: AUC {kl:.3f}")
    train = found["prompt"] < np.median(found["prompt"])
    for name in ("hidden", "log_p"):
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=1e-3, max_iter=300))
        probe.fit(found[name][train], passed[train])
        scores = probe.decision_function(found[name][~train])
        areas = (
            roc_auc_score(passed[~train], scores),
            within(scores, passed[~train], together[~train]),
        )
        console.print(
            f"a probe on {name} tells which pass, on other prompts: AUC {areas[0]:.3f}, "
            f"within a prompt and radius {areas[1]:.3f}"
        )
    early = within(-found["early"], passed, together)
    console.print(f"the score of the first {EARLY} tokens, within the same: AUC {early:.3f}")
    for bar in (0.2, 0.3, 0.5):
        late = found["early"] >= bar
        console.print(
            f"  dropped from {bar} on: {late[~passed].mean():.3f} of those that fail, "
            f"{late[passed].mean():.3f} of those that pass"
        )


if __name__ == "__main__":
    typer.run(main)

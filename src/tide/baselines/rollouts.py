"""Texts that the model writes during a fit, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from tide.baselines.decoding import MakeLane, write_rows
from tide.baselines.fit import TOXIC, FitTask, Fitted
from tide.baselines.lanes import Reader, SteeredLane
from tide.core.concurrency import Portal
from tide.core.errors import InputError, TideError
from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.scorers import load_scorer
from tide.scorers.base import Exchange, close_scorer, is_nearly_empty, score_texts

# As in RealToxicityPrompts, a prompt is about half a sentence, and 20 tokens follow it.
_PROMPT = 12
SAMPLING = Sampling(temperature=1.0, max_new_tokens=20)
_BATCH = 64

_T = TypeVar("_T")


@dataclass(frozen=True)
class Rollout:
    """prompt, written: token ids, neither empty. toxicity: score of `written`, in [0, 1]."""

    prompt: list[int]
    written: list[int]
    toxicity: float

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.written]


def beginnings(task: FitTask) -> list[list[int]]:
    """Return prompts: the first half of each training text, toxic or not, cut to 12 tokens.

    The number of prompts is at most half the number of texts that the training reads, or 64 if that
    is larger.
    """
    texts, _ = task.texts()
    wanted = max(_BATCH, task.settings.steps * task.settings.batch_size // 2)
    ids = task.tokenize([text.text for text in texts[:wanted]])
    if not (prompts := [row[: min(_PROMPT, -(-len(row) // 2))] for row in ids if len(row) > 1]):
        raise InputError("data: no training text has two tokens or more")
    return prompts


def write(
    task: FitTask,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    reader: Reader,
    lanes: MakeLane = SteeredLane,
    seed: int = 0,
) -> list[list[int]]:
    """Continue the prompts up to and including the end-of-text token.

    reader: the model whose tokens are drawn. seed: seeds the draws, together with the task's seed.
    Raises the CompletionError of a prompt that cannot be continued.
    """
    stops = [] if task.tokenizer.eos_token_id is None else [task.tokenizer.eos_token_id]
    stop_ids = torch.tensor(stops, dtype=torch.int64, device=task.model.device)
    seeds = np.random.default_rng([task.settings.seed, seed]).integers(2**63, size=len(prompts))
    requests = [
        Request(tuple(prompt), sampling, int(drawn))
        for prompt, drawn in zip(prompts, seeds, strict=True)
    ]
    done = 0

    def on_row() -> None:
        nonlocal done
        done += 1
        task.progress("writing", done, len(prompts))

    with closing(Portal("tide fit")) as portal:
        written = portal.run(
            write_rows,
            reader,
            partial(lanes, shift_first=True),
            requests,
            [""] * len(prompts),
            stop_ids,
            lambda ids, sampling: False,
            _BATCH,
            on_row,
        )
    continued = []
    for row in written:
        if isinstance(row, TideError):
            raise row
        continued.append([*row.token_ids, *(stops if row.finish_reason == "stop" else [])])
    return continued


def roll_out(
    task: FitTask,
    prompts: Sequence[list[int]],
    *,
    front: Tensor | None = None,
    seed: int = 0,
) -> list[Rollout]:
    """Continue the prompts with the task's model in its current state, and score the answers.

    front: see `Reader.read`. seed: see `write`. Raises the errors of the scorer.
    """
    written = write(task, prompts, SAMPLING, Reader(task.model, front=front), seed=seed)
    contexts = task.tokenizer.batch_decode(prompts, skip_special_tokens=True)
    texts = task.tokenizer.batch_decode(written, skip_special_tokens=True)
    scorer = load_scorer(task.scorer)
    try:
        exchanges = list(map(Exchange, contexts, texts))
        scores = score_texts(scorer, exchanges, is_nearly_empty).values.tolist()
    finally:
        close_scorer(scorer)
    return list(map(Rollout, prompts, written, scores))


def held_out(rows: Sequence[_T]) -> tuple[list[_T], list[_T]]:
    """Return training and held-out rows; a tenth is held out, or about 40 of fewer than 400."""
    interval = min(10, max(2, len(rows) // 40))
    return [row for i, row in enumerate(rows) if i % interval], list(rows[::interval])


def judged(
    tensors: dict[str, Tensor], measured: Sequence[Rollout], danger: Sequence[float]
) -> Fitted:
    """Return a `Fitted` with the share of toxic rollouts and the AUC of `danger` as figures.

    danger: the predicted toxicity of each of the `measured` rollouts. If all or none of the
    rollouts are toxic, there is no AUC.
    """
    toxic = [rollout.toxicity >= TOXIC for rollout in measured]
    figures = {"toxic": sum(toxic) / len(toxic)}
    if len(set(toxic)) > 1:
        figures["auc"] = roc_auc_score(toxic, danger)
    return Fitted(tensors, figures)

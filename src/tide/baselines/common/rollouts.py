"""Texts that the model writes during a fit, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from tide.baselines.base import in_batches
from tide.baselines.common.decoding import Reader, Writing, decode
from tide.baselines.common.fit import TOXIC, FitTask, Fitted
from tide.baselines.common.training import auc, weak_auc
from tide.core.errors import InputError
from tide.core.settings import Sampling
from tide.engines.local.stream import by_length
from tide.scorers import load_scorer
from tide.scorers.base import is_empty, score_texts

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
    if not (found := [row[: min(_PROMPT, -(-len(row) // 2))] for row in ids if len(row) > 1]):
        raise InputError("data: no training text has two tokens or more")
    return found


def write(
    task: FitTask,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    start: Callable[[list[list[int]]], Writing],
    seed: int = 0,
) -> list[list[int]]:
    """Continue the prompts up to the end-of-text token; `start` reads a batch of prompts.

    seed: seeds the draws, together with the task's seed.
    """
    stops = [] if task.tokenizer.eos_token_id is None else [task.tokenizer.eos_token_id]
    stop_ids = torch.tensor(stops, dtype=torch.int64, device=task.model.device)
    seeds = np.random.default_rng([task.settings.seed, seed]).integers(2**63, size=len(prompts))
    done = 0

    @torch.inference_mode()
    def batch(rows: list[int]) -> list[list[int]]:
        nonlocal done
        writing, own = start([prompts[i] for i in rows]), [int(seeds[i]) for i in rows]
        written = decode(writing, [sampling] * len(rows), own, stop_ids, shift_first=True)
        done += len(rows)
        task.progress("writing", done, len(prompts))
        return [ids for ids, _ in written]

    return in_batches(batch, [by_length(list(map(len, prompts)))], _BATCH)


def roll_out(
    task: FitTask,
    prompts: Sequence[list[int]],
    *,
    front: Tensor | None = None,
    seed: int = 0,
) -> list[Rollout]:
    """Continue the prompts with the task's model in its current state, and score the texts.

    front: see `Reader.read`. seed: see `write`. Raises the errors of the scorer.
    """
    reader = Reader(task.model)

    def start(ids: list[list[int]]) -> Writing:
        return Writing(reader.read(ids, SAMPLING.max_new_tokens, front=front))

    written = write(task, prompts, SAMPLING, start, seed)
    texts = task.tokenizer.batch_decode(written, skip_special_tokens=True)
    scorer = load_scorer(task.scorer)
    try:
        scores = score_texts(scorer, texts, is_empty).values.tolist()
    finally:
        scorer.close()
    return list(map(Rollout, prompts, written, scores))


def held_out(rows: Sequence[_T]) -> tuple[list[_T], list[_T]]:
    """Return training and held-out rows; a tenth is held out, or about 40 of fewer than 400."""
    every = min(10, max(2, len(rows) // 40))
    return [row for i, row in enumerate(rows) if i % every], list(rows[::every])


def judged(
    tensors: dict[str, Tensor], measured: Sequence[Rollout], danger: Sequence[float], what: str
) -> Fitted:
    """Return a `Fitted` with the share of toxic rollouts and the AUC of `danger` as figures.

    danger: the predicted toxicity of each of the `measured` rollouts. If all or none of the
    rollouts are toxic, a doubt replaces the AUC.
    """
    toxic = [one.toxicity >= TOXIC for one in measured]
    figures = {"toxic": sum(toxic) / len(toxic)}
    if len(set(toxic)) == 1:
        return Fitted(tensors, figures, (f"all held-out texts of the {what} are of one kind",))
    figures["auc"] = auc(toxic, danger)
    return Fitted(tensors, figures, weak_auc(what, figures["auc"]))

"""From a prompt to its tokens and its search problem."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import torch

from tide.core.errors import InputError
from tide.core.settings import Settings
from tide.engines.base import Engine, Prompt
from tide.search import LoadedStrategy, Problem
from tide.search.geometry import movable_rows

# Longer texts are tokenised in a thread: they take a while.
_LONG = 20_000
# Characters of a token; no text of more than so many for each that fits is tokenised.
_CHARACTERS = 64
# The rows that the searches of later blocks move, unless `perturb` says how many. The last rows of
# what the user said found as much at the same cost; but after these all that was read is shared.
_LAST = "last:8"


async def read_prompt(engine: Engine, text: str, settings: Settings) -> Prompt:
    """The tokens of a prompt. Raises InputError for one that cannot be completed."""
    limit = engine.context_length
    if limit is not None and len(text) > _CHARACTERS * limit:
        raise InputError(f"{len(text)} characters do not fit into the model's context of {limit}")
    if len(text) > _LONG:
        prompt = await asyncio.to_thread(engine.encode, text)
    else:
        prompt = engine.encode(text)
    check_length(len(prompt.token_ids), settings, limit)
    return prompt


def check_length(tokens: int, settings: Settings, limit: int | None) -> None:
    """Raise InputError for a prompt of `tokens` tokens that cannot be completed."""
    new = settings.max_new_tokens
    if tokens == 0:
        raise InputError("empty; the tokenizer gives no tokens for it")
    if limit is not None and tokens + new > limit:
        raise InputError(
            f"{tokens} tokens + {new} new ones exceed the model's context of {limit}; "
            "shorten it or lower max_new_tokens"
        )


def check_strategy(strategy: LoadedStrategy, engine: Engine) -> None:
    """Raise InputError for a strategy that moves prompts on a text-only engine."""
    if strategy.moves and not engine.has_embeddings:
        raise InputError(
            f"strategy {strategy.name}: moves prompt embeddings, which the engine "
            f"{type(engine).__name__} does not have; use backtrack or resample"
        )


@dataclass(frozen=True)
class Start:
    """Where a search starts: after a prompt and what was written of the answer.

    token_ids: of both. prefix: handle of the shared unmoved prefix, if the engine computes it only
    once; see `Engine.share`.
    """

    problem: Problem
    token_ids: tuple[int, ...]
    prefix: object

    def read_tokens(self, count: int, *, first: bool) -> int:
        """Prompt tokens read for `count` requests. first: whether these are the first."""
        shared = 0 if self.prefix is None else int(self.problem.movable.int().argmax())
        return count * (len(self.token_ids) - shared) + (shared if first else 0)


def start_of(
    prompt: Prompt,
    settings: Settings,
    seed: int,
    engine: Engine,
    strategy: LoadedStrategy,
    written: tuple[int, ...] = (),
) -> Start:
    """Which rows move, and from where. written: token ids of the answer so far.

    Raises InputError for a prompt of special tokens alone, and for a strategy that moves prompts
    with an engine that cannot.
    """
    ids, more = prompt.token_ids + written, (False,) * len(written)
    if not engine.has_embeddings:
        check_strategy(strategy, engine)
        rows = torch.ones(len(ids), dtype=torch.bool)
        still = Problem(torch.ones(len(ids), 1), rows, seed, can_move=False)
        return Start(still, ids, None)
    fixed = torch.tensor(prompt.fixed_mask + more)
    user = None if prompt.user_mask is None else torch.tensor(prompt.user_mask + more)
    own = not written or settings.perturb.startswith("last:")
    movable = movable_rows(fixed, settings.perturb if own else _LAST, user)
    x = engine.embed_tokens(ids)
    prefix = engine.share(x[: int(movable.int().argmax())])
    return Start(Problem(x, movable, seed, engine.dtype, movable | ~fixed), ids, prefix)

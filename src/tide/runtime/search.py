"""One search: where it starts, its rounds, and the trial that it makes.

In a round a strategy asks, the engine completes, the scorer scores, the strategy is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from tide.core.errors import (
    CompletionError,
    EngineError,
    InputError,
    StrategyError,
    UnresolvedError,
    guarded,
)
from tide.core.results import Block, Role, ScoredCompletion, Trial
from tide.core.seeds import derive_seed
from tide.core.settings import EmptyPolicy, Sampling, Settings
from tide.core.text import HALF
from tide.engines.base import Completion, Engine, Prompt, Request
from tide.runtime.blocks import before_half, blamed, word_starts
from tide.runtime.scoring import Scoring
from tide.scorers.base import Scores, TextPolicy
from tide.search import LoadedStrategy
from tide.search.base import (
    BlameRequest,
    Candidate,
    Continuation,
    LikelihoodRequest,
    Problem,
    SearchStrategy,
)
from tide.search.geometry import movable_rows

# The rows that the searches of later blocks move, unless `perturb` says how many. The last rows of
# what the user said found as much at the same cost; but after these all that was read is shared.
_LAST = "last:8"
# Times that a repair is drawn, from before a part of a character; then it ends there.
_DRAWS = 4


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


@dataclass(frozen=True)
class TrialTask:
    """One trial of a prompt, to be run. number: which of the prompt's.

    priority: the lowest is served first. on_text: called with each part of the text once it is
    accepted.
    """

    prompt: Prompt
    settings: Settings
    strategy: LoadedStrategy
    number: int
    priority: int
    on_text: Callable[[str], None] | None = None

    @property
    def seed(self) -> int:
        return derive_seed(self.settings.seed, self.prompt.text, self.number)


@dataclass
class Memory:
    """The KV cache of a trial: tokens that need not be recomputed to continue.

    handle: the engine's cache handle; None: nothing cached. read_tokens: read so far.
    """

    handle: object = None
    read_tokens: int = 0
    _ids: tuple[int, ...] = ()

    def read(self, token_ids: tuple[int, ...]) -> None:
        """Count these as read: only the last, if the others are cached."""
        before = token_ids[:-1]
        known = self.handle is not None and bool(before) and self._ids[: len(before)] == before
        self.read_tokens += 1 if known else len(token_ids)

    def wrote(self, token_ids: tuple[int, ...]) -> None:
        """Set the cached ids: the latest token and all before it."""
        self._ids = token_ids


class Origin(NamedTuple):
    """Where an evaluation was made; see `ScoredCompletion`."""

    iteration: int
    role: Role
    cosine: float
    displacement: float
    kept: int = 0


@dataclass
class Search:
    """A search that is being made. It may be ended at any await, and holds what was found by then.

    start: its strategy's start. priority: the lowest is served first. context: text before its
    completions, scored with them. shape: applied to a completion before scoring. first_empty:
    score of an empty completion of the unmodified prompt under the policy "unmodified". first:
    the unmodified prompt's completion and its score, if known. memory: the trial's KV cache.
    never: tokens that are not drawn.
    trace and completions (token ids) grow with each round. written_tokens: of all completions,
    before they were shaped. held: tokens banned for the rest of the text in the last continuation.
    nearest: the tokens nearest to the chosen point; None without `find_nearest`, and for the prompt
    itself, or a point of an earlier round.
    """

    strategy: SearchStrategy
    start: Start
    engine: Engine
    scoring: Scoring
    sampling: Sampling
    empty_policy: EmptyPolicy
    priority: int = 0
    context: str = ""
    shape: Callable[[Completion], Completion] | None = None
    first_empty: TextPolicy = "zero"
    first: tuple[Completion, float] | None = None
    memory: Memory = field(default_factory=Memory)
    never: tuple[int, ...] = ()
    trace: list[ScoredCompletion] = field(default_factory=list)
    completions: list[tuple[int, ...]] = field(default_factory=list)
    written_tokens: int = 0
    scorer_calls: int = 0
    likelihood_calls: int = 0
    held: tuple[int, ...] = ()
    nearest: tuple[int, ...] | None = None
    _last: Sequence[Candidate] = ()
    _has_read: bool = False

    async def run(self) -> None:
        """Raises StrategyError, and what the engine and the scorer raise."""
        strategy = self.strategy
        while not self._asks("done"):
            with self._strategy():
                asked = strategy.ask()
            if isinstance(asked, LikelihoodRequest):
                values = await self._likelihoods(asked)
            elif isinstance(asked, BlameRequest):
                values = [await self._blamed(asked)]
            elif isinstance(asked, Continuation):
                values = await self._continued(asked)
            else:
                values = await self._evaluate(asked)
            with self._strategy():
                strategy.tell(values)

    @property
    def best(self) -> int:
        """The evaluation to return. Raises StrategyError if it does not exist."""
        best: int = self._asks("best")
        if not 0 <= best < len(self.trace):
            raise StrategyError(f"the strategy chose evaluation {best} of {len(self.trace)}")
        return best

    @property
    def iterations(self) -> int:
        iterations: int = self._asks("iterations")
        return iterations

    def find_nearest(self) -> None:
        """Look for the nearest tokens of the point that was chosen."""
        place = self.best - (len(self.trace) - len(self._last))
        if place >= 0 and self._last[place].displacement > 0:
            self.nearest = tuple(self.engine.decode_nearest(self._last[place].embeddings))

    async def _evaluate(self, asked: Sequence[Candidate]) -> list[float]:
        """The scores of what the model writes after the candidates."""
        self._last = asked
        places = [Origin(one.iteration, one.role, one.cosine, one.displacement) for one in asked]
        if self.first is not None and not self.trace:
            completion, score = self.first
            self._record(places, [completion], Scores(np.array([score]), np.array([False])))
            return [score]
        requests = [self._request(candidate) for candidate in asked]
        for request in requests:
            try:
                self.engine.check(request)
            except CompletionError as error:
                raise StrategyError(
                    f"the search asked for what no engine takes: {error}"
                ) from error
        written = await self.engine.write_all(requests)
        self.memory.read_tokens += self.start.read_tokens(len(requests), first=not self._has_read)
        self._has_read = True
        if requests[-1].memory is not None:
            self.memory.wrote(self.start.token_ids + written[-1].token_ids)
        self.written_tokens += sum(len(one.token_ids) for one in written)
        return await self._scored(places, written)

    async def _continued(self, asked: Continuation) -> list[float]:
        """The score of the model's continuation, without the banned tokens."""
        self._last = ()
        # In a chat that the engine cannot go on with, the whole is written anew.
        goes_on = self.engine.goes_on(self.start.token_ids)
        kept, first = self._banned(asked, asked.kept if goes_on else 0)
        whole_part = before_half(self.engine.token_texts([kept])[0])
        if whole_part < len(kept):
            kept, first = kept[:whole_part], ()
        made = Origin(asked.iteration, "continuation", 1.0, 0.0, len(kept))
        for number in range(_DRAWS):
            seed = (
                derive_seed(asked.sampling_seed, "whole", number) if number else asked.sampling_seed
            )
            whole = await self._go_on(asked, kept, first, seed)
            end = before_half(self.engine.token_texts([whole.token_ids])[0])
            if HALF not in whole.text.rstrip(HALF) or not goes_on:
                break
            # The model lost its way inside a character, as it may where others are banned.
            first = (*(first if end == len(kept) else ()), *whole.token_ids[end : end + 1])
            kept = whole.token_ids[:end]
        if HALF in whole.text:
            ids = whole.token_ids[:end]
            whole = Completion(self.engine.texts([ids])[0], ids, "length")
        return await self._scored([made], [whole])

    async def _go_on(
        self, asked: Continuation, kept: tuple[int, ...], first: tuple[int, ...], seed: int
    ) -> Completion:
        """What was kept, with what the model writes after it. first: not to be the next token."""
        sampling = self.sampling.model_copy(
            update={
                "temperature": asked.cool * self.sampling.temperature,
                "max_new_tokens": self.sampling.max_new_tokens - len(kept),
                "min_new_tokens": self._least(asked.least, len(kept)),
            }
        )
        prompt = self.start.token_ids + kept
        request = Request(
            prompt,
            sampling,
            seed,
            never=tuple(dict.fromkeys(self.never + self.held)),
            never_first=first,
            priority=self.priority,
            memory=self.memory.handle,
        )
        (new,) = await self.engine.write_all([request])
        self.memory.read(prompt)
        self.memory.wrote(prompt + new.token_ids)
        self.written_tokens += len(new.token_ids)
        # A stop string may begin in what was kept.
        (whole,) = self.engine.completions(
            [(kept + new.token_ids, new.finish_reason)], [self.sampling]
        )
        return whole

    async def _blamed(self, asked: BlameRequest) -> int:
        """Number of tokens before the word at which the score first reaches the level."""
        (texts,) = self.engine.token_texts([self._completion(asked.evaluation)])
        starts = word_starts(texts)
        words = ["".join(texts[a:b]) for a, b in pairwise([*starts, len(texts)])]

        async def score(text: str) -> float:
            scores = await self.scoring.send([text], "zero", [self.context])
            self.scorer_calls += not scores.empty[0]
            return float(scores.values[0])

        return starts[await blamed(words, score, asked.score)] if starts else 0

    def _completion(self, number: int) -> tuple[int, ...]:
        if not 0 <= number < len(self.completions):
            raise StrategyError(f"asked for evaluation {number} of {len(self.completions)}")
        return self.completions[number]

    def _banned(self, asked: Continuation, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens to go on from, and what the next one is not to be; sets `held`.

        place: number of tokens of the continued evaluation that may be kept.
        """
        kept = self._completion(asked.evaluation)[:place]
        everywhere: list[int] = []
        next_ones: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for number, before in asked.held:
            ids = self._completion(number)
            ban = self.engine.ban(ids[before:])
            if (
                ban.everywhere or place < asked.held[-1][1]
            ):  # what is written anew has no such place
                everywhere += ban.token_ids
                continue
            next_ones.append((ids[: before + ban.kept], ban.token_ids))
            if (number, before) == (asked.evaluation, place):
                kept = ids[: before + ban.kept]
        self.held = tuple(dict.fromkeys(everywhere))
        return kept, tuple(token for ids, tokens in next_ones if ids == kept for token in tokens)

    def _least(self, wanted: int, kept: int) -> int:
        """Tokens to be written before a text may end, where the engine can be told."""
        own = self.sampling.min_new_tokens
        wanted = min(max(wanted, own), self.sampling.max_new_tokens)
        return max(0, wanted - kept) if "min_new_tokens" in self.engine.honours else 0

    async def _scored(self, places: Sequence[Origin], written: Sequence[Completion]) -> list[float]:
        completions = [one if self.shape is None else self.shape(one) for one in written]
        texts = [one.text for one in completions]
        policy = self._policy()
        scores = await self.scoring.send(texts, policy, [self.context] * len(texts))
        self._record(places, completions, scores)
        pairs = zip(texts, scores.empty.tolist(), strict=True)
        self.scorer_calls += len({text for text, empty in pairs if policy == "score" or not empty})
        return list(scores.values.tolist())

    def _request(self, candidate: Candidate) -> Request:
        # The prompt as it is goes as its tokens: engines read these faster, and share what is read.
        moved = candidate.role != "initial" or candidate.displacement > 0
        return Request(
            candidate.embeddings if moved else self.start.token_ids,
            self.sampling,
            candidate.sampling_seed,
            never=self.never,
            priority=self.priority,
            prefix=self.start.prefix,
            memory=None if moved else self.memory.handle,
        )

    async def _likelihoods(self, asked: LikelihoodRequest) -> list[float]:
        """How likely completions are after the unmodified prompt."""
        if not self.trace:
            raise StrategyError("asked for likelihoods of nothing")
        # A completion without tokens has no likelihood; it is the last that should be chosen.
        values = dict.fromkeys(asked.evaluations, -math.inf)
        some = [number for number in asked.evaluations if self.completions[number]]
        if some:
            pairs = [(self.start.token_ids, self.completions[number]) for number in some]
            found = await self.engine.log_likelihoods(
                pairs, priority=self.priority, prefix=self.start.prefix
            )
            values.update(zip(some, found, strict=True))
        if any(math.isnan(value) for value in values.values()):
            raise EngineError(f"engine {self.engine.name}: a likelihood is not a number")
        self.likelihood_calls += len(asked.evaluations)
        return [values[number] for number in asked.evaluations]

    def _policy(self) -> TextPolicy:
        """What an empty completion of this round scores."""
        if self.empty_policy != "unmodified":
            return self.empty_policy
        return "one" if self.trace else self.first_empty

    def _record(
        self, places: Sequence[Origin], written: Sequence[Completion], scores: Scores
    ) -> None:
        number = self.trace[-1].round + 1 if self.trace else 1
        rows = zip(places, written, scores.values.tolist(), scores.empty.tolist(), strict=True)
        for row, (place, completion, score, empty) in enumerate(rows):
            self.completions.append(completion.token_ids)
            self.trace.append(
                ScoredCompletion(
                    round=number,
                    iteration=place.iteration,
                    role=place.role,
                    text=completion.text,
                    toxicity=score,
                    empty=empty,
                    cosine=place.cosine,
                    displacement=place.displacement,
                    num_tokens=len(completion.token_ids),
                    finish_reason=completion.finish_reason,
                    kept_tokens=min(place.kept, len(completion.token_ids)),
                    attributes=scores.known(row),
                )
            )

    def _asks(self, name: str) -> Any:
        """An attribute of the strategy, maybe computed by user code."""
        with self._strategy():
            return getattr(self.strategy, name)

    def _strategy(self) -> AbstractContextManager[None]:
        return guarded(StrategyError, f"strategy {type(self.strategy).__name__} failed")


def made_trial(
    task: TrialTask,
    trace: Sequence[ScoredCompletion],
    chosen: int,
    *,
    passed: bool,
    shown: bool = False,
    iterations: int,
    blocks: Sequence[Block] = (),
    **costs: Any,
) -> Trial:
    """The trial that returns evaluation `chosen` of `trace`.

    passed: whether all parts did. shown: whether the text is given out as soon as it is accepted.
    costs: other fields of a Trial. Raises UnresolvedError if nothing passed and `on_unresolved` is
    "raise".
    """
    settings = task.settings
    if not passed and settings.on_unresolved == "raise":
        what = "answer" if blocks else "completion"
        raise UnresolvedError(
            f"no {what} below {settings.toxicity_threshold} in {iterations} iterations"
        )
    # No scorer said anything of an empty text; the published policy accepts it, a stream does not.
    empty = trace[chosen].empty
    unscored = empty and (shown or settings.empty_policy == "unmodified")
    return Trial(
        number=task.number,
        seed=task.seed,
        accepted=passed and not unscored,
        refused=(empty and shown) or (not passed and settings.on_unresolved == "refuse"),
        chosen=chosen,
        iterations=iterations,
        trace=tuple(trace),
        blocks=tuple(blocks),
        **costs,
    )

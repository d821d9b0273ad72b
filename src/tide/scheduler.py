"""Runs many searches together: each engine call serves as many of them as it has room for.

    scheduler.submit(search)            # any number, from any thread, at any time
    for search in scheduler.step():     # at most one engine call; those that ended
        search.error or search.trace[search.strategy.best]

A search whose scores have come is ready for its next round. Whenever the engine is free, a full
batch of ready searches is taken, of similar prompt lengths, whichever round each of them is in.
While one batch is scored, in a thread, the engine writes the next. Which searches share a call
changes no result, failures included: all randomness, the sampling and the errors of a search are
its own.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import numpy as np

from tide.config import EmptyPolicy, Sampling
from tide.engines.base import Completion, Engine, FinishReason, check_rows
from tide.errors import EngineError, ScorerError, StrategyError, TideError, described
from tide.results import Evaluation
from tide.scorers.base import Scorer, Scores, score_groups
from tide.search.base import Candidate, LikelihoodRequest, SearchStrategy

_T = TypeVar("_T")


@dataclass(eq=False)
class Search:
    """One trial of one prompt on its way.

    token_ids: the unmodified prompt. sampling, empty_policy: how its completions are drawn, and
    what an empty one scores. deadline: by `time.monotonic()`, when it ends with the best it has.
    order: the lowest is served first. tag: what the submitter knows it by.
    trace and completions (token ids) grow with each round. error: why it ended without a result.
    """

    strategy: SearchStrategy
    token_ids: tuple[int, ...]
    sampling: Sampling
    empty_policy: EmptyPolicy = "unmodified"
    deadline: float = math.inf
    order: int = 0
    tag: Any = None
    trace: list[Evaluation] = field(default_factory=list)
    completions: list[tuple[int, ...]] = field(default_factory=list)
    scorer_calls: int = 0
    likelihood_calls: int = 0
    error: TideError | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        """Leave at the next step. Nothing of it is scored afterwards, and it is not returned."""
        self.cancelled = True

    @property
    def done(self) -> bool:
        return self.error is not None or self.strategy.done


Asked = tuple[Search, Sequence[Candidate]]


@dataclass
class _Round:
    """What the searches of a batch asked, what the engine wrote, and the scores on their way."""

    asked: list[Asked]
    completions: list[list[Completion]]
    scores: Future[list[Scores | TideError]]


class Scheduler:
    """Steps the searches that are submitted to it. `submit` and `cancel` work from any thread,
    everything else belongs to the one thread that calls `step`.
    """

    def __init__(self, engine: Engine, scorer: Scorer) -> None:
        self._engine, self._scorer = engine, scorer
        self._entering: deque[Search] = deque()
        self._ready: list[Search] = []
        self._waiting = 0
        self._scored: _Round | None = None
        self._ended: list[Search] = []
        self._scoring = ThreadPoolExecutor(max_workers=1)

    def submit(self, search: Search) -> None:
        """Let a search take part from the next step on."""
        self._entering.append(search)

    def has_room(self) -> bool:
        """Whether fewer candidates wait than an engine call takes; then more searches help."""
        self._enter()
        return self._waiting < self._engine.max_batch

    @property
    def idle(self) -> bool:
        """Whether no search is left."""
        return not (self._entering or self._ready or self._scored or self._ended)

    def step(self) -> list[Search]:
        """Do the next piece of work, at most one engine call; returns the searches that ended.

        What failed is the search's own `error`. If the engine or the scorer itself failed, that is
        the error (EngineError, ScorerUnavailable, ScorerBroken) of every search of the round.
        """
        self._enter()
        self._drop()
        scored = self._scored
        # Scores on their way make more searches ready; a batch without them would be small.
        if scored is not None and self.has_room():
            self._scored = None
            self._tell(scored)
        elif self._ready:
            self._scored = self._write(self._take())
            if scored is not None:
                self._tell(scored)
        ended = [search for search in self._ended if not search.cancelled]
        self._ended = []
        return ended

    def close(self) -> None:
        """Wait for the scorer; searches that have not ended are dropped."""
        self._scoring.shutdown(cancel_futures=True)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _enter(self) -> None:
        while self._entering:
            search = self._entering.popleft()
            asked = _guarded(search, search.strategy.ask)
            if asked is None or isinstance(asked, LikelihoodRequest):
                search.error = search.error or StrategyError("asked for likelihoods of nothing")
                self._ended.append(search)
            else:
                self._ready.append(search)
                self._waiting += len(asked)

    def _drop(self) -> None:
        """Let go of what was cancelled, and end what is late."""
        now = time.monotonic()
        late = [search for search in self._ready if search.deadline <= now]
        staying = [s for s in self._ready if s.deadline > now and not s.cancelled]
        if len(staying) < len(self._ready):
            self._stay(staying)
            self._ended += late

    def _stay(self, ready: list[Search]) -> None:
        self._ready = ready
        self._waiting = sum(len(_candidates(search)) for search in ready)

    def _take(self) -> list[Search]:
        """Take a batch out of the searches that are ready, at least one.

        It has one of the lowest order, so that none waits for ever and results in the order of the
        prompts come soon, and then those with prompts of the most similar length: the engine pads
        less.
        """
        first = min(self._ready, key=lambda search: search.order)
        room = self._engine.max_batch - len(_candidates(first))
        batch = [first]
        length = len(first.token_ids)
        for search in sorted(self._ready, key=lambda search: abs(len(search.token_ids) - length)):
            if search is not first and len(_candidates(search)) <= room:
                batch.append(search)
                room -= len(_candidates(search))
        taken = set(map(id, batch))
        self._stay([search for search in self._ready if id(search) not in taken])
        return batch

    def _write(self, batch: list[Search]) -> _Round | None:
        """One engine call for all of a batch; what it wrote, with its scores on their way.

        A search whose own embeddings no engine could take fails alone, and the others are written
        again without it.
        """
        asked = [(search, _candidates(search)) for search in batch]
        try:
            samplings = [search.sampling for search, some in asked for _ in some]
            written = self._ask_engine(
                self._engine.complete,
                [candidate.embeddings for _, some in asked for candidate in some],
                samplings,
                [candidate.sampling_seed for _, some in asked for candidate in some],
            )
            for completion, sampling in zip(written, samplings, strict=True):
                self._check_written(completion, sampling.max_new_tokens)
        except EngineError as error:
            blamed = [search for search, some in asked if self._is_to_blame(search, some)]
            for search in blamed or batch:
                search.error = search.error or error
            self._ended += blamed or batch
            rest = [search for search in batch if search.error is None]
            return self._write(rest) if rest else None
        left = iter(written)
        completions = [[next(left) for _ in some] for _, some in asked]
        # What was cancelled meanwhile is not scored.
        kept = [i for i, search in enumerate(batch) if not search.cancelled]
        if not kept:
            return None
        asked, completions = [asked[i] for i in kept], [completions[i] for i in kept]
        scores = self._scoring.submit(_score, asked, completions, self._scorer)
        return _Round(asked, completions, scores)

    def _is_to_blame(self, search: Search, asked: Sequence[Candidate]) -> bool:
        try:
            check_rows(self._engine, [one.embeddings for one in asked], search.sampling)
        except EngineError as error:
            search.error = StrategyError(f"the search asked for what no engine takes: {error}")
        return search.error is not None

    def _ask_engine(self, call: Callable[..., Any], *arguments: list[Any]) -> Any:
        """What the engine answers, one thing for each. Any failure of it is an EngineError."""
        try:
            answer = call(*arguments)
        except TideError:
            raise
        except (Exception, SystemExit) as error:
            raise EngineError(f"engine {self._engine.name} failed: {described(error)}") from error
        if len(answer) != len(arguments[0]):
            raise EngineError(
                f"engine {self._engine.name}: {len(answer)} answers to {len(arguments[0])} prompts"
            )
        return answer

    def _check_written(self, completion: Completion, most: int) -> None:
        """Raise EngineError for what is no completion of at most so many tokens."""
        try:
            completion.text.encode()
            fits = len(completion.token_ids) <= most and min(completion.token_ids, default=0) >= 0
            known = completion.finish_reason in get_args(FinishReason)
        except (AttributeError, TypeError, ValueError):
            fits = known = False
        if not (fits and known):
            raise EngineError(f"engine {self._engine.name}: answered what is no completion")

    def _tell(self, scored: _Round) -> None:
        """Tell the searches of a round their scores; those that go on are ready again."""
        told: list[Search] = []
        for (search, asked), written, scores in zip(
            scored.asked, scored.completions, scored.scores.result(), strict=True
        ):
            if search.cancelled:
                continue
            if isinstance(scores, TideError):
                search.error = scores
            else:
                _record(search, asked, written, scores)
                _guarded(search, search.strategy.tell, scores.values.tolist())
            told.append(search)
        self._tell_likelihoods(told)
        for search in told:
            (self._ended if search.done else self._entering).append(search)

    def _tell_likelihoods(self, searches: list[Search]) -> None:
        """Answer the likelihoods that were asked for, in one prefill pass for all searches."""
        asking: list[tuple[Search, LikelihoodRequest]] = []
        for search in searches:
            asked = None if search.done else _guarded(search, search.strategy.ask)
            if isinstance(asked, LikelihoodRequest):
                asking.append((search, asked))
        if not asking:
            return
        pairs = [
            (search.token_ids, search.completions[number])
            for search, asked in asking
            for number in asked.evaluations
        ]
        # A completion without tokens has no likelihood; it is the last that should be chosen.
        values = np.full(len(pairs), -np.inf)
        rows = [i for i, (_, completion) in enumerate(pairs) if completion]
        try:
            if rows:
                prompts, completions = [pairs[i][0] for i in rows], [pairs[i][1] for i in rows]
                values[rows] = self._ask_engine(self._engine.likelihood, prompts, completions)
            if np.isnan(values).any():
                raise EngineError(f"engine {self._engine.name}: a likelihood is not a number")
        except (EngineError, TypeError, ValueError) as error:
            for search, _ in asking:
                search.error = EngineError(str(error))
            return
        answers = iter(values.tolist())
        for search, asked in asking:
            search.likelihood_calls += len(asked.evaluations)
            some = [next(answers) for _ in asked.evaluations]
            _guarded(search, search.strategy.tell, some)
        self._tell_likelihoods([search for search, _ in asking])


def _guarded(search: Search, call: Callable[..., _T], *arguments: Any) -> _T | None:
    """What a strategy answers. Its failure is the search's own `error`."""
    try:
        return call(*arguments)
    except TideError as error:
        search.error = error
    except (Exception, SystemExit) as error:
        kind = type(search.strategy).__name__
        search.error = StrategyError(f"strategy {kind} failed: {described(error)}")
    return None


def _candidates(search: Search) -> Sequence[Candidate]:
    asked = search.strategy.ask()
    assert not isinstance(asked, LikelihoodRequest)  # `_enter` lets none of these pass
    return asked


def _score(
    asked: Iterable[Asked], completions: list[list[Completion]], scorer: Scorer
) -> list[Scores | TideError]:
    """The scores of each search's texts, or why they have none; equal texts are sent once."""
    texts = [[completion.text for completion in written] for written in completions]
    policies = [_policy(search) for search, _ in asked]
    found: dict[int, Scores | TideError] = {}
    for policy in dict.fromkeys(policies):
        rows = [i for i, one in enumerate(policies) if one == policy]
        try:
            found.update(
                zip(rows, score_groups(scorer, [texts[i] for i in rows], policy), strict=True)
            )
        except ScorerError as error:  # the scorer's own, and so that of all
            found.update(dict.fromkeys(rows, error))
    return [found[i] for i in range(len(texts))]


def _policy(search: Search) -> EmptyPolicy:
    """What an empty completion of this round scores."""
    if search.empty_policy != "unmodified":
        return search.empty_policy
    return "one" if search.trace else "zero"


def _record(
    search: Search, asked: Sequence[Candidate], written: list[Completion], scores: Scores
) -> None:
    number = search.trace[-1].round + 1 if search.trace else 1
    for candidate, completion, score, empty in zip(
        asked, written, scores.values.tolist(), scores.empty.tolist(), strict=True
    ):
        search.completions.append(completion.token_ids)
        search.trace.append(
            Evaluation(
                round=number,
                iteration=candidate.iteration,
                role=candidate.role,
                text=completion.text,
                toxicity=score,
                empty=empty,
                cosine=candidate.cosine,
                displacement=candidate.displacement,
                num_tokens=len(completion.token_ids),
                finish_reason=completion.finish_reason,
            )
        )
    sent = {c.text for c, empty in zip(written, scores.empty, strict=True) if not empty}
    search.scorer_calls += len(sent)

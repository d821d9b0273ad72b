"""Runs many searches together: each engine call serves as many of them as it has room for.

    scheduler.submit(search)            # any number, from any thread, at any time
    for search in scheduler.step():     # at most one engine call; those that ended
        search.error or search.trace[search.strategy.best]

A search whose scores have come is ready for its next round. Whenever the engine is free, a full
batch of ready searches is taken, of similar prompt lengths, whichever round each of them is in.
While one batch is scored, in a thread, the engine writes the next. Which searches share a call
changes no result, failures included: all randomness, the sampling and the errors of a search are
its own.

A course is work of several pieces, one after another: drafts, searches, and checks of a text.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from tide.core.errors import EngineError, StrategyError, TideError, described
from tide.core.results import Evaluation
from tide.core.settings import EmptyPolicy
from tide.engines.base import Completion, Engine, FinishReason, check_rows
from tide.runtime.draft import Draft
from tide.runtime.drafting import Drafting
from tide.runtime.work import Check, Course, Search, Texts, score_all
from tide.scorers.base import Scorer, Scores
from tide.search.base import Candidate, LikelihoodRequest

_T = TypeVar("_T")


Asked = tuple[Search, Sequence[Candidate]]


@dataclass
class _Round:
    """What the searches of a batch asked, what the engine wrote, and the scores on their way."""

    asked: list[Asked]
    completions: list[list[Completion]]
    scores: Future[list[Scores | TideError]]


class Scheduler:
    """Steps the searches and courses that are submitted to it. `submit` and `cancel` work from any
    thread, everything else belongs to the one thread that calls `step`.
    """

    def __init__(self, engine: Engine, scorer: Scorer) -> None:
        self._engine, self._scorer = engine, scorer
        self._entering: deque[Search | Course | Draft | Check] = deque()
        self._ready: list[Search] = []
        self._waiting = 0
        self._scored: _Round | None = None
        self._checks: list[Check] = []
        self._checked: tuple[list[Check], Future[list[Scores | TideError]]] | None = None
        self._drafting = Drafting(engine, self._ask_engine, self._send, self._end)
        self._waits: dict[object, int] = {}
        self._ended: list[Search | Course] = []
        self._scoring = ThreadPoolExecutor(max_workers=1)

    def submit(self, work: Search | Course) -> None:
        """Let it take part from the next step on."""
        self._entering.append(work)

    def has_room(self) -> bool:
        """Whether fewer candidates wait than an engine call takes; then more searches help."""
        self._enter()
        return self._waiting + len(self._drafting.ready) < self._engine.max_batch

    @property
    def idle(self) -> bool:
        """Whether no work is left."""
        searching = self._entering or self._ready or self._scored or self._ended
        return not (searching or self._checks or self._checked or self._drafting.busy)

    def step(self) -> list[Search | Course]:
        """Do the next piece of work, at most one engine call; returns what has ended.

        What failed is its own `error`. If the engine or the scorer itself failed, that is the error
        (EngineError, ScorerUnavailable, ScorerBroken) of all that took part.
        """
        self._enter()
        self._drop()
        turn = self._turn()
        if turn is not None:
            turn()
        self._settle(wait=turn is None)
        ended = [work for work in self._ended if not work.cancelled]
        self._ended = []
        return ended

    def _turn(self) -> Callable[[], None] | None:
        """What the engine does next: what serves most rows, and what has waited for long.

        None if it has nothing to do before more scores are here.
        """
        turns = self._drafting.turns()
        if self._ready and not self._awaits_scores():
            turns["search"] = self._waiting, self._search
        self._waits = {name: self._waits.get(name, 0) + 1 for name in turns}
        chosen = max(turns, key=lambda name: turns[name][0] * self._waits[name], default=None)
        return turns[chosen][1] if self._waits.pop(chosen, 0) else None

    def _awaits_scores(self) -> bool:
        # Scores on their way make more searches ready; a batch without them would be small.
        return self._scored is not None and self._waiting < self._engine.max_batch

    def _search(self) -> None:
        scored, self._scored = self._scored, self._write(self._take())
        if scored is not None:
            self._tell(scored)

    def _settle(self, *, wait: bool) -> None:
        """Tell the scores that are here. wait: for one thing's, if none are."""
        if self._checks and self._checked is None:
            checks, self._checks = self._checks, []
            self._checked = checks, self._send([_texts(one) for one in checks])
        if self._awaits_scores() and self._scored and (wait or self._scored.scores.done()):
            scored, self._scored, wait = self._scored, None, False
            self._tell(scored)
        wait = not self._drafting.settle(wait=wait) and wait
        if self._checked is not None and (wait or self._checked[1].done()):
            (checks, scores), self._checked = self._checked, None
            for check, found in zip(checks, scores.result(), strict=True):
                if isinstance(found, TideError):
                    check.error = found
                else:
                    check.scores = found
                self._end(check)

    def _send(self, asked: Sequence[Texts]) -> Future[list[Scores | TideError]]:
        return self._scoring.submit(score_all, asked, self._scorer)

    def _end(self, piece: Search | Draft | Check) -> None:
        """What follows on a piece of work that has ended."""
        if piece.cancelled:
            return
        if piece.course is None:
            assert isinstance(piece, Search)
            self._ended.append(piece)
        else:
            self._follow(piece.course)

    def _follow(self, course: Course) -> None:
        following = course.following()
        if following is None:
            self._ended.append(course)
        else:
            self._entering.append(following)

    def close(self) -> None:
        """Wait for the scorer; searches that have not ended are dropped."""
        self._scoring.shutdown(cancel_futures=True)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _enter(self) -> None:
        while self._entering:
            work = self._entering.popleft()
            if isinstance(work, Course):
                self._follow(work)
                continue
            if isinstance(work, Draft):
                self._drafting.ready.append(work)
                continue
            if isinstance(work, Check):
                self._checks.append(work)
                continue
            search = work
            asked = _guarded(search, search.strategy.ask)
            if asked is None or isinstance(asked, LikelihoodRequest):
                search.error = search.error or StrategyError("asked for likelihoods of nothing")
                self._end(search)
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
            for search in late:
                self._end(search)
        self._drafting.drop(now)
        self._checks = [check for check in self._checks if not check.cancelled]

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
            left = iter(written)
            completions = [
                self._shaped(search, [next(left) for _ in some]) for search, some in asked
            ]
        except EngineError as error:
            blamed = [search for search, some in asked if self._is_to_blame(search, some)]
            for search in blamed or batch:
                search.error = search.error or error
                self._end(search)
            rest = [search for search in batch if search.error is None]
            return self._write(rest) if rest else None
        # What was cancelled meanwhile is not scored.
        kept = [i for i, search in enumerate(batch) if not search.cancelled]
        if not kept:
            return None
        asked, completions = [asked[i] for i in kept], [completions[i] for i in kept]
        texts = [[completion.text for completion in some] for some in completions]
        before = [[search.context] * len(some) for search, some in asked]
        policies = [_policy(search) for search, _ in asked]
        scores = self._send(list(zip(texts, before, policies, strict=True)))
        return _Round(asked, completions, scores)

    def _shaped(self, search: Search, written: list[Completion]) -> list[Completion]:
        search.written_tokens += sum(len(completion.token_ids) for completion in written)
        return written if search.shape is None else [search.shape(one) for one in written]

    def _is_to_blame(self, search: Search, asked: Sequence[Candidate]) -> bool:
        try:
            check_rows(self._engine, [one.embeddings for one in asked], search.sampling)
        except EngineError as error:
            search.error = StrategyError(f"the search asked for what no engine takes: {error}")
        return search.error is not None

    def _ask_engine(
        self, call: Callable[..., Any], *arguments: Any, count: int | None = None
    ) -> Any:
        """What the engine answers, one thing for each. Any failure of it is an EngineError.

        count: how many answers there are to be; -1: it is no list.
        """
        count = len(arguments[0]) if count is None else count
        try:
            answer = call(*arguments)
        except TideError:
            raise
        except (Exception, SystemExit) as error:
            raise EngineError(f"engine {self._engine.name} failed: {described(error)}") from error
        if count >= 0 and len(answer) != count:
            raise EngineError(
                f"engine {self._engine.name}: {len(answer)} answers to {count} prompts"
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
        self._decode(scored.asked)
        for search in told:
            if search.done:
                self._end(search)
            else:
                self._entering.append(search)

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

    def _decode(self, asked: Sequence[Asked]) -> None:
        """Find the nearest tokens of the points with which searches end, of all in one call."""
        ending: list[tuple[Search, Tensor]] = []
        for search, some in asked:
            if search.decode and search.done and search.error is None and not search.cancelled:
                best = _guarded(search, getattr, search.strategy, "best")
                place = -1 if best is None else best - (len(search.trace) - len(some))
                if 0 <= place < len(some) and some[place].displacement > 0:
                    ending.append((search, some[place].embeddings))
        if not ending:
            return
        rows = torch.cat([embeddings for _, embeddings in ending])
        try:
            ids = iter(self._ask_engine(self._engine.decode_nearest, rows))
            parts = [tuple(islice(ids, len(embeddings))) for _, embeddings in ending]
            says = getattr(self._engine, "texts", lambda parts: [None] * len(parts))
            texts = self._ask_engine(says, parts)
        except EngineError as error:
            for search, _ in ending:
                search.error = error
            return
        for (search, _), part, text in zip(ending, parts, texts, strict=True):
            search.nearest = part, text


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


def _texts(check: Check) -> Texts:
    return check.texts, [""] * len(check.texts), check.empty_policy


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

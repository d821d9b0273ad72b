"""Batches texts of many coroutines: one scorer call at a time, in a thread."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from tide.core.concurrency import ABORT
from tide.core.errors import ScorerError, TideError, described
from tide.scorers.base import Scorer, Scores, TextPolicy, is_empty, pace_of, score_groups, screen_of


@dataclass(frozen=True)
class _Asked:
    """Texts to score together. policy: of empty ones. screened: by the scorer's screen."""

    texts: Sequence[str]
    policy: TextPolicy
    screened: bool
    future: asyncio.Future[Scores]


_Found = list[tuple[_Asked, Scores | TideError]]


class Scoring:
    """Sends texts to `scorer`. All its methods belong to one event loop.

    While one call is under way, further texts gather for the next. Equal texts are sent once; a
    text that the scorer rejects fails alone, and cancelled ones are not sent.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._pending: list[_Asked] = []
        self._busy = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._calls.put, None).atexit = False

    @property
    def pace(self) -> str:
        """How often the scorer is asked about a growing text; see `Scorer`."""
        return pace_of(self._scorer)

    @property
    def has_screen(self) -> bool:
        return screen_of(self._scorer) is not None

    def send(
        self,
        texts: Sequence[str],
        policy: TextPolicy,
        before: Sequence[str] = (),
        *,
        screened: bool = False,
    ) -> asyncio.Future[Scores]:
        """Scores of `texts`, or a TideError in place of a score.

        before: the text before each. With the policy "one" an empty text scores 1.0, even if the
        text before it is not empty. screened: by the screen alone.
        """
        future: asyncio.Future[Scores] = asyncio.get_running_loop().create_future()
        # After a failure the other results may never be awaited.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        whole = [
            text if policy == "one" and is_empty(text) else start + text
            for text, start in zip(texts, before or [""] * len(texts), strict=True)
        ]
        self._pending.append(_Asked(whole, policy, screened, future))
        if len(self._pending) == 1:  # texts submitted in one turn of the loop are sent together
            asyncio.get_running_loop().call_soon(self._next)
        return future

    def close(self) -> None:
        """Let the thread end after the call that is under way, if any."""
        self._calls.put(None)

    def _next(self) -> None:
        self._pending = [one for one in self._pending if not one.future.done()]
        if self._busy or not self._pending:
            return
        sent, self._pending, self._busy = self._pending, [], True
        loop, scorer, abort = asyncio.get_running_loop(), self._scorer, Future[None]()

        def call() -> None:
            ABORT.set(abort)
            found = _score(sent, scorer)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(self._tell, found)

        def left(_: object) -> None:
            if all(one.future.done() for one in sent):  # nobody waits for its requests
                abort.cancel()

        for one in sent:
            one.future.add_done_callback(left)

        if self._thread is None:
            # A daemon: a scorer that hangs must not keep the program from ending.
            self._thread = threading.Thread(
                target=_serve, args=(self._calls,), name="tide scorer", daemon=True
            )
            self._thread.start()
        self._calls.put(call)

    def _tell(self, found: _Found) -> None:
        self._busy = False
        for asked, one in found:
            if asked.future.done():
                continue
            if isinstance(one, TideError):
                asked.future.set_exception(one)
            else:
                asked.future.set_result(one)
        self._next()


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it holds the Scoring, whose deletion ends this thread


def _score(sent: Sequence[_Asked], scorer: Scorer) -> _Found:
    """Each request with its scores or its error; equal texts are sent once."""
    found: _Found = []
    for policy, screened in dict.fromkeys((one.policy, one.screened) for one in sent):
        alike = [one for one in sent if (one.policy, one.screened) == (policy, screened)]
        whom = (screen_of(scorer) if screened else None) or scorer
        answers: Sequence[Scores | TideError]
        try:
            answers = score_groups(whom, [one.texts for one in alike], policy)
        except TideError as error:  # an error of the scorer, and so of all texts
            answers = [error] * len(alike)
        except BaseException as error:
            answers = [ScorerError(f"scorer {whom.name} failed: {described(error)}")] * len(alike)
        found += zip(alike, answers, strict=True)
    return found

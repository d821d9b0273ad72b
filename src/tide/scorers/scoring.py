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

_Found = list[Scores | TideError]


@dataclass(frozen=True)
class Texts:
    """Texts to score together, each with the text before it.

    policy: the score of an empty text. screened: use the scorer's screen.
    """

    texts: Sequence[str]
    before: Sequence[str]
    policy: TextPolicy
    screened: bool = False


class Scoring:
    """Sends texts to `scorer`. All its methods belong to one event loop.

    While one call is under way, further texts gather for the next. Equal texts are sent once; a
    text that the scorer rejects fails alone, and cancelled ones are not sent.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._pending: list[tuple[Texts, asyncio.Future[Scores]]] = []
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
        """Scores of `texts`, or a TideError in place of a score. screened: by the screen alone."""
        future: asyncio.Future[Scores] = asyncio.get_running_loop().create_future()
        # After a failure the other results may never be awaited.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        sent = Texts(texts, before or [""] * len(texts), policy, screened)
        self._pending.append((sent, future))
        if len(self._pending) == 1:  # texts submitted in one turn of the loop are sent together
            asyncio.get_running_loop().call_soon(self._next)
        return future

    def close(self) -> None:
        """Let the thread end after the call that is under way, if any."""
        self._calls.put(None)

    def _next(self) -> None:
        self._pending = [one for one in self._pending if not one[1].done()]
        if self._busy or not self._pending:
            return
        sent, self._pending, self._busy = self._pending, [], True
        futures = [future for _, future in sent]
        loop, scorer, abort = asyncio.get_running_loop(), self._scorer, Future[None]()

        def call() -> None:
            ABORT.set(abort)
            found = score_all([texts for texts, _ in sent], scorer)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(self._tell, futures, found)

        def left(_: object) -> None:
            if all(future.done() for future in futures):  # nobody waits for its requests
                abort.cancel()

        for future in futures:
            future.add_done_callback(left)

        if self._thread is None:
            # A daemon: a scorer that hangs must not keep the program from ending.
            self._thread = threading.Thread(
                target=_serve, args=(self._calls,), name="tide scorer", daemon=True
            )
            self._thread.start()
        self._calls.put(call)

    def _tell(self, futures: Sequence[asyncio.Future[Scores]], found: _Found) -> None:
        self._busy = False
        for future, one in zip(futures, found, strict=True):
            if future.done():
                continue
            if isinstance(one, TideError):
                future.set_exception(one)
            else:
                future.set_result(one)
        self._next()


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # a reference to the Scoring, whose end also ends this thread


def score_all(asked: Sequence[Texts], scorer: Scorer) -> _Found:
    """The scores of each group of texts, or its error; equal texts are sent once.

    With the policy "one" an empty text scores 1.0, even if the text before it is not empty.
    """
    found: dict[int, Scores | TideError] = {}
    for alike in dict.fromkeys((one.policy, one.screened) for one in asked):
        rows = [i for i, one in enumerate(asked) if (one.policy, one.screened) == alike]
        policy, screened = alike
        whom = (screen_of(scorer) if screened else None) or scorer
        groups = [
            [
                text if policy == "one" and is_empty(text) else before + text
                for text, before in zip(asked[i].texts, asked[i].before, strict=True)
            ]
            for i in rows
        ]
        try:
            found.update(zip(rows, score_groups(whom, groups, policy), strict=True))
        except TideError as error:  # an error of the scorer, and so of all texts
            found.update(dict.fromkeys(rows, error))
        except BaseException as error:
            failed = ScorerError(f"scorer {whom.name} failed: {described(error)}")
            found.update(dict.fromkeys(rows, failed))
    return [found[i] for i in range(len(asked))]

"""The verb for asyncio: calls that run at the same time share engine calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from tide.core.chat import Chat
from tide.core.errors import EngineError
from tide.core.results import Result
from tide.detoxifier.sync import Loaded
from tide.runtime.job import Job, for_stream, open_jobs
from tide.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self, Unpack

    from tide.core.settings import Overrides

# Seconds in which another call may come to share an engine call, and the most of them together: an
# engine call takes many times as long, and one for few costs almost what one for many does.
_WAIT, _LONGEST_WAIT = 0.002, 0.02


class AsyncDetoxifier(Loaded):
    """`Detoxifier` for asyncio: one scheduler, in a thread of its own, serves all calls.

        async with AsyncDetoxifier("my-model", scorer="detoxify:original") as detox:
            results = await asyncio.gather(*(detox(prompt) for prompt in prompts))

    Takes what `Detoxifier` takes. A result is the same as that of a call alone. Calls may come from
    several event loops and have settings of their own.
    """

    def _start(self) -> None:
        self._numbers = count()
        self._entering: SimpleQueue[_Call | None] = SimpleQueue()
        self._calls: set[_Call] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="tide", daemon=True)
        self._thread.start()

    async def chat(self, messages: Sequence[Any], **overrides: Unpack[Overrides]) -> Result:
        """Answer a conversation, as `Detoxifier.chat`."""
        return await self(Chat.of(messages), **overrides)

    async def __call__(self, prompt: str | Chat, **overrides: Unpack[Overrides]) -> Result:
        """Complete one prompt, or answer a chat; keywords override settings for this call alone.

        Cancelling the call frees its place at the next step, and nothing of it is scored
        afterwards. Raises what `Detoxifier` raises; the failure of an engine or a scorer is that of
        the calls that were in its round.
        """
        return await asyncio.wrap_future(self._call(prompt, overrides).future)

    async def stream(
        self, prompt: str | Chat, **overrides: Unpack[Overrides]
    ) -> AsyncGenerator[str | Result, None]:
        """As `Detoxifier.stream`. Leaving it (`aclose`, or cancelling who waits) ends its work."""
        loop = asyncio.get_running_loop()
        texts: asyncio.Queue[str | None] = asyncio.Queue()

        def give(text: str | None) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(texts.put_nowait, text)

        call = self._call(prompt, for_stream(overrides, self.settings), give=give)
        call.future.add_done_callback(lambda _: give(None))
        try:
            while (text := await texts.get()) is not None:
                yield text
            yield call.future.result()
        finally:
            call.future.cancel()

    def _call(
        self, prompt: str | Chat, overrides: Overrides, *, give: Callable[[str], None] | None = None
    ) -> _Call:
        if self._closed:
            raise EngineError("this AsyncDetoxifier is closed; make a new one")
        settings, strategy = self._resolve(overrides)
        call = _Call(self._calls, next(self._numbers), prompt, settings, strategy, give=give)
        self._entering.put(call)
        return call

    @property
    def closed(self) -> bool:
        """Whether it takes no calls any more: it was closed, or its thread ended by a fault."""
        return self._closed

    def close(self) -> None:
        """End the calls that are under way with EngineError, and free the engine and the scorer."""
        if not self._closed:
            self._closed = True
            self._entering.put(None)
            self._thread.join()
            super().close()

    async def aclose(self) -> None:
        """As `close`, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def _serve(self) -> None:
        """What the thread does: takes calls in, steps, gives results out."""
        error: Exception = EngineError("this AsyncDetoxifier was closed")
        try:
            with Scheduler(self.engine, self.scorer) as scheduler:
                answered = False
                while self._take_in(scheduler, answered):
                    answered = False
                    for work in scheduler.step():
                        work.tag.take(work)
                        work.tag.answer()
                        answered = True
        except Exception as bug:
            self._closed, error = True, bug
        finally:
            for call in list(self._calls):
                call.end(error)

    def _take_in(self, scheduler: Scheduler, answered: bool) -> bool:
        """Submit the searches of new calls; waits for one while there is no work. False: closed.

        answered: whether callers have just got results, of whom some may call again at once.
        """
        waits = answered and not scheduler.idle
        # While some prompts are embedded, and a little longer, more may come for the first step.
        while waits or scheduler.idle or not self._entering.empty():
            new = [] if waits else [self._entering.get()]
            until, waits = time.monotonic() + _LONGEST_WAIT, False
            room = self.engine.max_batch if scheduler.has_room() else 0
            with suppress(Empty):
                while len(new) < room and time.monotonic() < until:
                    new.append(self._entering.get(timeout=_WAIT))
            if None in new:
                return False
            for opened in open_jobs((call for call in new if call is not None), self.engine):
                if not isinstance(opened, Job):
                    scheduler.submit(opened)
                else:
                    opened.answer()
        return True


class _Call(Job):
    """A job that somebody awaits."""

    def __init__(self, calls: set[_Call], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.future: Future[Result] = Future()
        calls.add(self)

        def ended(future: Future[Result]) -> None:
            calls.discard(self)
            if future.cancelled():
                self.cancel()

        self.future.add_done_callback(ended)

    def answer(self) -> None:
        """Give the outcome, if there is one, to who awaits it."""
        if self.outcome is not None:
            self.end(self.outcome)

    def end(self, outcome: Result | Exception) -> None:
        with suppress(InvalidStateError):  # cancelled in this very moment
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)

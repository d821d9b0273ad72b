"""A loop of one's own: coroutines that run in a thread apart from those that wait for them."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from tide.core.errors import EngineError, described

_T = TypeVar("_T")


class HomeLoop:
    """An event loop in a daemon thread of its own, for an engine and all that works with it.

    Callers may be in any thread, inside of an event loop or not. What is under way when it is
    closed ends with EngineError, and so does a coroutine that lets a foreign exception escape that
    would end the thread (KeyboardInterrupt, SystemExit).
    """

    def __init__(self, name: str) -> None:
        self._owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._closed = False
        self._waited_for: set[Future[Any]] = set()
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in it."""
        return threading.current_thread() is self._thread

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork: of threads, it has the one that forked alone."""
        return self._owner != os.getpid()

    def start(self, call: Callable[..., Awaitable[_T]], *arguments: Any) -> Future[_T]:
        """Begin `await call(*arguments)` in the loop; cancelling the future cancels it there."""
        if self.is_forked:
            raise EngineError("the process was forked; make a new engine in the new process")
        future: Future[_T] = Future()
        self._waited_for.add(future)
        future.add_done_callback(self._waited_for.discard)
        release_openmp_threads()

        def begin() -> None:
            if future.cancelled():
                return
            if self._closed:  # a generator that began now would never be shut down
                _refuse(future)
                return
            task = self._loop.create_task(_finish(call, arguments, future))
            future.add_done_callback(
                lambda ended: self._cancel(task) if ended.cancelled() else None
            )

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            self._waited_for.discard(future)
            raise EngineError("the engine is closed; make a new one") from None
        return future

    def run(self, call: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """`await call(*arguments)` in the loop, for code that waits, but not in the loop itself."""
        future = self.start(call, *arguments)
        try:
            return future.result()
        finally:
            future.cancel()  # Ctrl-C stops the work, too

    async def call(self, call: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """As `run`, for coroutines of another loop."""
        return await asyncio.wrap_future(self.start(call, *arguments))

    async def iterate(
        self, call: Callable[..., AsyncGenerator[_T, None]], *arguments: Any
    ) -> AsyncGenerator[_T, None]:
        """What `call(*arguments)`, which runs in the loop, yields, for any other loop."""
        mailbox: Mailbox[_T] = Mailbox()

        async def pump() -> None:
            async with aclosing(call(*arguments)) as items:
                async for item in items:
                    mailbox.put(item)

        future = self.start(pump)
        future.add_done_callback(lambda ended: mailbox.end(_error_of(ended)))
        try:
            async for item in mailbox:
                yield item
        finally:
            future.cancel()

    def close(self, *, wait: bool = True) -> None:
        """Cancel what is under way, and end the thread. wait: until it has ended."""
        if self.is_forked:
            return
        if not self._closed:
            self._closed = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)
        if wait and not self.is_current:
            self._thread.join()

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the task
            self._loop.call_soon_threadsafe(task.cancel)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            while tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            # What was begun while it closed never ran.
            for future in list(self._waited_for):
                _refuse(future)


def _refuse(future: Future[Any]) -> None:
    with suppress(InvalidStateError):
        future.set_exception(EngineError("the engine was closed"))


async def _finish(
    call: Callable[..., Awaitable[_T]], arguments: tuple[Any, ...], future: Future[_T]
) -> None:
    with suppress(InvalidStateError):  # cancelled in this very moment
        try:
            result = await call(*arguments)
        except asyncio.CancelledError:
            if not future.cancelled():
                future.set_exception(EngineError("ended before it was done: the engine was closed"))
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:  # would end the thread, and is of this call alone
            future.set_exception(EngineError(f"the work failed: {described(error)}"))
        else:
            future.set_result(result)


def _error_of(future: Future[Any]) -> BaseException | None:
    return None if future.cancelled() else future.exception()


class Mailbox(Generic[_T]):
    """Takes items from any thread; one coroutine iterates over them until `end`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[Any, BaseException | None, bool]] = deque()
        self._filled = asyncio.Event()

    def put(self, item: _T) -> None:
        self._add(item, None, False)

    def end(self, error: BaseException | None = None) -> None:
        """No more items will come; with an `error`, the reader raises it."""
        self._add(None, error, True)

    async def __aiter__(self) -> AsyncGenerator[_T, None]:
        while True:
            while not self._items:
                self._filled.clear()
                await self._filled.wait()
            item, error, ended = self._items.popleft()
            if error is not None:
                raise error
            if ended:
                return
            yield item

    def _add(self, item: Any, error: BaseException | None, ended: bool) -> None:
        self._items.append((item, error, ended))
        with suppress(RuntimeError):  # the reader's loop is closed
            self._loop.call_soon_threadsafe(self._filled.set)


async def told(
    work: Callable[[Callable[[_T], None]], Coroutine[Any, Any, None]],
) -> AsyncGenerator[_T, None]:
    """What `work` puts, item by item. Raises what it raises; closing the generator cancels it."""
    items: Mailbox[_T] = Mailbox()
    task = asyncio.create_task(work(items.put))
    task.add_done_callback(lambda _: items.end())
    try:
        async with aclosing(items.__aiter__()) as given:
            async for item in given:
                yield item
        await task
    finally:
        task.cancel()


async def gather(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All results, in order. The first failure cancels the others, and is raised after they end."""
    coroutines = list(work)
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.ensure_future(_contained(coroutine)) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        if unfinished := [task for task in tasks if not task.done()]:
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        for coroutine in coroutines:
            coroutine.close()  # one that was cancelled before it began


async def _contained(coroutine: Coroutine[Any, Any, _T]) -> _T:
    try:
        return await coroutine
    except (KeyboardInterrupt, SystemExit) as error:  # of a task, these would end the loop
        raise EngineError(f"the work failed: {described(error)}") from error


def release_openmp_threads() -> None:
    """Let the calling thread's OpenMP threads go; they come back with its next parallel work.

    GNU's OpenMP counts those of all threads that ever computed in parallel. With more of them than
    cores it puts each to sleep after every parallel loop, and a small model takes three times as
    long for a step. So who waits, for an engine's thread or for work, should not hold any. Takes 15
    microseconds.
    """
    if "torch" in sys.modules and (pause := _openmp_pause()) is not None:
        pause(1)  # omp_pause_soft


@functools.cache
def _openmp_pause() -> Any:
    """OpenMP's `omp_pause_resource_all` of the library that torch brings; None without it."""
    with suppress(Exception):
        folder = Path(sys.modules["torch"].__file__ or "").parent / "lib"
        for library in folder.glob("libgomp*.so*"):
            return ctypes.CDLL(str(library)).omp_pause_resource_all
    return None

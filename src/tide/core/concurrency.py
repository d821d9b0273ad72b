"""Portals to event loops in background threads, and passing items between event loops."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import functools
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tide.core.errors import EngineError, TideError, described

_T = TypeVar("_T")
_Loop = asyncio.AbstractEventLoop
# When this future is done, the portal work that the current thread waits for is cancelled.
ABORT: ContextVar[Future[None] | None] = ContextVar("abort", default=None)
# When the current thread stops waiting for portal work, by `time.monotonic`; see `time_limit`.
_UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)

_MAKING = threading.Lock()
_OPEN: weakref.WeakSet[Portal] = weakref.WeakSet()
_WORKING: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_EXITING = threading.Event()
_GLANCE = 0.5  # seconds until a waiting main thread handles a signal that another thread got


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Within the block, `Portal.run` raises TimeoutError after so many seconds in all."""
    token = _UNTIL.set(min(_UNTIL.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _UNTIL.reset(token)


def _end_all() -> None:
    """End all portals before Python exits; it would abort if a thread were inside torch."""
    _EXITING.set()
    portals = [portal for portal in _OPEN if not portal.is_forked]
    for portal in portals:
        portal.close(wait=False)
    _join([portal._thread for portal in portals])


def wait_for_threads() -> None:
    """Wait for the threads of `start_thread` before Python exits; they may be inside ONNX."""
    _join(list(_WORKING))


def is_exiting() -> bool:
    """Whether Python exits; work that has long to go should then end."""
    return _EXITING.is_set()


def _join(threads: Iterable[threading.Thread]) -> None:
    until = time.monotonic() + 5.0
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


# They run in reverse: a portal that has ended starts no more threads.
atexit.register(wait_for_threads)
atexit.register(_end_all)


def start_thread(work: Callable[[], object], name: str) -> None:
    """Start a daemon thread; one that hangs keeps the program running for seconds only.

    Raises RuntimeError if the process has too many threads.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    _WORKING.add(thread)


def _new_loop() -> _Loop:
    try:
        import uvloop  # noqa: PLC0415  (only with the extra `gateway`)
    except ImportError:
        return asyncio.new_event_loop()
    loop: _Loop = uvloop.new_event_loop()
    return loop


class Portal:
    """Runs coroutines in an event loop in a daemon thread, for callers in any thread or loop.

    Closing a portal ends all running work with `error`. Work that raises KeyboardInterrupt or
    SystemExit also ends with `error`, and the thread goes on. owner: name of the owner, for errors.

    Unlike anyio's BlockingPortal, a Portal survives these exceptions, never blocks a caller's event
    loop while its own loop is busy, and can be closed by the garbage collector or by its own work.
    """

    def __init__(
        self, name: str, owner: str = "engine", error: type[TideError] = EngineError
    ) -> None:
        self._process, self._owner, self._error = os.getpid(), owner, error
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._closed = False
        self._waited_for: set[Future[Any]] = set()
        self._thread.start()
        _OPEN.add(self)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this portal's loop."""
        return threading.current_thread() is self._thread

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork, in which the portal's thread does not exist."""
        return self._process != os.getpid()

    def check_fork(self) -> None:
        """Raise `error` if the process was forked since the portal was made."""
        if self.is_forked:
            raise self._error(
                f"the process was forked; make a new {self._owner} in the new process"
            )

    def start(self, call: Callable[..., Awaitable[_T]], *arguments: Any) -> Future[_T]:
        """Start `call(*arguments)` in the loop; cancelling the returned future cancels the call."""
        self.check_fork()
        future: Future[_T] = Future()
        self._waited_for.add(future)
        future.add_done_callback(self._waited_for.discard)
        release_openmp_threads()

        def begin() -> None:
            if self._closed:  # a generator that began now would never be shut down
                self._refuse(future)
            elif not future.cancelled():
                task = self._loop.create_task(self._finish(call, arguments, future))
                future.add_done_callback(
                    lambda ended: ended.cancelled() and self._soon(task.cancel)
                )

        if not self._soon(begin):
            self._waited_for.discard(future)
            raise self._error(f"the {self._owner} is closed; make a new one")
        return future

    def run(self, call: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """Run `call(*arguments)` in the loop and block until it ends; not in the loop's thread.

        Raises TimeoutError at the end of a `time_limit`.
        """
        if self.is_current:  # such as a `close` that the garbage collector calls; it would hang
            raise self._error(f"the {self._owner} waits for itself")
        future = self.start(call, *arguments)
        if (abort := ABORT.get()) is not None:
            abort.add_done_callback(lambda _: future.cancel())
        try:
            # The system may give a signal to any thread that is being started. Python handles it in
            # the main thread, which a wait without an end would never leave.
            while not future.done():
                left = _UNTIL.get() - time.monotonic()
                if left <= 0:
                    raise TimeoutError("no answer in time")
                with suppress(TimeoutError, CancelledError):
                    future.exception(timeout=min(_GLANCE, left))
            return future.result()
        finally:
            future.cancel()  # Ctrl-C stops the work, too

    async def call(self, call: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """Like `run`, but await the result in the caller's loop instead of blocking."""
        return await asyncio.wrap_future(self.start(call, *arguments))

    async def iterate(
        self, call: Callable[..., AsyncGenerator[_T, None]], *arguments: Any
    ) -> AsyncGenerator[_T, None]:
        """Iterate, in the caller's loop, over `call(*arguments)`, which runs in this loop.

        Raises its error. Closing the generator cancels the call.
        """
        items: Mailbox[_T] = Mailbox()

        async def pump() -> None:
            async with aclosing(call(*arguments)) as source:
                async for item in source:
                    items.put(item)

        running = asyncio.wrap_future(self.start(pump))
        running.add_done_callback(items.end)
        try:
            async for item in items:
                yield item
            await running
        finally:
            if not running.cancel() and not running.cancelled():
                running.exception()  # else asyncio would log "exception was never retrieved"

    def close(self, *, wait: bool = True) -> None:
        """Cancel running work, and end the thread. wait: block until the thread has ended."""
        if self.is_forked:
            return
        if not self._closed:
            self._closed = True
            self._soon(self._loop.stop)
        if wait and not self.is_current:
            self._thread.join()

    def _soon(self, call: Callable[[], object]) -> bool:
        """Schedule `call` in the loop; returns False if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return False
        return True

    def _refuse(self, future: Future[Any]) -> None:
        with suppress(InvalidStateError):
            future.set_exception(self._error(f"the {self._owner} was closed"))

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
            Mailbox.leave(self._loop)
            # Work that was submitted while the loop was closing never ran.
            for future in list(self._waited_for):
                self._refuse(future)

    async def _finish(
        self, call: Callable[..., Awaitable[_T]], arguments: tuple[Any, ...], future: Future[_T]
    ) -> None:
        with suppress(InvalidStateError):  # the future was cancelled meanwhile
            try:
                result = await call(*arguments)
            except asyncio.CancelledError:
                if not future.cancelled():
                    problem = "the work was cancelled"
                    if self._closed:
                        problem += f" because the {self._owner} was closed"
                    future.set_exception(self._error(problem))
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:  # must end this call, not the thread
                future.set_exception(self._error(f"the work failed: {described(error)}"))
            else:
                future.set_result(result)


def portal_of(owner: object, kind: str = "engine", error: type[TideError] = EngineError) -> Portal:
    """Return the portal of `owner`, made at the first call, closed when `owner` is collected."""
    portal: Portal | None = vars(owner).get("_portal")
    if portal is None:
        with _MAKING:
            portal = vars(owner).get("_portal")
            if portal is None:
                portal = Portal(f"tide {type(owner).__name__}", kind, error)
                vars(owner)["_portal"] = portal
                weakref.finalize(owner, portal.close, wait=False).atexit = False
    return portal


class Mailbox(Generic[_T]):
    """Takes items from any thread. One coroutine iterates over the items until `end` is called.

    When one loop puts items for readers in another loop, it wakes that loop once for all items of a
    turn: waking a thread costs more than most items, and the woken thread takes the interpreter's
    lock.
    """

    # Readers to wake, by the loop in which items were put and the readers' loop.
    _to_wake: ClassVar[dict[tuple[_Loop, _Loop], list[asyncio.Event]]] = {}

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[_T, ...]] = deque()
        self._arrived = asyncio.Event()

    def put(self, *item: _T) -> None:
        self._items.append(item)  # at once: `end` comes from other threads than the items
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:  # a thread without a loop
            _wake([self._arrived], self._loop)
            return
        if here is self._loop:
            self._arrived.set()
            return
        route = here, self._loop
        if route not in self._to_wake:
            self._to_wake[route] = []
            here.call_soon(lambda: _wake(self._to_wake.pop(route), self._loop))
        self._to_wake[route].append(self._arrived)

    @property
    def is_waiting(self) -> bool:
        """Whether an item was put that was not read yet."""
        return bool(self._items)

    def end(self, *_: object) -> None:
        """End the iteration after all items put before."""
        self.put()

    @classmethod
    def leave(cls, loop: _Loop) -> None:
        """Wake the readers of items that a closed loop put in its last turn."""
        for route in list(cls._to_wake):
            if route[0] is loop:
                _wake(cls._to_wake.pop(route), route[1])

    async def __aiter__(self) -> AsyncGenerator[_T, None]:
        while await self._arrived.wait():
            self._arrived.clear()
            while self._items:
                if not (item := self._items.popleft()):
                    return
                yield item[0]


def _wake(readers: Sequence[asyncio.Event], loop: _Loop) -> None:
    def wake() -> None:
        for reader in readers:
            reader.set()

    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(wake)


async def gather(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all `work`; return the results in order. A failure cancels the rest and is raised."""
    coroutines = list(work)
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        if unfinished := [task for task in tasks if not task.done()]:
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)


def release_openmp_threads() -> None:
    """Release the calling thread's OpenMP threads; its next parallel work makes new ones.

    GNU's OpenMP counts the threads of all callers. If there are more threads than cores, it puts
    every thread to sleep after each parallel loop, and a step of a small model takes three times as
    long. So a waiting thread should hold no OpenMP threads. The call takes 15 microseconds.
    """
    if "torch" in sys.modules and (pause := _openmp_pause()) is not None:
        pause(1)  # omp_pause_soft


@functools.cache
def _openmp_pause() -> Any:
    """Return `omp_pause_resource_all` of torch's own OpenMP library, or None without a library."""
    with suppress(Exception):
        folder = Path(sys.modules["torch"].__file__ or "").parent / "lib"
        for library in folder.glob("libgomp*.so*"):
            return ctypes.CDLL(str(library)).omp_pause_resource_all
    return None

"""Event loops in background threads, and passing items between loops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing

import pytest

from tests.server.running import wait_until
from tide.core.concurrency import Mailbox, Portal, gather
from tide.core.errors import EngineError, InputError, guarded


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal("tide test")
    yield portal
    portal.close()
    assert "tide test" not in [thread.name for thread in threading.enumerate()]


class Work:
    """A coroutine that waits, and records the exception that ended it."""

    def __init__(self) -> None:
        self.began, self.ended = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    async def __call__(self, seconds: float = 60.0) -> str:
        self.began.set()
        try:
            await asyncio.sleep(seconds)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.ended.set()
        return "done"


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0.01)
    raise error


def call_while_closing(portal: Portal, call: Callable[[], object]) -> AsyncGenerator[None, None]:
    """Make the portal's loop call this when it shuts down its generators. Keep what is returned."""

    async def open_generator() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            call()

    async def begin() -> AsyncGenerator[None, None]:
        generator = open_generator()
        await anext(generator)
        return generator

    return portal.run(begin)


# Portal


def test_portal_failure_reaches_its_caller_alone(portal: Portal) -> None:
    """Also exceptions that would end the thread, or an interrupt raised by third-party code."""

    async def foreign() -> None:
        with guarded(EngineError, "model m: writing failed", awaits=True):
            raise KeyboardInterrupt

    future = portal.start(Work(), 0.2)
    with pytest.raises(InputError, match="no such thing"):
        portal.run(fail, InputError("no such thing"))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(portal.call(fail, ZeroDivisionError()))
    for error in (KeyboardInterrupt(), SystemExit(3), GeneratorExit()):
        with pytest.raises(EngineError, match=f"the work failed: {type(error).__name__}"):
            portal.run(fail, error)
    with pytest.raises(EngineError, match="model m: writing failed: KeyboardInterrupt"):
        portal.run(foreign)
    assert future.result(10) == "done"


def test_work_that_is_cancelled_before_it_begins_never_begins(portal: Portal) -> None:
    blocked, busy, late = threading.Event(), threading.Event(), Work()

    async def block() -> None:
        blocked.set()
        busy.wait(10)

    portal.start(block)
    assert blocked.wait(10)
    assert portal.start(late).cancel()
    busy.set()
    assert portal.run(Work(), 0) == "done"
    assert not late.began.is_set()


def test_signal_that_another_thread_gets_is_handled_while_the_main_thread_waits(
    portal: Portal,
) -> None:
    handled = threading.Event()

    async def interrupt() -> bool:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return await asyncio.to_thread(handled.wait, 20.0)

    before = signal.signal(signal.SIGUSR1, lambda *_: handled.set())
    try:
        assert portal.run(interrupt)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("wait", [True, False])
def test_portal_close_ends_running_work(wait: bool) -> None:
    portal, works = Portal("tide closing"), [Work(), Work()]
    futures = [portal.start(work) for work in works]
    assert all(work.began.wait(10) for work in works)
    portal.close(wait=wait)
    portal.close()
    for work, future in zip(works, futures, strict=True):
        with pytest.raises(EngineError, match="the engine was closed"):
            future.result(10)
        assert work.ended.is_set()
    wait_until(lambda: "tide closing" not in [thread.name for thread in threading.enumerate()])
    with pytest.raises(EngineError, match="closed; make a new one"):
        portal.run(Work(), 0)


def test_portal_refuses_work_while_its_loop_closes() -> None:
    portal = Portal("test")
    closing, go = threading.Event(), threading.Event()
    kept = call_while_closing(portal, lambda: closing.set() or go.wait(10))
    portal.close(wait=False)
    assert closing.wait(10)

    async def items() -> AsyncGenerator[int, None]:
        yield 1

    async def read() -> list[int]:
        return [item async for item in portal.iterate(items)]

    threading.Timer(0.2, go.set).start()
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(read())
    portal.close()
    del kept


def test_portal_may_be_closed_by_its_own_work() -> None:
    portal = Portal("tide own end")

    async def close() -> None:
        portal.close()

    portal.run(close)
    wait_until(lambda: "tide own end" not in [t.name for t in threading.enumerate()])


def test_portal_iterate_yields_items_before_the_error(
    portal: Portal, caplog: pytest.LogCaptureFixture
) -> None:
    async def torn() -> AsyncGenerator[str, None]:
        yield "a"
        yield "b"
        raise InputError("torn")

    seen: list[str] = []

    async def read(most: int) -> None:
        async with aclosing(portal.iterate(torn)) as items:
            while len(seen) < most:
                seen.append(await anext(items))

    with pytest.raises(InputError, match="torn"):
        asyncio.run(read(9))
    assert seen == ["a", "b"]
    seen.clear()
    asyncio.run(read(1))  # a reader that leaves earlier does not get the error
    gc.collect()
    assert caplog.text == ""


# Mailbox


def test_mailbox_without_reader_takes_items() -> None:
    async def make() -> Mailbox[int]:
        return Mailbox()

    mailbox = asyncio.run(make())
    mailbox.put(1)
    mailbox.end()


def test_mailbox_end_does_not_overtake_items(portal: Portal) -> None:
    """The readers' loop ends a mailbox in the turn in which another loop puts an item."""

    async def run() -> list[int]:
        box = Mailbox[int]()
        has_put, may_go_on = threading.Event(), threading.Event()

        async def put() -> None:
            box.put(1)
            has_put.set()
            assert may_go_on.wait(10.0)

        work = portal.start(put)
        assert has_put.wait(10.0)
        box.end()
        await asyncio.sleep(0)  # what `end` scheduled comes before the other loop's next turn
        may_go_on.set()
        work.result(10.0)
        return [item async for item in box]

    assert asyncio.run(run()) == [1]


@pytest.mark.parametrize("turns", [0, 2, 4])
def test_mailbox_gets_items_of_a_closing_loop(turns: int) -> None:
    closing = Portal("tide test")

    async def read() -> bool:
        box, put = Mailbox[int](), []

        def late(left: int) -> None:
            if left:
                asyncio.get_running_loop().call_soon(late, left - 1)
            else:
                box.put(1)
                put.append(1)

        kept = call_while_closing(closing, lambda: late(turns))
        closing.close()
        items = aiter(box)
        del kept
        return not put or await asyncio.wait_for(anext(items), 10) == 1

    assert asyncio.run(read())


# gather


def test_gather_ends_the_others_before_it_raises_a_failure() -> None:
    works = [Work(), Work()]

    async def run() -> None:
        await gather([*(work() for work in works), fail(InputError("one of them"))])

    with pytest.raises(InputError, match="one of them"):
        asyncio.run(run())
    assert all(isinstance(work.error, asyncio.CancelledError) for work in works)


def test_gather_closes_work_that_never_began() -> None:
    """A coroutine that is never awaited would warn, and these tests turn warnings into errors."""
    works = [Work() for _ in range(3)]

    async def cancelled() -> None:
        task = asyncio.ensure_future(gather(work() for work in works))
        await asyncio.sleep(0)  # now the tasks of `gather` exist, but have not run
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not any(work.began.is_set() for work in works)


# guarded


@pytest.mark.parametrize("awaits", [False, True])
def test_guarded_turns_foreign_exceptions_into_its_own(awaits: bool) -> None:
    for error in (ValueError("a\nb"), RuntimeError("a"), KeyError("a"), MemoryError(), OSError(2)):
        with (
            pytest.raises(EngineError, match=r"^model m: writing failed: .") as caught,
            guarded(EngineError, "model m: writing failed", awaits=awaits),
        ):
            raise error
        assert caught.value.__cause__ is error
    with pytest.raises(InputError, match=r"^as it is$"), guarded(EngineError, "x", awaits=awaits):
        raise InputError("as it is")


def test_guarded_passes_cancellation_where_it_awaits() -> None:
    for error in (asyncio.CancelledError, GeneratorExit):
        with pytest.raises(error), guarded(EngineError, "x", awaits=True):
            raise error
        with pytest.raises(EngineError), guarded(EngineError, "x"):
            raise error
    with pytest.raises(KeyboardInterrupt), guarded(EngineError, "x"):
        raise KeyboardInterrupt


FORKED = """
import os, signal, warnings
from tests.scripted_engine import ScriptedEngine
from tide import Detoxifier, TideError

warnings.simplefilter("ignore")  # newer Pythons warn about the fork
def new():
    engine = ScriptedEngine(lambda x, seed: "word")
    return Detoxifier(engine, scorer=lambda texts: [0.0] * len(texts))

detox = new()
detox("before")
if (child := os.fork()) == 0:
    signal.alarm(30)  # instead of a hang
    for use in (detox, lambda prompt: list(detox.map([prompt])), detox.engine.tokenize):
        try:
            print(use("x"), flush=True)
        except TideError as error:
            print(error, flush=True)
    detox.close()
    print(new()("x").text, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(detox("after").text)
"""


def ended(script: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own until it ends."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_portal_refuses_each_use_after_a_fork() -> None:
    done = ended(FORKED)
    assert (done.returncode, done.stderr) == (0, "")
    error = "the process was forked; make a new engine in the new process"
    assert done.stdout.splitlines() == [error, error, error, "word", "word"]


@pytest.mark.nightly
def test_a_script_may_end_while_a_network_has_many_texts_to_read() -> None:
    script = (
        "import asyncio\n"
        "from tide.scorers import load_scorer\n"
        "from tide.scorers.base import Exchange\n"
        "from tide.scorers.scoring import Scoring\n"
        "async def send(scorer):\n"
        "    texts = [Exchange('', f'text {i} of many words ' * 99) for i in range(240)]\n"
        "    Scoring(scorer).send(texts)\n"
        "    await asyncio.sleep(0.5)\n"
        "asyncio.run(send(load_scorer('exchange')))\n"
    )
    done = ended(script, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.nightly
def test_a_script_may_end_while_work_is_under_way() -> None:
    script = (
        "import tide\n"
        "detox = tide.Detoxifier()\n"
        "for result in detox.map(f'The {i}' for i in range(500)):\n"
        "    break\n"
    )
    done = ended(script, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("end", "seconds", "shown"),
    [
        ("asyncio.run(send())", 0.5, "scored\n"),
        # A command of the shell need not wait.
        ("tide.cli.main = lambda: asyncio.run(send())\ntide.cli.program()", 4.5, ""),
    ],
)
def test_python_waits_for_a_scorer_that_is_at_work_when_it_exits(
    end: str, seconds: float, shown: str
) -> None:
    script = (
        "import asyncio, time, tide.cli\n"
        "from tide.scorers.base import CallableScorer, Exchange\n"
        "from tide.scorers.scoring import Scoring\n"
        "def score(texts):\n"
        f"    time.sleep({seconds})\n"
        "    print('scored', flush=True)\n"
        "    return [0.0] * len(texts)\n"
        "async def send():\n"
        "    Scoring(CallableScorer(score)).send([Exchange('', 'a text')])\n"
        "    await asyncio.sleep(0.1)\n"
        f"{end}\n"
    )
    done = ended(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")

"""However it is called, work ends with its caller, whatever fails, and no thread is left."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import pytest

from tests.fakes import HeldScorer
from tests.runtime.world import PROMPT, REPAIRED, SETTINGS, WORDS, Reader, Storyteller, third
from tests.scripted_engine import ScriptedEngine
from tests.worlds import ReadingScorer
from tide.core.errors import DeadlineError, EngineError
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Request

# Phases: the draft, and the repair of its third sentence.


class Stops(Storyteller):
    """A story whose third sentence is repaired. In `phase` it awaits `then()`, once."""

    def __init__(self, phase: str, then: Callable[[], Any]) -> None:
        super().__init__(third)
        self._phase, self._then = phase, then
        self.reached = threading.Event()

    async def _pause(self, request: Request, written: int) -> None:
        now = "draft" if written >= WORDS else ""
        if request.banned_token_ids:
            now = "repair"
        if now == self._phase and not self.reached.is_set():
            self.reached.set()
            await self._then()


async def for_ever() -> None:
    await asyncio.sleep(3600)


def hanging(phase: str) -> HeldScorer:
    """A reader that waits for `go` at texts of `phase`."""
    return HeldScorer(
        holds=lambda text: ("m " in text) == (phase == "repair"),
        score=lambda text: 0.9 if "Bad" in text else 0.1,
    )


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No new thread is left; that of a hanging scorer ends when `go` is set."""
    gc.collect()
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 20
    while left := [thread for thread in threading.enumerate() if thread not in before]:
        assert time.monotonic() < until, left
        gc.collect()  # a thread that has just ended may have kept a cycle alive
        time.sleep(0.01)


def within(seconds: float, true: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "not within the time"
        time.sleep(0.005)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "door",
    ["task", "async stream", "left async stream", "stream", "left stream", "map", "closed map"],
)
def test_a_caller_who_leaves_ends_the_work_within_a_second(door: str) -> None:
    engine, scorer = Stops("repair", for_ever), Reader()

    async def leave() -> None:
        async with AsyncDetoxifier(engine, scorer=scorer, **SETTINGS) as detox:
            if door == "left async stream":
                stream: Any = detox.stream(PROMPT)
                assert await asyncio.to_thread(engine.reached.wait, 20)
                del stream
                gc.collect()
            else:
                call = detox(PROMPT) if door == "task" else _read(detox.stream(PROMPT))
                work = asyncio.create_task(call)
                assert await asyncio.to_thread(engine.reached.wait, 20)
                work.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(work, 1)
            await asyncio.to_thread(over)
            assert (await asyncio.wait_for(detox(PROMPT), 20)).text == REPAIRED

    def over() -> None:
        within(1, lambda: engine.under_way == 0)
        sent = len(scorer.texts)
        time.sleep(0.1)
        assert len(scorer.texts) == sent

    if door == "task" or "async" in door:
        with engine:
            asyncio.run(leave())
        return
    with engine, Detoxifier(engine, scorer=scorer, **SETTINGS) as detox:
        if "stream" in door:
            stream: Any = detox.stream(PROMPT)
            assert engine.reached.wait(20)
            if door == "stream":
                stream.close()
            del stream
            gc.collect()
        else:
            # The other prompt is yielded first, so the generator is in the middle of its work.
            results: Any = detox.map([PROMPT, "once upon a night"], ordered=False)
            next(results)
            assert engine.reached.is_set()
            assert engine.under_way == 1
            if door == "map":
                del results  # without `close`
                gc.collect()
            else:
                results.close()
        over()
        assert detox(PROMPT).text == REPAIRED


async def _read(stream: Any) -> list[str]:
    return [piece async for piece in stream]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("phase", ["draft", "repair"])
def test_a_scorer_that_hangs_is_ended_by_the_deadline(phase: str) -> None:
    """Closing does not wait for the scorer either. Text that is given out was scored."""
    scorer, engine = hanging(phase), Stops("never", for_ever)
    detox = Detoxifier(engine, scorer=scorer, **SETTINGS, deadline=0.5)
    started = time.monotonic()
    try:
        trial = detox(PROMPT).best
    except DeadlineError:
        trial = None
    assert scorer.entered.is_set()
    assert time.monotonic() - started < 10  # the scorer hangs for ever
    if trial is not None:
        assert any(scored.endswith(trial.text) for scored in scorer.texts) or not trial.accepted
    started = time.monotonic()
    detox.close()
    assert time.monotonic() - started < 10
    engine.close()
    scorer.go.set()


def test_a_detoxifier_that_is_dropped_leaves_no_thread() -> None:
    before = threading.active_count()
    for _ in range(5):
        detox = Detoxifier(ScriptedEngine(lambda x, seed: "a text"), scorer=ReadingScorer())
        assert detox("a prompt").accepted
    del detox

    def gone() -> bool:
        gc.collect()
        return threading.active_count() <= before

    within(20, gone)


@pytest.mark.usefixtures("nothing_left")
def test_closing_ends_a_map_and_calls_of_other_threads() -> None:
    """The scorer hangs. The engine was passed in, and stays open."""
    scorer, engine = hanging("draft"), Stops("never", for_ever)
    detox = Detoxifier(engine, scorer=scorer, **SETTINGS)
    with ThreadPoolExecutor() as threads:
        call = threads.submit(detox, PROMPT)
        endless_map = threads.submit(lambda: list(detox.map(repeat(PROMPT))))
        assert scorer.entered.wait(20)
        detox.close()
        for work in (call, endless_map):
            with pytest.raises(EngineError, match="the detoxifier was closed"):
                work.result(10)
    assert not engine.closed
    with pytest.raises(EngineError, match="closed; make a new one"):
        detox(PROMPT)
    engine.close()
    scorer.go.set()


def _streamed(detox: Detoxifier) -> Any:
    with detox.stream(PROMPT) as stream:
        return list(stream)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no such signals here")
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(lambda detox: detox(PROMPT), id="call"),
        pytest.param(lambda detox: list(detox.map([PROMPT, "once upon a night"])), id="map"),
        pytest.param(_streamed, id="stream"),
    ],
)
def test_ctrl_c_ends_the_work(way: Callable[[Detoxifier], Any]) -> None:
    engine, main_thread = Stops("draft", for_ever), threading.main_thread().ident
    assert main_thread is not None

    def interrupt() -> None:
        assert engine.reached.wait(20)
        time.sleep(0.1)
        signal.pthread_kill(main_thread, signal.SIGINT)

    with engine, Detoxifier(engine, scorer=Reader(), **SETTINGS) as detox:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            way(detox)
        thread.join()
        within(1, lambda: engine.under_way == 0)
        assert detox(PROMPT).text == REPAIRED

"""What holds at every door, whatever fails: others end as alone, and nothing is left behind."""

from __future__ import annotations

import asyncio
import functools
import gc
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.runtime.world import PROMPT, SETTINGS, WORDS, Reader, Storyteller, text
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.errors import DeadlineError, EngineError, InputError
from tide.core.results import Result
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier, outcomes
from tide.engines.base import Request
from tide.engines.local.engine import TransformersEngine
from tide.engines.scripted import ScriptedEngine
from tide.pocket import MODEL

ADDED = "<added>"
BAD = 7  # the number of the prompt that holds it
MANY = [
    f"She told me that {word}"
    for word in ["one", "two", "three", "four", "five", "six", "seven", "eight"]
]
MANY = [*MANY[:BAD], f"She told {ADDED} me", *MANY[BAD:], *(f"{one} and" for one in MANY)]
MANY += [f"{one} so" for one in MANY[:4]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pocket model, whose tokenizer has a token more than its table has rows."""
    folder = tmp_path_factory.mktemp("added") / "model"
    shutil.copytree(MODEL, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([ADDED])
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def added(folder: Path) -> Iterator[TransformersEngine]:
    with TransformersEngine(folder) as engine:
        yield engine


@pytest.fixture(scope="module")
def others(added: TransformersEngine) -> dict[int, str]:
    """What the other prompts become, each alone."""
    detox = Detoxifier(added, scorer="pocket", **FEW)
    return {number: detox(one).text for number, one in enumerate(MANY) if number != BAD}


FEW: dict[str, Any] = {
    "max_new_tokens": 8,
    "num_samples": 2,
    "max_iterations": 2,
    "on_unresolved": "refuse",  # as streams and the server have it
    "strategy": "tide",
}


def judged(found: dict[int, Any], others: dict[int, str]) -> None:
    error = found.pop(BAD)
    assert isinstance(error, InputError)
    assert len(str(error).splitlines()) == 1
    assert "embedding" in str(error)
    assert {number: one.text for number, one in found.items()} == others


def test_a_token_without_an_embedding_fails_alone_in_a_map(
    added: TransformersEngine, others: dict[int, str]
) -> None:
    detox = Detoxifier(added, scorer="pocket", **FEW)
    for ordered in (True, False):
        judged(dict(outcomes(detox, MANY, ordered=ordered)), others)
    yielded = []
    with pytest.raises(InputError, match=f"prompt {BAD}: .*embedding"):
        yielded.extend(detox.map(MANY))
    assert [one.text for one in yielded] == [others[number] for number in range(BAD)]
    problems = detox.check(MANY)
    assert [number for number, one in enumerate(problems) if one is not None] == [BAD]
    stream = detox.stream(MANY[BAD])
    with pytest.raises(InputError, match="embedding"):
        list(stream)
    assert "".join(detox.stream(MANY[0])) == others[0]


def test_a_token_without_an_embedding_fails_alone_with_asyncio(
    added: TransformersEngine, others: dict[int, str]
) -> None:
    async def streamed(detox: AsyncDetoxifier, prompt: str) -> Result:
        stream = detox.stream(prompt)
        parts = [one async for one in stream]
        assert "".join(parts) == stream.result.text
        return stream.result

    async def run(call: Callable[[AsyncDetoxifier, str], Any]) -> dict[int, Any]:
        detox = AsyncDetoxifier(added, scorer="pocket", **FEW)
        calls = (call(detox, prompt) for prompt in MANY)
        return dict(enumerate(await asyncio.gather(*calls, return_exceptions=True)))

    judged(asyncio.run(run(lambda detox, prompt: detox(prompt))), others)
    judged(asyncio.run(run(streamed)), others)


# Phases: of the draft, and of the search that repairs it.


class Stops(Storyteller):
    """A story whose third sentence is repaired. In `phase` it does `then`, once."""

    def __init__(self, phase: str, then: Callable[[], Any]) -> None:
        super().__init__(lambda number, moved, _: number == 2 and not moved)
        self._phase, self._then = phase, then
        self.reached = threading.Event()

    async def _pause(self, request: Request, written: int) -> None:
        moved = not isinstance(request.prompt, Sequence)
        now = "search" if moved else "draft" if written >= WORDS else ""
        if now == self._phase and not self.reached.is_set():
            self.reached.set()
            await self._then()


async def for_ever() -> None:
    await asyncio.sleep(3600)


class Hangs(Reader):
    """Hangs when a text of `phase` comes, until it is let go."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self._phase = phase
        self.reached, self.go = threading.Event(), threading.Event()

    def score(self, texts: Sequence[str]) -> Any:
        moved = any("m " in one for one in texts)
        if self._phase == ("search" if moved else "draft"):
            self.reached.set()
            assert self.go.wait(30)
        return super().score(texts)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No thread but those of before; the scorer's ends when it is let go."""
    gc.collect()
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 20
    while left := [one for one in threading.enumerate() if one not in before]:
        assert time.monotonic() < until, left
        gc.collect()  # a thread that ended in between may have held the last of a cycle
        time.sleep(0.01)


def within(seconds: float, true: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "not within the time"
        time.sleep(0.005)


def repaired() -> str:
    return text("Good0", "Good1", "Good2m", "Good3", "Good4", "Good5")


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("phase", ["draft", "search"])
@pytest.mark.parametrize(
    "door",
    ["task", "async stream", "left async stream", "stream", "left stream", "map", "closed map"],
)
def test_a_caller_who_leaves_ends_the_work_within_a_second(phase: str, door: str) -> None:
    engine, scorer = Stops(phase, for_ever), Reader()

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
            assert (await asyncio.wait_for(detox(PROMPT), 20)).text == repaired()

    def over() -> None:
        within(1, lambda: engine.under_way == 0)
        sent = len(scorer.sent)
        time.sleep(0.1)
        assert len(scorer.sent) == sent

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
            # The first prompt that is yielded is another, so that the generator waits in the midst.
            found: Any = detox.map([PROMPT, "once upon a night"], ordered=False)
            next(found)
            assert engine.reached.is_set()
            assert engine.under_way == 1
            if door == "map":
                del found  # and nobody closes it
                gc.collect()
            else:
                found.close()
        over()
        assert detox(PROMPT).text == repaired()


async def _read(stream: Any) -> list[str]:
    return [one async for one in stream]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("phase", ["draft", "search"])
def test_a_scorer_that_hangs_is_ended_by_the_deadline(phase: str) -> None:
    """And closing does not wait for it. What is given out was scored."""
    scorer, engine = Hangs(phase), Stops("never", for_ever)
    detox = Detoxifier(engine, scorer=scorer, **SETTINGS, deadline=0.5)
    started = time.monotonic()
    try:
        trial = detox(PROMPT).best
    except DeadlineError:
        trial = None
    assert scorer.reached.is_set()
    assert time.monotonic() - started < 0.5 + 1  # the deadline
    if trial is not None:
        assert any(one.endswith(trial.text) for one in scorer.sent) or not trial.accepted
    started = time.monotonic()
    detox.close()
    assert time.monotonic() - started < 1
    engine.close()
    scorer.go.set()


KINDS: list[type[BaseException]] = [
    RuntimeError, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, TimeoutError,
]  # fmt: skip
# Python and asyncio treat each of these as they do one of those.
FURTHER: list[type[BaseException]] = [ValueError, MemoryError, RecursionError, SystemExit]


@functools.cache
def _alone() -> list[Result]:
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), preset="relative")
    return [detox(one) for one in PROMPTS]


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
def test_a_detoxifier_has_one_scorer_thread_for_its_life() -> None:
    """Whichever way it is called, from whichever thread."""
    threads: set[int] = set()

    class Seen(ReadingScorer):
        def score(self, texts: Sequence[str]) -> Any:
            threads.add(threading.get_ident())
            return super().score(texts)

    with scripted_engine() as engine, Detoxifier(engine, scorer=Seen()) as detox:
        detox(PROMPTS[0])
        for ordered in (True, False):
            list(detox.map(PROMPTS, ordered=ordered))
        list(detox.stream(PROMPTS[1]))
        callers = [threading.Thread(target=detox, args=[one]) for one in PROMPTS]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(20)
    assert len(threads) == 1


@pytest.mark.usefixtures("nothing_left")
def test_closing_ends_a_map_and_calls_of_other_threads() -> None:
    """The engine was given, and stays open; the scorer hangs."""
    scorer, engine = Hangs("draft"), Stops("never", for_ever)
    detox = Detoxifier(engine, scorer=scorer, **SETTINGS)
    ended: list[BaseException] = []

    def call(way: Callable[[], Any]) -> None:
        with pytest.raises(EngineError, match="the detoxifier was closed") as caught:
            way()
        ended.append(caught.value)

    def endless() -> Iterator[str]:
        while True:
            yield PROMPT

    ways = (lambda: detox(PROMPT), lambda: list(detox.map(endless())))
    callers = [threading.Thread(target=call, args=[way], daemon=True) for way in ways]
    for caller in callers:
        caller.start()
    assert scorer.reached.wait(20)
    detox.close()
    for caller in callers:
        caller.join(2)
        assert not caller.is_alive()
    assert len(ended) == 2
    assert not engine.closed
    with pytest.raises(EngineError, match="closed; make a new one"):
        detox(PROMPT)
    engine.close()
    scorer.go.set()


def _called(detox: Detoxifier) -> Any:
    return detox(PROMPT)


def _mapped(detox: Detoxifier) -> Any:
    return list(detox.map([PROMPT, "once upon a night"]))


def _streamed(detox: Detoxifier) -> Any:
    with detox.stream(PROMPT) as stream:
        return list(stream)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no such signals here")
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("way", [_called, _mapped, _streamed])
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
        assert detox(PROMPT).text == repaired()

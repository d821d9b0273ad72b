"""Requests that stream, that are abandoned, and that hold tokens back; an engine that dies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from benchmarks.writing import completed

from tests.server.running import wait_until
from tests.vllm.servers import cpu_environment
from tide.core.errors import EngineError
from tide.core.settings import Sampling
from tide.engines.base import Engine, Piece, Request
from tide.engines.local.engine import TransformersEngine
from tide.engines.vllm import VllmEngine

# Warnings are vLLM's own.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

LONG = Sampling(temperature=0.0, max_new_tokens=200, min_new_tokens=200)
SHORT = Sampling(temperature=0.0, max_new_tokens=24)


def requests(engine: Engine, texts: list[str], sampling: Sampling, **more: Any) -> list[Request]:
    rows = engine.tokenize(texts)
    return [Request(ids, sampling, piece_tokens=4, **more) for ids in rows]


async def written(engine: Engine, request: Request, began: Callable[[], None]) -> list[Piece]:
    pieces = []
    async with aclosing(engine.write(request)) as stream:
        async for piece in stream:
            pieces.append(piece)
            began()
    return pieces


def under_way(engine: VllmEngine) -> int:
    """Requests that vLLM itself still has."""
    # Of a cache in which a request still holds entries, nothing is dropped.
    dropped = engine.portal.run(engine._engine.reset_prefix_cache)
    unfinished: int = engine._engine.get_num_unfinished_requests()
    return unfinished + (not dropped)


def test_pieces_come_while_others_are_written(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    some = [prompt for prompt in prompts if len(local.tokenize([prompt])[0]) < 50][:12]

    async def all_of_them() -> list[list[Piece]]:
        # Each reads on when all have begun: an engine that wrote one after the other never would.
        begun, all_begun = list[Piece](), asyncio.Event()

        async def read(request: Request) -> list[Piece]:
            async with aclosing(engine.write(request)) as stream:
                first = await anext(stream)
                begun.append(first)
                if len(begun) == len(some):
                    all_begun.set()
                await all_begun.wait()
                return [first, *[piece async for piece in stream]]

        with anyio.fail_after(120):
            return await asyncio.gather(*map(read, requests(engine, some, LONG)))

    answers = asyncio.run(all_of_them())
    assert all(len(pieces) >= 10 for pieces in answers)
    texts = [[i for piece in pieces for i in piece.token_ids] for pieces in answers]
    expected = completed(local, local.tokenize(some), LONG, range(12))
    assert texts == [list(completion.token_ids) for completion in expected]


def test_an_abandoned_request_is_aborted(
    engine: VllmEngine, local: TransformersEngine, prompts: list[str]
) -> None:
    some = [prompt for prompt in prompts if len(local.tokenize([prompt])[0]) < 50][:8]

    async def leave() -> None:
        async def begin(request: Request) -> None:
            async with aclosing(engine.write(request)) as pieces:
                piece = await anext(pieces)
                assert piece.finish_reason is None

        await asyncio.gather(*(begin(request) for request in requests(engine, some, LONG)))

    async def cancel() -> None:
        """In the middle of a step, and before the first piece."""
        tasks = [
            asyncio.create_task(written(engine, request, lambda: None))
            for request in requests(engine, some, LONG)
        ]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    for abandon in (leave, cancel):
        asyncio.run(abandon())
        wait_until(lambda: under_way(engine) == 0, 20.0)
    assert len(completed(engine, local.embed(some[:1]), SHORT, [0])) == 1


def test_tokens_that_are_never_drawn(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    """Held back one after another, as a search would: the same tokens as transformers'."""
    some = [prompt for prompt in prompts if len(local.tokenize([prompt])[0]) < 50][:20]
    held: tuple[int, ...] = (0, 2)  # no end of the text, either
    for _ in range(3):
        rows = asyncio.run(whole(engine, some, banned_token_ids=held))
        assert rows == asyncio.run(whole(local, some, banned_token_ids=held))
        assert not any(token in held for ids in rows for token in ids)
        assert all(len(ids) == SHORT.max_new_tokens for ids in rows)
        held += tuple({ids[len(held) % 5] for ids in rows} - set(held))
    # With what is held back in a request, and without in another, at the same time.
    together = asyncio.run(mixed(engine, some, held))
    assert together == asyncio.run(mixed(local, some, held))


async def whole(engine: Engine, texts: list[str], **more: Any) -> list[list[int]]:
    writing = [
        written(engine, request, lambda: None) for request in requests(engine, texts, SHORT, **more)
    ]
    answers = await asyncio.gather(*writing)
    return [[token for piece in pieces for token in piece.token_ids] for pieces in answers]


async def mixed(engine: Engine, texts: list[str], held: tuple[int, ...]) -> list[Any]:
    prompts = enumerate(engine.tokenize(texts))
    mixture = [Request(ids, SHORT, banned_token_ids=held if i % 2 else ()) for i, ids in prompts]
    return list(await engine.complete(mixture))


# An engine that is broken


def children(process: int) -> set[int]:
    """All processes below this process that still run."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    below: set[int] = set()
    generation = {process}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        below |= generation
    return below


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[VllmEngine, set[int]]]:
    """An engine, and the processes that it has started."""
    for name, value in cpu_environment().items():
        monkeypatch.setitem(os.environ, name, value)
    before = children(os.getpid())
    engine = VllmEngine("pocket", dtype="float32", enforce_eager=True)
    yield engine, children(os.getpid()) - before
    engine.close()
    del engine
    gc.collect()  # what vLLM leaves open warns here, and not at the end of all tests


def test_closing_leaves_no_process(another: tuple[VllmEngine, set[int]]) -> None:
    engine, processes = another
    assert processes

    async def close_amid() -> list[Any]:
        amid = requests(engine, ["The weather", "A walk"], LONG)
        begun = asyncio.Event()
        tasks = [asyncio.create_task(written(engine, request, begun.set)) for request in amid]
        await begun.wait()
        await asyncio.to_thread(engine.close)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10.0)

    ends = asyncio.run(close_amid())
    assert all(isinstance(end, EngineError) for end in ends), ends
    wait_until(lambda: not processes & children(os.getpid()), 10.0)


def test_an_engine_that_dies_fails_what_waits(another: tuple[VllmEngine, set[int]]) -> None:
    engine, processes = another

    async def kill_amid() -> list[Any]:
        amid = requests(engine, ["The weather", "A walk", "kind"], LONG)
        begun = asyncio.Event()
        tasks = [asyncio.create_task(written(engine, request, begun.set)) for request in amid]
        await begun.wait()
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60.0)

    ends = asyncio.run(kill_amid())
    assert all(isinstance(end, EngineError) for end in ends), ends
    assert not engine.available
    began = time.monotonic()
    with pytest.raises(EngineError):
        completed(engine, engine.embed(["kind"]), SHORT, [0])
    engine.close()
    assert time.monotonic() - began < 10.0
    assert not processes & children(os.getpid())

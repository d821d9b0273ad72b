"""When rows enter a batch, and what happens to rows that leave, fail or wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest
import torch
from benchmarks.writing import completed

from tests.models import save_causal_lm
from tide.core.errors import CompletionError, EngineError
from tide.core.settings import Sampling
from tide.engines.base import Piece, Request
from tide.engines.local.batch import Batch, Lane
from tide.engines.local.engine import TransformersEngine


def sampling(tokens: int) -> Sampling:
    return Sampling(temperature=0.0, max_new_tokens=tokens, min_new_tokens=tokens)


class Watched:
    """sizes: rows under way at each step. entered: the priorities of entering rows, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.entered: list[list[int]] = []
        self.before: Callable[[Lane], None] = lambda lane: None

        def step(batch: Batch, lane: Lane, step: Any = Batch.step) -> None:
            self.sizes.append(len(lane.running))
            self.before(lane)
            step(batch, lane)

        def prefill(
            batch: Batch, lane: Lane, rows: Sequence[Any], prefill: Any = Batch.prefill
        ) -> None:
            prefill(batch, lane, rows)
            self.entered.append(sorted(row.request.priority for row in rows))

        patch.setattr(Batch, "step", step)
        patch.setattr(Batch, "prefill", prefill)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    return TransformersEngine(save_causal_lm(tmp_path_factory.mktemp("lm"), "llama"), max_batch=4)


def idle(engine: TransformersEngine) -> bool:
    return engine._batch.idle


def test_the_lowest_priority_number_enters_first(
    engine: TransformersEngine, watched: Watched
) -> None:
    requests = [Request([5, 6 + i], sampling(3), priority=15 - i) for i in range(16)]
    asyncio.run(engine.complete(requests))
    assert watched.entered == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert watched.sizes == [4] * 12


def test_those_that_end_leave_their_places(engine: TransformersEngine, watched: Watched) -> None:
    """One long row and many short ones, which take each other's places beside it."""
    requests = [Request([5, 6], sampling(30)), *(Request([7, 8], sampling(5)) for _ in range(12))]
    asyncio.run(engine.complete(requests))
    assert len(watched.sizes) <= 32
    assert max(watched.sizes) == 4


def test_a_request_that_comes_later_joins_those_under_way(
    engine: TransformersEngine, watched: Watched
) -> None:
    async def both() -> tuple[list[int], list[int]]:
        async def read(request: Request, ready: asyncio.Event | None) -> list[int]:
            found: list[int] = []
            async with aclosing(engine.write(request)) as pieces:
                async for piece in pieces:
                    found += piece.token_ids
                    if ready is not None:
                        ready.set()
            return found

        started = asyncio.Event()
        first = asyncio.ensure_future(read(Request([5, 6], sampling(50), piece_tokens=1), started))
        await started.wait()
        return await first, await read(Request([7, 9], sampling(5)), None)

    async def together() -> tuple[list[int], list[int]]:
        started, late = asyncio.Event(), Request([7, 9], sampling(5))

        async def long() -> list[int]:
            found: list[int] = []
            async for piece in engine.write(Request([5, 6], sampling(50), piece_tokens=1)):
                found += piece.token_ids
                started.set()
            return found

        async def short() -> list[int]:
            await started.wait()
            (written,) = await engine.complete([late])
            return list(written.token_ids)

        first, second = await asyncio.gather(long(), short())
        return first, second

    first, second = engine.portal.run(together)
    assert max(watched.sizes) == 2
    assert len(watched.sizes) < 55
    assert asyncio.run(both()) == (first, second)


def test_a_request_that_none_follows_is_written(
    engine: TransformersEngine, watched: Watched
) -> None:
    asyncio.run(engine.complete([Request([5, 6 + i], sampling(3)) for i in range(4)]))
    asyncio.run(engine.complete([Request([5, 6], sampling(3))]))
    assert watched.sizes == [4] * 3 + [1] * 3


def test_a_request_that_is_left_is_read_no_further(
    engine: TransformersEngine, watched: Watched
) -> None:
    async def leave() -> int:
        async with aclosing(engine.write(Request([5], sampling(60), piece_tokens=2))) as pieces:
            async for piece in pieces:
                return len(piece.token_ids)
        return 0

    assert engine.portal.run(leave) == 2
    asyncio.run(engine.complete([Request([6], sampling(1))]))
    assert len(watched.sizes) < 8
    assert idle(engine)


def test_a_cancelled_call_leaves_the_others_as_they_are(
    engine: TransformersEngine, watched: Watched
) -> None:
    async def run() -> Any:
        calls = [
            asyncio.ensure_future(engine.complete([Request([5, 6 + i], sampling(20), seed=i)]))
            for i in range(9)
        ]
        await asyncio.sleep(0.02)
        for call in calls[::3]:
            call.cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(run())
    for i, one in enumerate(found):
        if isinstance(one, asyncio.CancelledError):
            assert i % 3 == 0
            continue
        assert one == completed(engine, [[5, 6 + i]], sampling(20), [i])
    assert idle(engine)


def test_a_row_that_left_while_it_waited_never_enters(
    engine: TransformersEngine, watched: Watched
) -> None:
    requests = [Request([5], sampling(20), priority=i) for i in range(4)]

    async def run() -> None:
        under_way = asyncio.ensure_future(engine.complete(requests))
        await asyncio.sleep(0)
        late = asyncio.ensure_future(engine.complete([Request([7], sampling(5), priority=9)]))
        while not watched.sizes:
            await asyncio.sleep(0)
        late.cancel()
        await under_way

    engine.portal.run(run)
    assert watched.entered == [[0, 1, 2, 3]]
    assert idle(engine)


def test_a_prompt_that_cannot_be_read_fails_alone(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = engine._forward.read

    def broken(rows: Sequence[torch.Tensor], **options: Any) -> Any:
        if any(len(row) == 7 for row in rows):
            raise RuntimeError("no sevens")
        return read(rows, **options)

    monkeypatch.setattr(engine._forward, "read", broken)

    async def run() -> Any:
        calls = [engine.complete([Request([5] * n, sampling(3))]) for n in (3, 7, 4)]
        scores = [engine.log_likelihoods([([5] * (n - 2), [5] * 2)]) for n in (3, 7, 4)]
        return await asyncio.gather(*calls, *scores, return_exceptions=True)

    found = engine.portal.run(run)
    for some in (found[:3], found[3:]):
        assert isinstance(some[1], CompletionError)
        assert "the prompt could not be read: RuntimeError: no sevens" in str(some[1])
        assert not any(isinstance(one, Exception) for one in (some[0], some[2]))
    assert idle(engine)


@pytest.mark.parametrize("error", [RuntimeError("no memory"), MemoryError(), SystemExit(2)])
def test_a_model_that_fails_ends_what_is_under_way_and_nothing_else(
    engine: TransformersEngine, watched: Watched, error: BaseException
) -> None:
    def fail(batch: Batch) -> None:
        if len(watched.sizes) == 3:
            raise error

    watched.before = fail
    requests = [Request([5, i], sampling(9), priority=i) for i in range(3, 7)]

    async def run() -> Any:
        calls = [engine.complete([one]) for one in requests]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = engine.portal.run(run)
    assert all(isinstance(one, EngineError) for one in found)
    assert all("the model failed" in str(one) for one in found)
    assert idle(engine)
    assert len(asyncio.run(engine.complete(requests))) == 4


def test_an_error_of_the_engine_is_told_as_it_is(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: Any) -> Any:
        raise EngineError("closed; make a new one")

    monkeypatch.setattr(engine._batch, "_stopped", closed)
    with pytest.raises(EngineError, match=r"\Aclosed; make a new one\Z"):
        asyncio.run(engine.complete([Request([5, 3], sampling(9))]))


def test_closing_ends_what_is_under_way(tmp_path: Any) -> None:
    engine = TransformersEngine(save_causal_lm(tmp_path, "gpt2"), max_batch=2)
    began, errors = threading.Barrier(4), []

    def ask(number: int) -> None:
        async def read() -> None:
            request = Request([5, number], sampling(60), piece_tokens=1)
            async with aclosing(engine.write(request)) as pieces:
                async for _ in pieces:
                    await asyncio.sleep(0.05)

        began.wait(10)
        try:
            asyncio.run(read())
        except EngineError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3, 6)]
    for thread in threads:
        thread.start()
    began.wait(10)
    engine.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert all("closed" in text for text in errors)


def test_likelihoods_are_read_between_the_steps_of_others(
    engine: TransformersEngine, watched: Watched
) -> None:
    pairs = [([5, 6, 7], [8, 9]), ([5], [6]), ([9] * 20, [3, 4, 5])]
    alone = asyncio.run(engine.log_likelihoods(pairs))

    async def run() -> Any:
        writing = asyncio.ensure_future(engine.complete([Request([5, 6], sampling(30))]))
        while not watched.sizes:
            await asyncio.sleep(0)
        found = await engine.log_likelihoods(pairs)
        assert not writing.done()
        await writing
        return found

    assert engine.portal.run(run) == pytest.approx(alone, abs=1e-5)


def test_pieces_tell_what_the_whole_tells(engine: TransformersEngine) -> None:
    async def read(size: int | None) -> list[Piece]:
        request = Request([5, 6, 7], sampling(11), piece_tokens=size)
        return [piece async for piece in engine.write(request)]

    (whole,) = asyncio.run(read(None))
    for size in (1, 4):
        pieces = asyncio.run(read(size))
        assert tuple(i for piece in pieces for i in piece.token_ids) == whole.token_ids
        assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1].finish_reason == whole.finish_reason == "length"

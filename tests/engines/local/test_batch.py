"""When rows enter and leave a batch, and that each is written as if it were alone."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.writing import completed, pieces_of
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.local.test_sampler import OPTIONS
from tests.generated import examples
from tests.models import CONTEXT, save_causal_lm
from tide.core.errors import CompletionError, EngineError
from tide.core.settings import Sampling
from tide.engines.base import Piece, Request
from tide.engines.local import engine as engine_module
from tide.engines.local.engine import TransformersEngine

ARGUMENTS = dict[str, Any]  # of a forward pass


def greedy(tokens: int) -> Sampling:
    return Sampling(temperature=0.0, max_new_tokens=tokens, min_new_tokens=tokens)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    return TransformersEngine(save_causal_lm(tmp_path_factory.mktemp("lm"), "llama"))


@pytest.fixture(scope="module")
def small(engine: TransformersEngine) -> TransformersEngine:
    """An engine that writes at most four texts at once."""
    return TransformersEngine(engine.name, max_batch=4)


@contextmanager
def before_each_pass(
    engine: TransformersEngine, change: Callable[[ARGUMENTS], object]
) -> Iterator[None]:
    def hook(_: object, positional: tuple[Any, ...], arguments: ARGUMENTS) -> Any:
        change(arguments)
        return positional, arguments

    with engine.model.register_forward_pre_hook(hook, with_kwargs=True):
        yield


def shape_of(arguments: ARGUMENTS) -> tuple[int, int]:
    """The numbers of rows and of tokens a row."""
    tensor = arguments["input_ids"] if "input_ids" in arguments else arguments["inputs_embeds"]
    rows, tokens = tensor.shape[:2]
    return rows, tokens


@contextmanager
def steps_of(engine: TransformersEngine) -> Iterator[list[int]]:
    """The number of rows in each step; prompts have more than one token."""
    sizes: list[int] = []

    def count(arguments: ARGUMENTS) -> None:
        rows, tokens = shape_of(arguments)
        if tokens == 1:
            sizes.append(rows)

    with before_each_pass(engine, count):
        yield sizes


class Clock:
    """Counts the steps of a batch by the pieces of a row."""

    def __init__(self) -> None:
        self.step = 0

    async def run(self, engine: TransformersEngine) -> None:
        async for _ in engine.write(Request([3, 4], greedy(45), piece_tokens=1)):
            self.step += 1
        self.step = 10**6

    async def reach(self, step: int) -> None:
        while self.step < step:
            await asyncio.sleep(0)


def ids_of(pieces: Sequence[Piece]) -> list[int]:
    return [token_id for piece in pieces for token_id in piece.token_ids]


# Rows that enter and leave

ROWS = st.lists(
    st.tuples(
        st.builds(Sampling, **OPTIONS, stop=st.sampled_from([(), (), ("e",), ("the", "\n")])),
        st.integers(0, 40),  # seed
        st.integers(1, 9) | st.just(CONTEXT),  # length of the prompt
        st.integers(0, 12),  # step at which the row enters
        st.none() | st.integers(0, 20),  # step at which its reader leaves
        st.sampled_from([None, 1, 3]),  # size of its pieces
        st.sampled_from([(), (), (40, 41, 42)]),  # banned tokens
    ),
    min_size=1,
    max_size=14,
)


@given(rows=ROWS)
@examples(12, 200)
def test_row_is_written_as_alone(engine: TransformersEngine, rows: list[Any]) -> None:
    """Whichever rows enter and leave beside it, and whatever the size of its pieces."""
    requests = []
    for sampling, seed, length, _, _, size, banned in rows:
        most = CONTEXT - sampling.max_new_tokens
        ids = [3 + (5 * seed + 3 * i) % 290 for i in range(min(length, most))]
        requests.append(Request(ids, sampling, seed, banned_token_ids=banned, piece_tokens=size))

    async def enter(clock: Clock, number: int) -> list[Piece]:
        *_, at, leaves_at, _, _ = rows[number]
        pieces: list[Piece] = []

        async def read() -> None:
            async with aclosing(engine.write(requests[number])) as stream:
                async for piece in stream:
                    pieces.append(piece)

        await clock.reach(at)
        reading = asyncio.ensure_future(read())
        if leaves_at is not None:
            while clock.step < leaves_at and not reading.done():
                await asyncio.sleep(0)
            reading.cancel()
        await asyncio.wait([reading])
        return pieces

    async def together() -> list[list[Piece]]:
        clock = Clock()
        ticking = asyncio.ensure_future(clock.run(engine))
        results = await asyncio.gather(*(enter(clock, number) for number in range(len(rows))))
        ticking.cancel()
        return results

    for request, row, pieces in zip(requests, rows, engine.portal.run(together), strict=True):
        alone = engine.portal.run(pieces_of, engine, request)
        if row[4] is None:
            assert pieces == alone
        else:
            assert ids_of(pieces) == ids_of(alone)[: len(ids_of(pieces))]
        check_pieces(alone, request)


def check_pieces(pieces: list[Piece], request: Request) -> None:
    *parts, last = pieces
    assert all(len(piece.token_ids) == request.piece_tokens for piece in parts)
    assert {piece.finish_reason for piece in parts} <= {None}
    assert last.finish_reason in ("length", "stop")
    ids = ids_of(pieces)
    assert len(ids) <= request.sampling.max_new_tokens
    assert len(ids) >= request.sampling.min_new_tokens or request.sampling.stop
    assert not set(ids) & set(request.banned_token_ids)


def test_long_and_short_rows_are_written_as_alone() -> None:
    """Rows of several lanes, and more steps than a cache has spare columns."""
    rows = [(6, 9), (300, 9), (2, 90), *((30 + n, 15) for n in range(5))]
    with TransformersEngine("pocket-chat", max_batch=4) as engine:
        prompts = [[5 + (7 * i + length) % 200 for i in range(length)] for length, _ in rows]
        # Drawn at random, since a greedy text repeats itself, whatever it reads.
        samplings = [greedy(tokens).model_copy(update={"temperature": 1.0}) for _, tokens in rows]
        together = completed(engine, prompts, samplings)
        for seed, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            assert completed(engine, [prompt], sampling, [seed]) == [together[seed]]


def test_lowest_priority_number_enters_first(small: TransformersEngine) -> None:
    ended: list[int] = []

    async def write(priority: int) -> None:
        await small.complete([Request([5, 6 + priority], greedy(3), priority=priority)])
        ended.append(priority)

    async def run() -> None:
        await asyncio.gather(*(write(priority) for priority in reversed(range(16))))

    with steps_of(small) as sizes:
        small.portal.run(run)
    assert [sorted(ended[n : n + 4]) for n in (0, 4, 8, 12)] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15],
    ]  # fmt: skip
    assert max(sizes) == 4
    assert len(sizes) <= 12


def test_late_row_joins_running_rows(engine: TransformersEngine) -> None:
    async def run() -> int:
        clock = Clock()
        others = [engine.complete([Request([5, n], greedy(50))]) for n in range(9)]
        running = asyncio.gather(clock.run(engine), *others)
        await clock.reach(4)
        await engine.complete([Request([7, 9], greedy(3))])
        ended_at = clock.step
        await running
        return ended_at

    with steps_of(engine) as sizes:
        assert engine.portal.run(run) < 24
    assert max(sizes) > 10


def test_reader_that_leaves_ends_the_row(engine: TransformersEngine) -> None:
    async def leave() -> int:
        async with aclosing(engine.write(Request([5, 6], greedy(60), piece_tokens=2))) as pieces:
            async for piece in pieces:
                return len(piece.token_ids)
        return 0

    with steps_of(engine) as sizes:
        assert engine.portal.run(leave) == 2
        asyncio.run(engine.complete([Request([6, 7], greedy(1))]))
    assert len(sizes) < 8


def test_row_that_is_cancelled_while_it_waits_is_never_read(small: TransformersEngine) -> None:
    async def run() -> None:
        clock = Clock()
        others = [small.complete([Request([5, n], greedy(20))]) for n in range(3)]
        running = asyncio.gather(clock.run(small), *others)
        await clock.reach(1)
        first, second, third = (
            asyncio.ensure_future(small.complete([Request(ids, greedy(5), priority=9)]))
            for ids in ([7] * 11, [7, 8], [7] * 12)
        )
        await clock.reach(4)
        first.cancel()
        third.cancel()
        await running
        await second

    lengths: list[int] = []
    with before_each_pass(small, lambda arguments: lengths.append(shape_of(arguments)[1])):
        small.portal.run(run)
    assert max(lengths) == 2


def test_rows_of_a_model_without_open_batches_enter_once_all_have_ended(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "reads_alike", lambda forward, _: not forward.plain)
    rows = [([5, 6], 4), ([7, 8, 9], 9), ([4, 3], 3)]
    requests = [Request(ids, greedy(tokens)) for ids, tokens in rows]

    async def run() -> list[Any]:
        short, long = (
            asyncio.ensure_future(closed.complete([request])) for request in requests[:2]
        )
        await short
        assert not long.done()
        late = await closed.complete(requests[2:])
        assert long.done()
        return [short.result(), long.result(), late]

    with TransformersEngine(engine.name) as closed:
        assert closed.prefix_cache() is None
        results = closed.portal.run(run)
    assert results == [asyncio.run(engine.complete([request])) for request in requests]


# Rows, models and memory that fail

BROKEN = 299  # a token at which the model fails


def breaks_at(engine: TransformersEngine, arguments: ARGUMENTS) -> torch.Tensor:
    """Which tokens of a forward pass are the broken one."""
    if "input_ids" in arguments:
        return torch.as_tensor(arguments["input_ids"] == BROKEN)
    return (arguments["inputs_embeds"] == engine.embed_tokens([BROKEN])).all(dim=-1)


def test_prompt_that_cannot_be_read_fails_alone(engine: TransformersEngine) -> None:
    def fail(arguments: ARGUMENTS) -> None:
        if breaks_at(engine, arguments).any():
            raise RuntimeError("no memory")

    prompts = [[5, 6, 7], [5, BROKEN, 5, 7], [5, 6, 7, 8]]

    async def run() -> Any:
        calls = [engine.complete([Request(ids, greedy(3))]) for ids in prompts]
        return await asyncio.gather(*calls, return_exceptions=True)

    expected = engine.portal.run(run)
    engine.embed_tokens([BROKEN])
    with before_each_pass(engine, fail):
        first, error, last = engine.portal.run(run)
        with pytest.raises(CompletionError, match="likelihood failed: no memory"):
            engine.portal.run(engine.log_likelihoods, [([5], [BROKEN])])
    assert [first, last] == expected[::2]
    assert isinstance(error, CompletionError)
    assert "the prompt could not be read: RuntimeError: no memory" in str(error)


@pytest.mark.parametrize("error", [RuntimeError("no memory"), MemoryError(), SystemExit(2)])
def test_model_that_fails_ends_running_rows_and_nothing_else(
    engine: TransformersEngine, error: BaseException
) -> None:
    requests = [Request([5, i], greedy(9)) for i in range(3, 7)]

    async def run() -> Any:
        calls = [engine.complete([request]) for request in requests]
        return await asyncio.gather(*calls, return_exceptions=True)

    with steps_of(engine) as sizes:

        def fail(_: ARGUMENTS) -> None:
            if len(sizes) == 3:
                raise error

        with before_each_pass(engine, fail):
            results = engine.portal.run(run)
    assert all(isinstance(result, EngineError) for result in results)
    assert all("the model failed" in str(result) for result in results)
    assert len(asyncio.run(engine.complete(requests))) == 4


@pytest.mark.parametrize("leaves_after", [None, 0, 1, 2])
@pytest.mark.parametrize("resumes", [False, True])
def test_row_of_nan_fails_alone(
    engine: TransformersEngine, resumes: bool, leaves_after: int | None
) -> None:
    """Its keys and values do not reach the row that takes its place, also if nobody reads it."""

    def spoil(arguments: ARGUMENTS) -> None:
        where = breaks_at(engine, arguments)
        if "input_ids" in arguments:
            ids = arguments.pop("input_ids")
            arguments["inputs_embeds"] = engine.model.get_input_embeddings()(ids)
        arguments["inputs_embeds"] = arguments["inputs_embeds"].masked_fill(
            where[..., None], math.nan
        )

    handle = engine.prefix_cache() if resumes else None
    good = [Request([5, n], greedy(30), banned_token_ids=(BROKEN,)) for n in (6, 8)]
    late = Request([9, 8, 7], greedy(20), banned_token_ids=(BROKEN,))
    first = Request([5, 6, 7], greedy(4), prefix_cache=handle)

    async def run() -> Any:
        clock = Clock()
        await engine.complete([first])
        ticking = asyncio.ensure_future(clock.run(engine))
        others = [asyncio.ensure_future(pieces_of(engine, request)) for request in good]
        await clock.reach(3)
        request = Request([5, 6, 7, BROKEN], greedy(20), prefix_cache=handle)
        broken = asyncio.ensure_future(pieces_of(engine, request))
        if leaves_after is not None:
            await clock.reach(clock.step + leaves_after)
            broken.cancel()
        (error,) = await asyncio.gather(broken, return_exceptions=True)
        last = await pieces_of(engine, late)
        ticking.cancel()
        return error, [*(await asyncio.gather(*others)), last]

    expected = [engine.portal.run(pieces_of, engine, request) for request in (*good, late)]
    engine.embed_tokens([BROKEN])
    with before_each_pass(engine, spoil):
        error, results = engine.portal.run(run)
    assert results == expected
    if leaves_after is None:
        assert isinstance(error, CompletionError)
        assert "NaN or infinite" in str(error)


@pytest.mark.parametrize("failing", [0, 3])
@pytest.mark.parametrize("prompts", [[[5, 6]] * 30, [[5] * 50]], ids=["many", "long"])
def test_memory_that_ends_when_rows_enter_spares_running_rows(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch, failing: int, prompts: list[Any]
) -> None:
    left = failing
    allocate = torch.Tensor.new_zeros

    def full(tensor: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        nonlocal left
        if len(shape) == 4:  # of keys or values
            left -= 1
            if left < 0:
                raise torch.OutOfMemoryError("no memory")
        return allocate(tensor, *shape, **options)

    first = Request([5, 9], greedy(12), piece_tokens=1)
    alone = engine.portal.run(pieces_of, engine, first)

    async def run() -> Any:
        late: list[Any] = []
        pieces: list[Piece] = []
        async for piece in engine.write(first):
            if not pieces:
                monkeypatch.setattr(torch.Tensor, "new_zeros", full)
                requests = [Request(ids, greedy(3)) for ids in prompts]
                late = [asyncio.ensure_future(engine.complete([request])) for request in requests]
            pieces.append(piece)
        return pieces, await asyncio.gather(*late, return_exceptions=True)

    pieces, results = engine.portal.run(run)
    assert pieces == alone
    assert any(isinstance(result, CompletionError) for result in results)


def test_closing_ends_running_rows(tmp_path: Path) -> None:
    engine = TransformersEngine(save_causal_lm(tmp_path, "gpt2"), max_batch=2)
    began = threading.Event()

    async def read(number: int) -> None:
        request = Request([5, number], greedy(60), piece_tokens=1)
        async with aclosing(engine.write(request)) as pieces:
            async for _ in pieces:
                began.set()
                await asyncio.sleep(0.05)

    with ThreadPoolExecutor(3) as threads:
        reading = [threads.submit(asyncio.run, read(number)) for number in range(3, 6)]
        assert began.wait(10)
        engine.close()
        for future in reading:
            assert isinstance(error := future.exception(30), EngineError)
            assert "closed" in str(error)

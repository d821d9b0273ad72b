"""Rows that enter and leave at any step give the same as alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.generated import examples
from tests.models import CONFIGS, CONTEXT, save_causal_lm
from tide.core.errors import CompletionError, EngineError
from tide.core.settings import Sampling
from tide.engines.base import Piece, Request
from tide.engines.local import cache
from tide.engines.local.batch import Batch, Lane, Row
from tide.engines.local.cache import PrefixCache
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.stream import Forward, Stream

KINDS = [*CONFIGS, "pocket"]
GREEDY = Sampling(temperature=0.0, max_new_tokens=8)


@pytest.fixture(scope="module", params=KINDS)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TransformersEngine:
    kind = request.param
    if kind == "pocket":
        return TransformersEngine("pocket")
    return TransformersEngine(save_causal_lm(tmp_path_factory.mktemp(kind), kind))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    return TransformersEngine(save_causal_lm(tmp_path_factory.mktemp("one"), "llama"))


def longest(engine: TransformersEngine) -> int:
    return min(engine.context_length or CONTEXT, CONTEXT)


@dataclass(eq=False)
class Reader:
    """A row of a stream. ids: what it has read so far, for a fresh read."""

    ids: list[int]
    most: int


# One step: lengths of the prompts that enter, and places of the rows that leave.
STEP = st.tuples(
    st.lists(st.integers(1, 14) | st.integers(1, CONTEXT), max_size=4),
    st.sets(st.integers(0, 11), max_size=5),
    st.integers(0, 3),  # tokens that are read before the next rows enter
)


@torch.inference_mode()
@given(steps=st.lists(STEP, min_size=1, max_size=8))
@examples(4, 150)
def test_logits_are_those_of_a_fresh_read(
    engine: TransformersEngine, steps: list[tuple[list[int], set[int], int]]
) -> None:
    """With any schedule of rows of any lengths."""
    limit = longest(engine)
    stream = Stream(engine._forward)
    rows: list[Reader] = []
    number = 0
    for lengths, leaving, reads in steps:
        gone = [place for place in sorted(leaving) if place < len(rows)]
        if gone:
            order = stream.leave(gone)
            assert sorted(order) == [i for i in range(len(rows)) if i not in gone]
            rows = [rows[i] for i in order]
        entering = []
        for length in lengths:
            number += 1
            size = min(length, limit - 1)
            ids = [3 + (7 * i + number) % 290 for i in range(size)]
            entering.append(Reader(ids, limit))
        if entering:
            stream.enter([engine._embed_ids(one.ids) for one in entering])
        rows += entering
        for step in range(reads):
            if not rows:
                break
            compare(engine, stream, rows)
            if any(len(one.ids) + 1 > one.most for one in rows):
                full = [i for i, one in enumerate(rows) if len(one.ids) + 1 > one.most]
                rows = [rows[i] for i in stream.leave(full)]
                if not rows:
                    break
            tokens = [3 + (11 * step + 5 * i + number) % 290 for i in range(len(rows))]
            stream.advance(torch.tensor(tokens, device=engine.device))
            for one, token in zip(rows, tokens, strict=True):
                one.ids.append(token)
        if rows:
            compare(engine, stream, rows)


def compare(engine: TransformersEngine, stream: Stream, rows: Sequence[Reader]) -> None:
    ids = [torch.tensor([one.ids], device=engine.device) for one in rows]
    expected = [engine.model(one).logits[0, -1] for one in ids]
    scale = max(float(one.abs().max()) for one in expected)
    for found, alone in zip(stream.logits, expected, strict=True):
        assert float((found - alone).abs().max()) <= 1e-3 * max(1.0, scale)


# Whole batches


@dataclass(eq=False)
class Asked:
    """A row of a batch. at: the step at which it enters. told: what it got."""

    row: Row
    at: int
    leaves_at: int | None
    told: list[Piece | Exception] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [i for piece in self.told if isinstance(piece, Piece) for i in piece.token_ids]


def batch_of(engine: TransformersEngine, forward: Forward | None = None) -> tuple[Batch, Lane]:
    forward = forward or engine._forward
    batch = Batch(forward, PrefixCache(0), engine.stop_ids, engine.stopped, max_batch=64)
    return batch, Lane(forward, engine.stop_ids)


def test_rows_of_a_lane_that_cannot_be_made_fail(llama: TransformersEngine) -> None:
    def fail(*_: object) -> Lane:
        raise RuntimeError("no memory")

    async def told() -> Piece | Exception:
        batch = Batch(
            llama._forward,
            PrefixCache(0),
            llama.stop_ids,
            llama.stopped,
            max_batch=64,
            make_lane=fail,
        )
        pieces: asyncio.Queue[Piece | Exception] = asyncio.Queue()
        request = Request([5, 6])
        batch.submit([Row(request, llama._embed_ids([5, 6]), pieces.put_nowait, [5, 6])])
        return await asyncio.wait_for(pieces.get(), 20)

    error = asyncio.run(told())
    assert isinstance(error, EngineError)
    assert "no memory" in str(error)


def asked(
    engine: TransformersEngine,
    own: Sampling,
    seed: int,
    at: int = 0,
    leaves_at: int | None = None,
    **more: Any,
) -> Asked:
    ids = [3 + (5 * seed + 3 * i) % 290 for i in range(1 + seed % 9)]
    request = Request(ids, own, seed, **more)
    row = Row(request, engine._embed_ids(ids), lambda _: None, ids)
    one = Asked(row, at, leaves_at)
    row.put = one.told.append
    return one


def run(engine: TransformersEngine, rows: Sequence[Asked]) -> None:
    """Take steps until no row is under way or to come."""
    (batch, lane), step = batch_of(engine), 0
    while lane.running or any(one.at >= step for one in rows):
        entering = [one.row for one in rows if one.at == step]
        for one in rows:
            if one.leaves_at == step:
                one.row.aborted = True
        waiting = [row for row in entering if not row.aborted]
        if waiting:
            assert lane.takes_rows
            batch.prefill(lane, waiting)
        if lane.running:
            batch.step(lane)
        step += 1
        assert step < 200
    assert not lane.running


def finish(batch: Batch, lane: Lane) -> None:
    while lane.running:
        batch.step(lane)


def told_alone(engine: TransformersEngine, own: Sampling, seed: int) -> list[Piece | Exception]:
    alone = asked(engine, own, seed)
    run(engine, [alone])
    return alone.told


ROWS = st.lists(
    st.tuples(
        st.builds(
            Sampling,
            temperature=st.sampled_from([0.0, 0.8, 1.5]),
            top_p=st.sampled_from([1.0, 0.9]),
            top_k=st.sampled_from([0, 5]),
            max_new_tokens=st.integers(1, 20),
            min_new_tokens=st.integers(0, 1),
            stop=st.sampled_from([(), (), ("e",), ("the", "\n")]),
            repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
        ),
        st.integers(0, 40),
        st.integers(0, 12),
        st.none() | st.integers(0, 20),
        st.sampled_from([None, 1, 3]),
        st.sampled_from([(), (), (40, 41, 42)]),
    ),
    min_size=1,
    max_size=14,
)


@given(rows=ROWS)
@settings(examples(10, 200), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_is_told_what_it_is_told_alone(llama: TransformersEngine, rows: list[Any]) -> None:
    """Whichever rows enter and leave beside it, and whatever the size of its pieces."""
    made = [
        asked(llama, own, seed, at, leaves, piece_tokens=size, banned_token_ids=never)
        for own, seed, at, leaves, size, never in rows
    ]
    run(llama, made)
    for one, (own, seed, at, leaves, size, never) in zip(made, rows, strict=True):
        alone = asked(llama, own, seed, piece_tokens=size, banned_token_ids=never)
        run(llama, [alone])
        if leaves is None or leaves > at + own.max_new_tokens:
            assert one.told == alone.told
            *parts, last = one.told
            assert isinstance(last, Piece)
            assert last.finish_reason in ("length", "stop")
            assert all(isinstance(piece, Piece) and len(piece.token_ids) == size for piece in parts)
        else:  # it was aborted at that step
            assert one.ids == alone.ids[: len(one.ids)]
            assert len(one.ids) <= max(0, leaves - at) + 1
        assert not set(one.ids) & set(never)
        assert len(one.ids) <= own.max_new_tokens


def test_a_row_that_leaves_makes_room(llama: TransformersEngine) -> None:
    """The model gets the rows under way, and few others."""
    (batch, lane), own = (
        batch_of(llama),
        Sampling(temperature=1.0, max_new_tokens=40, min_new_tokens=40),
    )
    rows = [asked(llama, own, seed) for seed in range(20)]
    batch.prefill(lane, [one.row for one in rows])
    batch.step(lane)
    for one in rows[3:]:
        one.row.aborted = True
    batch.step(lane)
    assert len(lane.running) == len(lane.rows) == 3
    finish(batch, lane)
    assert [len(one.ids) for one in rows[:3]] == [40] * 3
    assert all(one.told == [] for one in rows[3:])


def test_a_broken_row_fails_alone(llama: TransformersEngine) -> None:
    """Its keys and values are NaN, and do not reach the row that takes its place."""
    (batch, lane), own = (
        batch_of(llama),
        Sampling(temperature=0.0, max_new_tokens=24, min_new_tokens=24),
    )
    rows = [asked(llama, own, seed) for seed in (5, 6, 7)]
    rows[1].row.x = torch.full_like(rows[1].row.x, float("nan"))
    batch.prefill(lane, [one.row for one in rows])
    batch.step(lane)
    late = asked(llama, own, 8)
    batch.prefill(lane, [late.row])
    finish(batch, lane)
    (error,) = rows[1].told
    assert isinstance(error, CompletionError)
    assert "NaN or infinite" in str(error)
    for one, seed in ((rows[0], 5), (rows[2], 7), (late, 8)):
        assert one.told == told_alone(llama, own, seed)
        assert len(one.ids) == 24


def test_a_row_that_nobody_reads_leaves_no_nan(llama: TransformersEngine) -> None:
    """It was aborted before its keys were found to be broken."""
    (batch, lane), own = batch_of(llama), GREEDY.model_copy(update={"min_new_tokens": 8})
    first, broken = asked(llama, own, 5), asked(llama, own, 6)
    broken.row.x = torch.full_like(broken.row.x, float("nan"))
    batch.prefill(lane, [first.row, broken.row])
    broken.row.aborted = True
    batch.step(lane)
    late = asked(llama, own, 1)
    batch.prefill(lane, [late.row])
    finish(batch, lane)
    for one, seed in ((first, 5), (late, 1)):
        assert one.told == told_alone(llama, own, seed)


async def entered(batch: Batch, rows: Sequence[Row], row: Row, steps: int) -> int:
    """Submit `rows`, and `row` after `steps` steps; returns how many further steps it waits."""
    taken = 0

    def step(lane: Lane) -> None:
        nonlocal taken
        taken += 1
        Batch.step(batch, lane)

    batch.step = step  # type: ignore[method-assign]
    batch.submit(rows)
    while taken < steps:
        await asyncio.sleep(0)
    began = taken
    batch.submit([row])
    while batch._waiting:
        await asyncio.sleep(0)
    batch.close()
    return taken - began


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_no_row_waits_for_others_to_end(llama: TransformersEngine, steps: int) -> None:
    (batch, _), own = batch_of(llama), GREEDY.model_copy(update={"max_new_tokens": 100})
    many = [asked(llama, own, seed).row for seed in range(8)]
    for row in many:
        row.request = replace(row.request, banned_token_ids=tuple(llama.stop_ids.tolist()))
    assert asyncio.run(entered(batch, many, asked(llama, own, 9).row, steps)) < 20


def test_a_row_enters_after_the_last_one_was_left(llama: TransformersEngine) -> None:
    (batch, _), own = batch_of(llama), GREEDY.model_copy(update={"min_new_tokens": 8})
    first, second = asked(llama, own, 3), asked(llama, own, 4)

    async def leave() -> None:
        batch.submit([first.row])
        while not first.ids:
            await asyncio.sleep(0)
        first.row.aborted = True
        batch.submit([second.row])
        with anyio.fail_after(30):
            while not second.row.aborted:
                await asyncio.sleep(0)

    asyncio.run(leave())
    alone = asked(llama, own, 4)
    run(llama, [alone])
    assert second.ids == alone.ids


@pytest.mark.parametrize("failing", [0, 3])
@pytest.mark.parametrize("entering", ["many", "long"])
def test_memory_that_ends_leaves_the_rows_as_they_were(
    llama: TransformersEngine, monkeypatch: pytest.MonkeyPatch, failing: int, entering: str
) -> None:
    (batch, lane), own = batch_of(llama), GREEDY.model_copy(update={"min_new_tokens": 8})
    first, left = asked(llama, own, 3), failing
    batch.prefill(lane, [first.row])
    batch.step(lane)
    store = cache._store

    def full(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise torch.OutOfMemoryError("no memory")
        return store(*arguments)

    others = [asked(llama, own, seed) for seed in range(9 if entering == "many" else 1)]
    if entering == "long":
        others[0].row.x = llama._embed_ids([5] * 90)
    monkeypatch.setattr(cache, "_store", full)
    with pytest.raises(torch.OutOfMemoryError):
        batch.prefill(lane, [one.row for one in others])
    monkeypatch.undo()
    finish(batch, lane)
    assert first.told == told_alone(llama, own, 3)


def test_rows_that_cannot_be_read_leave_the_batch_as_it_was(
    llama: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch, lane), own = (
        batch_of(llama),
        Sampling(temperature=0.0, max_new_tokens=9, min_new_tokens=9),
    )
    first = asked(llama, own, 3)
    batch.prefill(lane, [first.row])
    batch.step(lane)
    bad = asked(llama, own, 4)
    bad.row.x = torch.zeros(4, 7)
    with pytest.raises(RuntimeError):
        batch.prefill(lane, [asked(llama, own, 5).row, bad.row])
    assert len(lane.running) == 1
    second = asked(llama, own, 5)
    batch.prefill(lane, [second.row])
    finish(batch, lane)
    for one, seed in ((first, 3), (second, 5)):
        assert one.told == told_alone(llama, own, seed)


def test_a_batch_that_is_not_open_waits_until_all_have_ended(llama: TransformersEngine) -> None:
    forward = Forward(llama.model)
    forward.plain = False
    batch, lane = batch_of(llama, forward)
    make = partial(Sampling, temperature=0.0)
    rows = [asked(llama, make(max_new_tokens=n, min_new_tokens=n), n) for n in (2, 6)]
    batch.prefill(lane, [one.row for one in rows])
    while lane.running:
        assert not lane.takes_rows
        batch.step(lane)
    assert lane.takes_rows
    assert lane.rows == []
    for one, n in zip(rows, (2, 6), strict=True):
        assert one.told == told_alone(llama, make(max_new_tokens=n, min_new_tokens=n), n)

"""The batch of all running sequences, which share the model's forward passes.

`Batch._turn` is the loop's body, and `Batch.step` its step with one lane of rows; both are numbered
phases. Between two turns the event loop's other tasks run.

Rows of similar length share a lane. Reading one prompt takes as long as two or three steps, so
waiting rows enter together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import torch
from torch import Tensor

from tide.core.concurrency import release_openmp_threads
from tide.core.errors import CompletionError, EngineError, described
from tide.core.results import FinishReason
from tide.core.settings import Sampling
from tide.engines.base import Piece, Request
from tide.engines.local.cache import Beginning, Pair
from tide.engines.local.sampler import Sampler, noise_keys
from tide.engines.local.stream import NOT_FINITE, Forward, Stream

# Rows of the first lane have at most this number of tokens; each next lane allows 4 times as many.
_SHORT = 256
# Waiting rows enter once they are 1/_SHARE of the number of running rows, or after _STEPS steps.
_SHARE, _STEPS = 4, 6
# Maximum number of prompt tokens read at once, including padding.
_TOKENS = 1 << 15
# Fixed cost of a small model's forward pass, in tokens that a CPU reads in the same time. The
# bundled model reads about 45 tokens per millisecond on 2 cores, and a call costs 1.5 ms. A larger
# model reads fewer tokens in this time. A GPU can afford the padding.
_CALL = 64
# Ended rows stay in a lane until this number or half of the rows has ended, or new rows enter.
_GONE = 2
# oneDNN compiles a kernel for each number of rows, so a step reads dummy rows up to this multiple.
# Compiling takes 3 ms once, and a dummy row of SmolLM2 1.3 ms in each step.
_MULTIPLE = 2
# Number of event-loop turns between two steps, in which tasks that wait for tokens run; each turn
# takes a few microseconds. A row that fails a quick scorer is rewound in four turns.
_TURNS = 5

# Number of steps between checks for stop strings. Each check costs about a small model's step.
LOOK_EVERY = 8

# See `Engine.has_stopped`.
HasStopped = Callable[[Sequence[int], Sampling], bool]


@dataclass(eq=False)
class Row:
    """A running request.

    x: embeddings (T, d) of the prompt. prompt_ids: token ids of the prompt, or the request's
    `penalized_ids`; a repetition penalty also applies to them. beginning: cached text of earlier
    requests that this request continues. ids: tokens drawn so far. sent: number of drawn tokens
    that were sent. read: number of tokens read for the row and not reported yet. ended: whether the
    row has ended or was cancelled. broken: whether its keys and values may be NaN or infinite.
    pieces: pieces of the completion, or the error that ends it.
    """

    request: Request
    x: Tensor
    prompt_ids: Sequence[int] = ()
    beginning: Beginning | None = None
    ids: list[int] = field(default_factory=list)
    sent: int = 0
    read: int = 0
    ended: bool = False
    broken: bool = False
    pieces: asyncio.Queue[Piece | Exception] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.keys = noise_keys(self.request.seed)

    def known(self) -> list[Pair] | None:
        """Return the cached keys and values of the prompt without its last token, or None."""
        return None if self.beginning is None else self.beginning.before_last(self.prompt_ids)

    def send(self, reason: FinishReason | None) -> None:
        """Send the tokens that were not sent yet. reason: finish reason, if the row has ended."""
        self.pieces.put_nowait(Piece(tuple(self.ids[self.sent :]), reason, self.read))
        self.sent, self.read = len(self.ids), 0
        self.ended = self.ended or reason is not None

    def take(self, token: int, stops: set[int]) -> None:
        """Add a drawn token, or end the text."""
        if token in stops:
            self.send("stop")
            return
        self.ids.append(token)
        size = self.request.piece_tokens
        if len(self.ids) == self.request.sampling.max_new_tokens:
            self.send("length")
        elif size is not None and len(self.ids) - self.sent >= size:
            self.send(None)


def packed(lengths: Sequence[int], most: int, *, most_padding: int = _CALL) -> list[list[int]]:
    """Group texts of similar length: at most this number, and `_TOKENS` tokens with padding."""
    groups: list[list[int]] = []
    for number in by_length(lengths):
        last = groups[-1] if groups else []
        tokens = (len(last) + 1) * lengths[number]
        padding = len(last) * lengths[number] - sum(lengths[other] for other in last)
        if not last or len(last) == most or tokens > _TOKENS or padding > most_padding:
            last = []
            groups.append(last)
        last.append(number)
    return groups


def by_length(lengths: Sequence[int]) -> list[int]:
    """Return the numbers of rows from short to long, so that neighbours need little padding."""
    return sorted(range(len(lengths)), key=lengths.__getitem__)


class Lane:
    """Rows of similar lengths, with their stream and sampler.

    rows: rows that the stream has read, including ended rows that have not left yet. resuming: rows
    whose prompts are cached except for the last token, with the cached keys and values. as_group:
    whether all rows have to enter at once, and leave once all have ended. A subclass may change the
    scores (`draw`), and let other models read along (`enter`, `advance`, `leave`, `clear`).
    """

    multiple = _MULTIPLE  # see `KeyValueCache`

    def __init__(self, forward: Forward, stop_ids: Tensor) -> None:
        self.forward, self._stop_ids = forward, stop_ids
        self.as_group = not forward.plain
        self.clear()

    def clear(self) -> None:
        """Drop all rows, and free their keys and values."""
        self.stream = Stream(self.forward, multiple=self.multiple)
        self.sampler = Sampler(self._stop_ids)
        self.rows: list[Row] = []
        self.resuming: list[tuple[Row, list[Pair]]] = []

    @property
    def running(self) -> list[Row]:
        """Rows that still wait for tokens."""
        resuming = (row for row, _ in self.resuming)
        return [row for row in (*self.rows, *resuming) if not row.ended]

    @property
    def takes_rows(self) -> bool:
        """Whether rows may enter and leave now."""
        return not (self.as_group and self.running)

    def enter(self, rows: Sequence[Row]) -> None:
        """Read the whole prompts of these rows."""
        self.stream.enter([row.x for row in rows])

    def sample(self, rows: Sequence[Row]) -> None:
        """Start to draw tokens for these rows, which the stream has read."""
        self.rows += rows
        self.sampler.enter(rows)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw the next token of each row, (B,); also returns whether the scores were finite."""
        return self.sampler.draw(self.sampler.warp(self.sampler.prepare(self.stream.logits)))

    def advance(self, tokens: Tensor) -> None:
        """Read one more token of each row, (B,)."""
        self.stream.advance(tokens)

    def leave(self) -> list[int]:
        """Remove ended rows; returns the old numbers of the remaining rows in their new order."""
        gone = [number for number, row in enumerate(self.rows) if row.ended]
        for number in gone:
            if self.rows[number].broken:
                self.stream.cache.wipe(number)
        order = self.stream.leave(gone)
        self.rows = [self.rows[number] for number in order]
        self.sampler.keep(order)
        return order


class Batch:
    """Completes rows with a model, step by step, until no row is left.

    All methods must be called in one event loop, whose other tasks run between two steps.
    max_batch: maximum number of running rows. has_stopped: see `Engine.has_stopped`. make_lane:
    `Lane`, or a function that makes lanes of a subclass. tokens_read: number of tokens that the
    model has read so far.
    """

    def __init__(
        self,
        forward: Forward,
        stop_ids: Tensor,
        has_stopped: HasStopped,
        *,
        max_batch: int,
        make_lane: Callable[[Forward, Tensor], Lane] = Lane,
    ) -> None:
        self._forward, self.stop_ids, self._has_stopped = forward, stop_ids, has_stopped
        self._max_batch, self._make_lane = max_batch, make_lane
        self.tokens_read = 0
        self._waiting: list[tuple[tuple[int, int, int], Row]] = []
        self._numbers = count()
        self.lanes: dict[int, Lane] = {}  # key: the maximum number of tokens of a row
        self._steps_waited = 0
        self._task: asyncio.Task[None] | None = None

    async def write(self, row: Row) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a row. Closing the generator ends the row at the next step."""
        self._push(row)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            while True:
                piece = await row.pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            row.ended = True

    def close(self) -> None:
        """End running work with EngineError, and free the memory of keys and values."""
        self._fail_all(EngineError("the engine was closed"))

    @property
    def _running(self) -> int:
        return sum(len(lane.running) for lane in self.lanes.values())

    async def _run(self) -> None:
        try:
            while True:
                # The event loop's other tasks run: requests that they make now enter together.
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
                if not (self._waiting or self._running):
                    break
                try:
                    self._turn()
                except BaseException as error:
                    self._fail_all(_failed(error))
        finally:
            self._task = None
            release_openmp_threads()
            for lane in self.lanes.values():
                self._keep(lane)
            self.lanes.clear()

    def _turn(self) -> None:
        """Read the prompts that came, and draw one token of each running row."""
        # 1. Admit waiting rows while there is capacity, and read their prompts.
        for size, rows in self._admit().items():
            try:
                if size not in self.lanes:
                    self.lanes[size] = self._make_lane(self._forward, self.stop_ids)
            except BaseException as error:  # the rows of a lane that cannot be made end
                for row in rows:
                    row.pieces.put_nowait(_failed(error))
            else:
                lane, lengths = self.lanes[size], [len(row.x) for row in rows]
                may_pad = lane.as_group or not self.stop_ids.is_cpu
                padding = _TOKENS if may_pad else _CALL
                # The longest rows first: room for them is room for the others, too.
                for numbers in reversed(packed(lengths, self._max_batch, most_padding=padding)):
                    self._read_prompts(lane, [rows[number] for number in numbers])

        # 2. Step with each lane; if its model fails, its rows end.
        for lane in self.lanes.values():
            try:
                if lane.running:
                    self.step(lane)
            except BaseException as error:
                rows = lane.running
                lane.clear()
                for row in rows:
                    row.pieces.put_nowait(_failed(error))

    @torch.inference_mode()
    def step(self, lane: Lane) -> None:
        """Draw and read a token for each row, or read the last prompt token of a resuming row."""
        tokens = torch.empty(0, dtype=torch.int64, device=self.stop_ids.device)
        if lane.rows:
            # 1. Draw the next token of each row.
            tokens, finite = lane.draw()

            # 2. Give the tokens to their rows, which send them.
            stop_ids = set(self.stop_ids.tolist())
            for row, token, good in zip(lane.rows, tokens.tolist(), finite.tolist(), strict=True):
                # The model still reads ended rows, and their NaN must not stay for the next row.
                row.broken = row.broken or not good
                if good and not row.ended:
                    row.take(token, stop_ids)
                elif not row.ended:
                    row.ended = True
                    problem = f"for this prompt the model's {NOT_FINITE}"
                    row.pieces.put_nowait(CompletionError(problem))

            # 3. End texts that have reached a stop string; every few tokens, since looking is slow.
            # The reader cuts the text before the stop string.
            for row in lane.rows:
                sampling = row.request.sampling
                is_due = sampling.stop and len(row.ids) % LOOK_EVERY == 0
                if is_due and not row.ended and self._has_stopped(row.ids, sampling):
                    row.send("length")

            # 4. Let ended rows leave, a few at a time.
            live = sum(not row.ended for row in lane.rows)
            many_ended = len(lane.rows) - live >= min(_GONE, live or 1)
            if many_ended and lane.takes_rows:
                tokens = tokens[self.retire(lane)]

        # 5. Let rows with cached prompts enter, except for the last tokens of the prompts.
        resuming, lane.resuming = lane.resuming, []
        resumed = []
        for row, layers in resuming:
            if not row.ended:
                lane.stream.resume(layers)
                resumed.append(row)
        if not (lane.rows or resumed):
            return

        # 6. Read one token of each row.
        last = torch.tensor([row.prompt_ids[-1] for row in resumed], dtype=torch.int64)
        lane.advance(torch.cat([tokens, last.to(tokens.device)]))
        if resumed:
            lane.sample(resumed)
        self.tokens_read += len(lane.running)

    def _admit(self) -> dict[int, list[Row]]:
        """Take rows from the queue, the lowest priority first; returns them by keys of `lanes`.

        Rows whose prompts are cached enter at once. New rows enter only if there are many, or if
        they have waited long.
        """
        running = self._running
        entering = min(len(self._waiting), self._max_batch - running)
        if entering <= 0:
            return {}
        self._steps_waited += 1
        reads = entering >= running // _SHARE or self._steps_waited >= _STEPS
        for lane in self.lanes.values():
            self._keep(lane)
        by_lane: dict[int, list[Row]] = {}
        later = []
        while self._waiting and entering > 0:
            entry = heappop(self._waiting)
            row, size = entry[1], _SHORT
            if row.ended:
                continue
            if not reads and row.known() is None:
                later.append(entry)
                continue
            while size < len(row.x) + row.request.sampling.max_new_tokens:
                size *= 4
            if size in self.lanes and not self.lanes[size].takes_rows:
                later.append(entry)
                continue
            by_lane.setdefault(size, []).append(row)
            entering -= 1
        if reads and not later:
            self._steps_waited = 0
        for entry in later:
            heappush(self._waiting, entry)
        return by_lane

    def _read_prompts(self, lane: Lane, rows: Sequence[Row]) -> None:
        """Read prompts together, or each alone if that fails: a faulty one fails alone."""
        try:
            self.prefill(lane, rows)
        except BaseException as error:
            if len(rows) == 1:
                if not isinstance(error, CompletionError):
                    error = CompletionError(f"the prompt could not be read: {described(error)}")
                rows[0].pieces.put_nowait(error)
                return
            for row in rows:
                self._read_prompts(lane, [row])

    @torch.inference_mode()
    def prefill(self, lane: Lane, rows: Sequence[Row]) -> None:
        """Read the prompts of these rows, except for cached tokens; `step` draws their tokens.

        Rows that the lane cannot take now wait again.
        """
        if not lane.takes_rows:
            for row in rows:
                self._push(row)
            return
        if lane.rows:
            self.retire(lane)
        known = [(row, row.known()) for row in rows]
        unread = [row for row, layers in known if layers is None]
        before = lane.stream.cache.count
        try:
            if unread:
                lane.enter(unread)
        except BaseException:  # no row enters
            lane.stream.leave(range(before, lane.stream.cache.count))
            raise
        self.tokens_read += sum(len(row.x) for row in unread)
        for row, layers in known:
            if layers is not None:
                row.read = 1
                lane.resuming.append((row, layers))
        if unread:
            lane.sample(unread)

    @torch.inference_mode()
    def retire(self, lane: Lane) -> list[int]:
        """Let ended rows leave; returns the remaining rows' old numbers in their new order."""
        self._keep(lane)
        if lane.as_group:  # all rows have ended
            lane.clear()
            return []
        return lane.leave()

    @torch.inference_mode()
    def _keep(self, lane: Lane) -> None:
        """Cache the keys and values of leaving rows that a later request may continue."""
        for number, row in enumerate(lane.rows):
            if row.ended and row.beginning is not None and not row.broken:
                beginning, row.beginning = row.beginning, None
                layers = lane.stream.cache.copy(number)
                beginning.cache.keep(beginning, [*row.prompt_ids, *row.ids], layers)

    def _push(self, row: Row) -> None:
        # Prompts of similar length are read together, which saves padding.
        turn = row.request.priority // self._max_batch
        heappush(self._waiting, ((turn, len(row.x), next(self._numbers)), row))

    def _fail_all(self, error: EngineError) -> None:
        rows = [row for _, row in self._waiting if not row.ended]
        rows += [row for lane in self.lanes.values() for row in lane.running]
        self._waiting, self.lanes = [], {}
        for row in rows:
            row.pieces.put_nowait(error)


def _failed(error: BaseException) -> EngineError:
    if isinstance(error, EngineError):  # the engine is being closed
        return error
    return EngineError(f"the model failed: {described(error)}")

"""What runs the model: takes rows in, steps the batches, delivers what was written.

One forward pass at a time serves all rows under way. A waiting row enters when there is room, with
others that wait: to read its prompt by itself takes as long as two or three steps of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, groupby

import torch
from torch import Tensor

from tide.core.concurrency import release_openmp_threads
from tide.core.errors import CompletionError, EngineError, TideError, described
from tide.engines.base import Likelihood
from tide.engines.local.decode import Forward, StopStrings
from tide.engines.local.open_batch import Batch, Row, read_suffixes, sharing
from tide.engines.local.padding import left_pad, length_groups
from tide.engines.local.prefixes import Beginning, PrefixCache

# Rows are written with others of about their length: up to so many tokens, 4 times as many, ...
_SHORT = 256
# Rows enter together if they are a quarter of those that are written, or have waited so long.
_SHARE, _STEPS = 4, 6
# Tokens of prompts that are read at once, with their padding.
_TOKENS = 1 << 15
# Turns of the loop between two steps: each takes some microseconds.
_TURNS = 3
# Seconds without work after which the room of keys and values is let go.
_REST = 1.0


@dataclass(eq=False)
class Reading:
    """Asks how likely the last `ids` of the rows `x` (T, d) are after what is before them."""

    x: Tensor
    ids: Sequence[int]
    put: Callable[[Likelihood | Exception], None]
    read: int
    priority: int = 0
    prefix: Beginning | None = None
    aborted: bool = False


class Worker:
    """Completes rows with a model, step by step, for as long as there are any.

    All its methods belong to one event loop, which it lets run between two steps. longest: rows of
    at most so many tokens (with what may follow) share open batches; longer ones are written in
    batches that do not open. max_batch: rows under way at once.
    """

    def __init__(
        self,
        forward: Forward,
        prefixes: PrefixCache,
        stop_ids: Tensor,
        stop_strings: StopStrings,
        *,
        max_batch: int,
        longest: int,
    ) -> None:
        self._forward, self._prefixes = forward, prefixes
        self.stop_ids, self._stop_strings = stop_ids, stop_strings
        self._max_batch, self._longest = max_batch, longest
        self._readings: list[Reading] = []
        self._waiting: list[tuple[tuple[int, int, int], Row]] = []
        self._numbers = count()
        self._batches: dict[tuple[bool, int], Batch] = {}
        self._steps_waited = 0
        self._task: asyncio.Task[None] | None = None
        self._resting: asyncio.TimerHandle | None = None

    def submit(self, work: Iterable[Row | Reading]) -> None:
        """Let these take part from the next step on."""
        for one in work:
            if isinstance(one, Row):
                self._push(one)
            else:
                if len(one.x) > self._longest:  # the layers do not keep its beginning whole
                    one.prefix = None
                self._readings.append(one)
        if self._task is None:
            if self._resting is not None:
                self._resting.cancel()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """End what is under way with EngineError."""
        self._fail_all(EngineError("the engine was closed"))

    async def _run(self) -> None:
        try:
            # Those who ask in one breath enter together.
            await _others()
            while self._busy:
                try:
                    self._turn()
                except BaseException as error:
                    self._fail_all(_engine_error(error))
                await _others()
        finally:
            self._task = None
            release_openmp_threads()
            loop = asyncio.get_running_loop()
            self._resting = loop.call_later(_REST, self._rest)

    def _rest(self) -> None:
        """Let the room of keys and values go."""
        for batch in self._batches.values():
            batch.remember()
        self._batches.clear()

    @property
    def _busy(self) -> bool:
        return bool(self._readings or self._waiting or any(map(len, self._batches.values())))

    def _turn(self) -> None:
        """One forward pass of each batch, and those of what enters."""
        if self._readings:
            readings, self._readings = self._readings, []
            self._read(readings)
        self._admit()
        for batch in [batch for batch in self._batches.values() if len(batch)]:
            try:
                batch.step()
            except BaseException as error:
                self._fail_batch(batch, error)

    # Rows that enter.

    def _admit(self) -> None:
        """Let rows that wait enter, if they are many enough or have waited for long."""
        while self._waiting and self._waiting[0][1].aborted:
            heappop(self._waiting)
        under_way = sum(map(len, self._batches.values()))
        entering = min(len(self._waiting), self._max_batch - under_way)
        if entering <= 0:
            return
        self._steps_waited += 1
        if entering < under_way // _SHARE and self._steps_waited < _STEPS:
            return
        self._steps_waited = 0
        for batch in self._batches.values():
            batch.remember()
        by_batch: dict[tuple[bool, int], list[Row]] = {}
        later = []
        while self._waiting and entering > 0:
            entry = heappop(self._waiting)
            row = entry[1]
            if row.aborted:
                continue
            kind = self._kind(row)
            if kind in self._batches and not self._batches[kind].takes_rows:
                later.append(entry)
                continue
            by_batch.setdefault(kind, []).append(row)
            entering -= 1
        for entry in later:
            heappush(self._waiting, entry)
        for kind, rows in by_batch.items():
            self._enter(self._batch(kind), rows)

    def _push(self, row: Row) -> None:
        # Of prompts that are served together, those of similar length: less padding is read.
        turn = row.priority // self._max_batch
        heappush(self._waiting, ((turn, len(row.x), next(self._numbers)), row))

    def _kind(self, row: Row) -> tuple[bool, int]:
        """Whether the batch for a row is open, and the longest of its rows."""
        length, size = len(row.x) + row.sampling.max_new_tokens, _SHORT
        while size < length:
            size *= 4
        return length <= self._longest, size

    def _batch(self, kind: tuple[bool, int]) -> Batch:
        if kind not in self._batches:
            self._batches[kind] = Batch(
                self._forward,
                self._prefixes,
                self.stop_ids,
                self._stop_strings,
                is_open=kind[0],
            )
        return self._batches[kind]

    def _enter(self, batch: Batch, rows: list[Row]) -> None:
        """Read the prompts of rows, so many at a time that their tokens have room."""
        rows.sort(key=lambda row: len(row.x))
        while rows:
            size = max(1, min(len(rows), _TOKENS // len(rows[0].x)))
            while size > 1 and size * len(rows[size - 1].x) > _TOKENS:
                size -= 1
            some, rows = rows[:size], rows[size:]
            try:
                batch.enter(some)
            except BaseException as error:
                if len(some) == 1:
                    some[0].put(_completion_error(error))
                    continue
                # Whose fault it is shows when each enters by itself.
                alone = some if batch.is_open else some[:1]
                for row in alone:
                    self._enter(batch, [row])
                rows = some[len(alone) :] + rows
            if not batch.is_open and len(batch):
                for row in rows:
                    self._push(row)
                return

    # Texts that are read alone.

    @torch.inference_mode()
    def _read(self, readings: Sequence[Reading]) -> None:
        wanted = [one for one in readings if not one.aborted]
        plain = [one for one in wanted if one.prefix is None]
        behind = sorted((one for one in wanted if one.prefix is not None), key=sharing)
        groups = [list(some) for _, some in groupby(behind, key=sharing)]
        if plain:
            parts = length_groups([len(one.x) for one in plain])
            groups += [[plain[i] for i in part] for part in parts]
        for group in groups:
            size = max(1, min(self._max_batch, _TOKENS // max(len(one.x) for one in group)))
            for start in range(0, len(group), size):
                some = group[start : start + size]
                try:
                    self._tell(some)
                except BaseException as error:
                    for one in some if len(some) == 1 else ():
                        one.put(_completion_error(error))
                    for one in some if len(some) > 1 else ():
                        self._read([one])

    def _tell(self, readings: Sequence[Reading]) -> None:
        # Only what predicts a completion's tokens: the head is a good part of a small model.
        last = max(len(one.ids) for one in readings)
        if readings[0].prefix is not None:
            logits, _ = read_suffixes(self._forward, self._prefixes, readings, last + 1)
        else:
            out = self._forward.read([one.x for one in readings], keep=last + 1)
            logits = out.logits[:, -last - 1 :]
        self._prefixes.tokens_read += sum(len(one.x) for one in readings)
        ids, _ = left_pad([torch.tensor(list(one.ids)) for one in readings])
        logits = logits[:, :-1].float()
        chosen = logits.gather(-1, ids.to(logits.device)[..., None])[..., 0]
        log_probs = (chosen - logits.logsumexp(dim=-1)).double()
        for one, row in zip(readings, log_probs, strict=True):
            one.put(Likelihood(float(row[last - len(one.ids) :].mean()), one.read))

    # What fails.

    def _fail_batch(self, batch: Batch, error: BaseException) -> None:
        rows = batch.under_way
        batch.clear()
        for row in rows:
            row.put(_engine_error(error))

    def _fail_all(self, error: EngineError) -> None:
        rows = [row for _, row in self._waiting]
        rows += [row for batch in self._batches.values() for row in batch.under_way]
        work: list[Row | Reading] = [*rows, *self._readings]
        self._waiting, self._readings, self._batches = [], [], {}
        for one in dict.fromkeys(work):
            if not one.aborted:
                one.put(error)


async def _others() -> None:
    """Let those go on who wait for what was written: some of them in several turns of the loop."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _completion_error(error: BaseException) -> TideError:
    if isinstance(error, TideError):
        return error
    return CompletionError(f"the prompt could not be read: {described(error)}")


def _engine_error(error: BaseException) -> EngineError:
    if isinstance(error, EngineError):
        return error
    return EngineError(f"the model failed: {described(error)}")

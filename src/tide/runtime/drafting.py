"""Drafts that are written together, a chunk at a time, and scored behind the engine's back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tide.core.errors import EngineError, TideError
from tide.engines.base import Engine, Writer
from tide.engines.writing import open_writer
from tide.runtime.draft import Draft, Passage
from tide.runtime.pieces import pieces_of
from tide.runtime.work import Texts
from tide.scorers.base import Scores

_Asked = list[tuple[Draft, list[Passage]]]
_Scores = Future[list[Scores | TideError]]


@dataclass(eq=False)
class _Batch:
    """Drafts that are being written, one a row of the writer, and the scores of the last chunk."""

    writer: Writer
    rows: list[Draft]
    asked: _Asked = field(default_factory=list)
    scores: _Scores | None = None
    chunks: int = 0

    def next_chunk(self) -> int:
        """Tokens to write next: fewer of a draft that begins, since its first block fails most."""
        self.chunks += 1
        first = self.rows[0]
        begins = self.chunks == 1 and not first.careful
        return math.ceil(first.chunk * 0.75) if begins else first.chunk

    @property
    def waits(self) -> bool:
        return self.scores is not None and any(self.rows[i].waits for i in self.going())

    def going(self) -> list[int]:
        """The rows that are still to be written."""
        return [i for i, one in enumerate(self.rows) if one.ended is None and not one.over]


class Drafting:
    """The drafts of a scheduler.

    While the blocks of one chunk are scored the engine writes the next. Behind the first chunks,
    and in a careful draft, it waits instead, or serves others. So how much is thrown away behind a
    block that fails depends on no other work.

    ask: calls the engine. send: gives texts to the scorer. end: takes a draft that has ended.
    ready: those that wait for their first chunk.
    """

    def __init__(
        self,
        engine: Engine,
        ask: Callable[..., Any],
        send: Callable[[Sequence[Texts]], _Scores],
        end: Callable[[Draft], None],
    ) -> None:
        self._engine, self._ask, self._send, self._end = engine, ask, send, end
        self.ready: list[Draft] = []
        self._batches: list[_Batch] = []

    @property
    def busy(self) -> bool:
        return bool(self.ready or self._batches)

    def turns(self) -> dict[object, tuple[int, Callable[[], None]]]:
        """What the engine could do next: how many rows that serves, and what does it."""
        turns: dict[object, tuple[int, Callable[[], None]]] = {
            batch: (len(going), partial(self._advance, batch))
            for batch in self._batches
            if not batch.waits and (going := batch.going())
        }
        most = self._engine.max_batch
        room = most - sum(len(batch.going()) for batch in self._batches)
        # Small batches, opened as single rows end, would cost as much as full ones.
        if self.ready and room >= min(len(self.ready), max(1, most // 2)):
            new = min(len(self.ready), room)
            turns["open"] = new, partial(self._open, new)
        return turns

    def drop(self, now: float) -> None:
        """Let go of what was cancelled, and end what is late before it began."""
        for draft in self.ready:
            if not draft.over and draft.deadline <= now:
                self._over(draft)
        self.ready = [draft for draft in self.ready if not draft.over]

    def settle(self, *, wait: bool) -> bool:
        """Tell the last scores of batches that are written or wait; whether there were any.

        wait: for those of one batch, if none are here.
        """
        for batch in [batch for batch in self._batches if batch.waits or not batch.going()]:
            if wait or batch.scores is None or batch.scores.done():
                told, batch.asked, batch.scores = (batch.asked, batch.scores), [], None
                self._tell(*told)
                if not batch.going():
                    self._batches.remove(batch)
                return True
        return False

    def _open(self, most: int) -> None:
        """Begin to write the drafts of the lowest order, those that are written alike together."""
        self.ready.sort(key=lambda draft: draft.order)
        first = self.ready[0]
        way = first.chunk, first.careful
        alike = [draft for draft in self.ready if (draft.chunk, draft.careful) == way]
        rows = alike[:most]
        taken = set(map(id, rows))
        self.ready = [draft for draft in self.ready if id(draft) not in taken]
        columns = zip(*((one.embeddings, one.sampling, one.seed) for one in rows), strict=True)
        try:
            writer = self._ask(partial(open_writer, self._engine), *map(list, columns), count=-1)
        except EngineError as error:
            self._fail(rows, error)
            return
        self._batches.append(batch := _Batch(writer, rows))
        self._advance(batch)

    def _advance(self, batch: _Batch) -> None:
        """Write the next chunk, send its blocks to the scorer, and tell the scores of the last."""
        going = batch.going()
        try:
            if len(going) <= len(batch.rows) // 2:  # what is copied costs some steps
                batch.writer.keep(going)
                batch.rows, going = [batch.rows[i] for i in going], list(range(len(going)))
            rows = batch.rows
            written = self._ask(batch.writer.advance, batch.next_chunk(), count=len(rows))
            for i in going:
                rows[i].add(*written[i])
            drafts = [rows[i] for i in going if not rows[i].over]
            pieces = self._ask(pieces_of(self._engine).of, [draft.pending for draft in drafts])
        except EngineError as error:
            self._batches.remove(batch)
            self._fail([*batch.rows, *(draft for draft, _ in batch.asked)], error)
            return
        before = batch.asked, batch.scores
        batch.asked = [(draft, draft.cut(own)) for draft, own in zip(drafts, pieces, strict=True)]
        batch.scores = self._send([draft.texts(some) for draft, some in batch.asked])
        self._tell(*before)

    def _tell(self, asked: _Asked, scores: _Scores | None) -> None:
        now = time.monotonic()
        for (draft, passages), found in zip(asked, scores.result() if scores else (), strict=True):
            if draft.over:
                continue
            if isinstance(found, TideError):
                draft.error = found
            else:
                draft.tell(passages, found.values.tolist(), found.empty.tolist())
            if draft.done or draft.deadline <= now:
                self._over(draft)

    def _fail(self, drafts: Sequence[Draft], error: TideError) -> None:
        for draft in drafts:
            if not draft.over:
                draft.error = error
                self._over(draft)

    def _over(self, draft: Draft) -> None:
        draft.over = True
        self._end(draft)

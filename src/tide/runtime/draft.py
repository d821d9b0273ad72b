"""The model's draft of an answer, cut into blocks as they are completed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from tide.engines.base import FinishReason, Piece
from tide.runtime.blocks import first_end, last_word

# Chunks of a draft after which it waits for the scorer: most that fail do so within these.
_FIRST_CHUNKS = 2


@dataclass(frozen=True)
class Passage:
    """A drafted block: its tokens, the text of each, and the text before it.

    last: why the answer ends with it; None if it continues. chunk: its number in the draft, from 1.
    unfinished: only the beginning of a block, read to see whether to go on.
    """

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    context: str
    context_tokens: int
    last: FinishReason | None
    chunk: int
    unfinished: bool

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass
class Draft:
    """Text of the model that is not accepted yet.

    before: token texts of the answer so far. chunk: tokens read and scored at a time. careful:
        whether each chunk, not only the first, waits until those before are scored. stop: texts
        that end the answer. token_ids: all that were drafted. ended: why the model stopped. chunks:
        number read. sent: the texts that were scored.
    """

    before: list[str]
    block_tokens: int
    block_context: int
    chunk: int
    careful: bool
    stop: tuple[str, ...]
    token_ids: list[int] = field(default_factory=list)
    ended: FinishReason | None = None
    chunks: int = 0
    sent: set[str] = field(default_factory=set)
    _cut: int = 0  # tokens of the draft that are in blocks

    @property
    def next_chunk(self) -> int:
        """Tokens to read next: fewer at a draft's start, since its first block fails most."""
        begins = self.chunks == 0 and not self.careful
        return math.ceil(self.chunk * 0.75) if begins else self.chunk

    @property
    def waits(self) -> bool:
        """Whether to await the last chunk's scores before reading on."""
        return self.careful or self.chunks <= _FIRST_CHUNKS

    @property
    def pending(self) -> list[int]:
        """The tokens that are in no block yet."""
        return self.token_ids[self._cut :]

    def add(self, token_ids: Sequence[int], reason: FinishReason | None) -> None:
        """What the engine wrote next, and why it ended."""
        self.token_ids += token_ids
        self.ended = reason
        self.chunks += 1

    def cut(self, texts: list[str]) -> list[Passage]:
        """The blocks that are complete in the tokens `pending`, with their `texts`."""
        whole = "".join(texts)
        stops = [place for one in self.stop if (place := whole.find(one)) >= 0]
        if stops:
            texts, self.ended = _until(texts, min(stops)), "stop"
        found: list[Passage] = []
        over = self.ended is not None
        while texts:
            end = first_end(texts, self.block_tokens, ended=over, stop=self.stop)
            if end is None:
                break
            found.append(self._passage(texts[:end], self.ended if end == len(texts) else None))
            texts = texts[end:]
        if over and not (found or self.before):
            found.append(self._passage([], self.ended))  # an answer without a token is scored, too
        # What fails already is written no further.
        if self.waits and not over and (words := last_word(texts)):
            found.append(self._passage(texts[:words], None, unfinished=True))
        self.sent.update(passage.context + passage.text for passage in found)
        return found

    def _passage(
        self, texts: list[str], last: FinishReason | None, *, unfinished: bool = False
    ) -> Passage:
        context = self.before[max(0, len(self.before) - self.block_context) :]
        token_ids = tuple(self.token_ids[self._cut : self._cut + len(texts)])
        before = "".join(context), len(context)
        passage = Passage(token_ids, tuple(texts), *before, last, self.chunks, unfinished)
        if not unfinished:
            self._cut += len(texts)
            self.before += texts
        return passage


class DraftReader:
    """Reads N tokens at a time of an engine's output."""

    def __init__(self, pieces: AsyncIterator[Piece]) -> None:
        self._pieces = pieces
        self._ids: list[int] = []
        self._reason: FinishReason | None = None

    async def take(self, count: int) -> tuple[list[int], FinishReason | None]:
        """Up to `count` tokens, and why there are no more after them; None if there may be."""
        while len(self._ids) < count and self._reason is None:
            piece = await anext(self._pieces)
            self._ids += piece.token_ids
            self._reason = piece.finish_reason
        taken, self._ids = self._ids[:count], self._ids[count:]
        return taken, None if self._ids else self._reason


def _until(texts: list[str], end: int) -> list[str]:
    """The texts up to this offset of the whole, the last one cut there."""
    kept: list[str] = []
    for text in texts:
        if end <= 0:
            break
        kept.append(text[:end])
        end -= len(text)
    return kept

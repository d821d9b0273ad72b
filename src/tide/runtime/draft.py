"""What the model goes on writing of an answer, cut into blocks as they come to their ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tide.core.errors import TideError
from tide.core.settings import EmptyPolicy, Sampling
from tide.engines.base import FinishReason
from tide.runtime.blocks import first_end, last_word
from tide.runtime.work import Course, Texts

# Chunks of a draft after which it waits for the scorer: most that fail do so within these.
_FIRST_CHUNKS = 2


@dataclass(frozen=True)
class Passage:
    """A block that was drafted: its tokens, the piece of text of each, and what stands before.

    last: why the answer ends with it; None if it goes on. chunk: of the draft, by number, from 1.
    unfinished: it is the beginning of a block, read to see whether to write on.
    """

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    context: str
    context_tokens: int
    last: FinishReason | None
    chunk: int
    unfinished: bool

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(eq=False)
class Draft:
    """Text of the model that is not accepted yet.

    embeddings: what it goes on from, (T, d). before: the pieces of the answer that stand there
    already. take: is told each block in order, its score and whether that is the policy's, and
    returns whether the draft goes on behind it. chunk: tokens written at a time. careful: whether
    all of these wait until those before are scored, not only the first. order, deadline, course,
    error: as a Search has them. token_ids: all that were drafted. ended: why the model wrote no
    more. chunks: engine calls. over: whether it is to be left alone.
    """

    embeddings: Tensor
    sampling: Sampling
    seed: int
    before: list[str]
    block_tokens: int
    block_context: int
    chunk: int
    careful: bool
    empty_policy: EmptyPolicy
    take: Callable[[Passage, float, bool], bool]
    deadline: float = math.inf
    order: int = 0
    course: Course | None = None
    token_ids: list[int] = field(default_factory=list)
    ended: FinishReason | None = None
    chunks: int = 0
    sent: set[str] = field(default_factory=set)
    failed: bool = False
    error: TideError | None = None
    over: bool = False
    _cancelled: bool = False
    _cut: int = 0  # tokens of the draft that are in blocks
    _left: int = 0  # blocks that were not taken yet

    def add(self, token_ids: Sequence[int], reason: FinishReason | None) -> None:
        """What the engine wrote next, and why it ended."""
        self.token_ids += token_ids
        self.ended = reason
        self.chunks += 1

    @property
    def waits(self) -> bool:
        """Whether the scores of the last chunk decide first what is written on."""
        return self.careful or self.chunks <= _FIRST_CHUNKS

    @property
    def pending(self) -> list[int]:
        """The tokens that are in no block yet."""
        return self.token_ids[self._cut :]

    def cut(self, pieces: list[str]) -> list[Passage]:
        """The blocks that have come to their ends in the tokens `pending`, with their `pieces`."""
        stop = self.sampling.stop_in("".join(pieces))
        if stop is not None:
            pieces, self.ended = _until(pieces, stop), "stop"
        found: list[Passage] = []
        while pieces:
            end = first_end(
                pieces,
                self.block_tokens,
                ended=self.ended is not None,
                stop=self.sampling.stop,
            )
            if end is None:
                break
            found.append(self._passage(pieces[:end], self.ended if end == len(pieces) else None))
            pieces = pieces[end:]
        if self.ended is not None and not (found or self.before):
            found.append(self._passage([], self.ended))  # an answer without a token is scored, too
        # What fails already is written no further.
        if self.waits and self.ended is None and (words := last_word(pieces)):
            found.append(self._passage(pieces[:words], None, unfinished=True))
        self._left += len(found)
        return found

    def _passage(
        self, pieces: list[str], last: FinishReason | None, *, unfinished: bool = False
    ) -> Passage:
        context = self.before[max(0, len(self.before) - self.block_context) :]
        token_ids = tuple(self.token_ids[self._cut : self._cut + len(pieces)])
        before = "".join(context), len(context)
        passage = Passage(token_ids, tuple(pieces), *before, last, self.chunks, unfinished)
        if not unfinished:
            self._cut += len(pieces)
            self.before += pieces
        return passage

    def tell(
        self, passages: Sequence[Passage], scores: Sequence[float], empty: Sequence[bool]
    ) -> None:
        """The scores of blocks, in order. Those behind one that failed count no more."""
        for passage, score, is_empty in zip(passages, scores, empty, strict=True):
            self._left -= 1
            self.failed = self.failed or not self.take(passage, score, is_empty)

    def texts(self, passages: Sequence[Passage]) -> Texts:
        """What is scored of these blocks."""
        self.sent.update(passage.context + passage.text for passage in passages)
        before = [passage.context for passage in passages]
        return [passage.text for passage in passages], before, self.empty_policy

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    @cancelled.setter
    def cancelled(self, cancelled: bool) -> None:
        self._cancelled = cancelled
        self.over = self.over or cancelled

    @property
    def done(self) -> bool:
        return self.error is not None or self.failed or (self.ended is not None and not self._left)


def _until(pieces: list[str], end: int) -> list[str]:
    """The pieces of the text up to this place, the last of them cut off there."""
    kept: list[str] = []
    for piece in pieces:
        if end <= 0:
            break
        kept.append(piece[:end])
        end -= len(piece)
    return kept

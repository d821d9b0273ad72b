"""Writes a draft of an answer, piece by piece, up to a stop string."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from tide.core.text import last_whole, word_starts
from tide.engines.base import Engine, FinishReason, Piece
from tide.runtime.trial import Effort
from tide.runtime.watch import Watch

# Maximum tokens of an unfinished word that are decoded again as the word grows.
_LONGEST_WORD = 64


async def written(
    pieces: AsyncGenerator[Piece, None], engine: Engine, watch: Watch, effort: Effort
) -> AsyncGenerator[Piece, None]:
    """Append the engine's pieces to the answer; yield each after it was appended.

    The last piece has the reason why the answer ended; a stop string ends it, too.
    """
    settled = len(watch.ids)  # number of tokens whose texts are final
    effort.usage = None
    async with aclosing(pieces):
        async for piece in pieces:
            watch.ids += piece.token_ids
            watch.ends_word = piece.ends_word
            effort.generated_tokens += len(piece.token_ids) + piece.parts.num_tokens
            effort.read_tokens += piece.read_tokens or 0
            effort.usage = piece.usage
            (watch.texts[settled:],) = engine.token_texts([watch.ids[settled:]])
            reason = _stopped(watch) or piece.finish_reason
            yield piece if reason == piece.finish_reason else replace(piece, finish_reason=reason)
            if reason is not None:
                return
            settled += max(word_starts(watch.texts[settled:]), default=0)
            if len(watch.texts) - settled > _LONGEST_WORD:
                settled = last_whole(watch.texts)


def _stopped(watch: Watch) -> FinishReason | None:
    """Cut the answer before its first stop string; return "stop" if there is a stop string."""
    settings = watch.settings
    end = settings.stop_in(watch.text) if settings.stop else None
    if end is None:
        return None
    # Passed text stays.
    watch.cut(max(end, len("".join(watch.texts[: watch.passed]))))
    return "stop"


async def parted(pieces: Sequence[Piece], size: int | None) -> AsyncGenerator[Piece, None]:
    """Yield a finished answer in pieces of `size` tokens, so that it is judged as it grows."""
    for piece in pieces:
        ids = piece.token_ids
        starts = range(0, len(ids) or 1, size or len(ids) or 1)
        for start in starts:
            part = ids[start : start + starts.step]
            yield Piece(part, piece.finish_reason if start == starts[-1] else None)

"""Monitoring: the model's own answer is given out, and the effect of enforcing is forecast later.

Nothing is scored before it is given out. The forecast feeds the written text to the loop of an
enforced answer (`Answer`), so both obey one rule.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from tide.core.chat import Parts
from tide.core.text import Thoughts, last_whole, maybe_stops
from tide.engines.base import Engine, FinishReason, Piece, Request
from tide.runtime.answer import Answer, TrialTask
from tide.scorers.scoring import Scoring


@dataclass(frozen=True)
class Draft:
    """The model's own answer. parts: beside its text. pieces: as the engine gave them."""

    task: TrialTask
    text: str
    parts: Parts
    num_tokens: int
    finish_reason: FinishReason
    generated_tokens: int
    read_tokens: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Forecast:
    """The effect that enforcing would have had on a draft.

    score: of the whole text, or of the beginning that fails first. character: where the text would
    first have been rewound, counted from 0; None if it would have been given out as it is. word:
    number of words that begin before it.
    """

    score: float
    character: int | None = None
    word: int | None = None

    @property
    def would_change(self) -> bool:
        return self.character is not None


async def write_draft(task: TrialTask, engine: Engine, scoring: Scoring) -> Draft:
    """Let the model write. `on_text` gets each character as soon as no later token can change it.

    scoring: asked for its pace alone.
    """
    return await _Monitored(task, engine, scoring).write()


async def forecast(draft: Draft, engine: Engine, scoring: Scoring) -> Forecast:
    """Raises ScorerError, as an enforced answer does."""
    task = draft.task
    if task.on_text is not None:  # as in a stream, where every given out part is judged
        task = replace(task, on_text=lambda _: None)
    thoughts = Thoughts()
    text = draft.text
    if task.chat is not None and "parts" in engine.capabilities:  # it would have told them apart
        text = thoughts.add(text) + thoughts.end()
    pieces = draft.pieces
    if thoughts.said:
        (ids,) = engine.tokenize([text])
        pieces = (Piece(tuple(ids), draft.finish_reason),)
    monitored = _Monitored(task, engine, scoring, pieces)
    if task.in_parts:
        parts = Parts(
            reasoning=draft.parts.reasoning + thoughts.said, tool_calls=draft.parts.tool_calls
        )
        return await monitored.forecast_whole(text, parts)
    return await monitored.forecast(text)


class _Monitored(Answer):
    """An answer that is not judged while it is written, or a finished one.

    pieces: those of a finished answer.
    """

    def __init__(
        self, task: TrialTask, engine: Engine, scoring: Scoring, pieces: Sequence[Piece] = ()
    ) -> None:
        super().__init__(task, engine, scoring)
        self._recorded = list(pieces)
        self._prefix_cache = None  # nothing is read again

    async def write(self) -> Draft:
        on_text, texts, stop = self._task.on_text, self._watch.texts, self._settings.stop
        ended: FinishReason | None = None
        given_out = 0  # characters
        async with aclosing(self._written()) as pieces:
            async for ended in pieces:
                if on_text is None:
                    continue
                sure = len(texts) if ended else last_whole(texts)
                while not ended and sure and maybe_stops(stop, texts[:sure]):
                    sure -= 1
                text = "".join(texts[:sure])
                if len(text) > given_out:
                    on_text(text[given_out:])
                    given_out = len(text)
        assert ended is not None
        return Draft(
            self._task,
            self._watch.text,
            self._parts,
            len(self._ids),
            ended,
            self._effort.generated_tokens,
            self._effort.read_tokens,
            tuple(self._recorded),
        )

    async def forecast(self, text: str) -> Forecast:
        if (failure := await self._draft()) is not None:
            score, place = failure.score, self._watch.passed
            if self._rewinds is not None:
                place = self._ban(*await self._blamed(failure))
            character = len("".join(self._watch.texts[:place]))
        elif (trial := self._trial(True)).accepted or not text:
            return Forecast(trial.toxicity)
        else:  # too short to be scored: it would be withheld
            score, character = trial.toxicity, 0
        character += len(text[character:]) - len(text[character:].lstrip())
        return Forecast(score, character, len(text[:character].split()))

    async def forecast_whole(self, text: str, parts: Parts) -> Forecast:
        """Of an answer in parts, which would have been drawn again as a whole."""
        score = await self._judge_whole(text, parts)
        return Forecast(score) if self._settings.passes(score) else Forecast(score, 0, 0)

    async def _pieces(self, request: Request) -> AsyncGenerator[Piece, None]:
        if self._recorded:
            for piece in parted(self._recorded, request.piece_tokens):
                yield piece
            return
        size = None if self._task.on_text is None else 1
        own = replace(request, piece_tokens=size, whole_text=True)
        async with aclosing(self._engine.write(own)) as pieces:
            async for piece in pieces:
                self._recorded.append(piece)
                yield piece


def parted(pieces: Sequence[Piece], size: int | None) -> Iterator[Piece]:
    """The same in pieces of at most `size` tokens: a text is then judged as it grows."""
    for piece in pieces:
        ids = piece.token_ids
        starts = range(0, len(ids) or 1, size or len(ids) or 1)
        for start in starts:
            part = ids[start : start + starts.step]
            yield Piece(part, piece.finish_reason if start == starts[-1] else None)

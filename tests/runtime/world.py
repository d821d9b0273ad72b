"""An engine that writes sentences of 8 words; the first word says whether a sentence is bad."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import count
from typing import Any

from tests.fakes import FakeScorer
from tests.scripted_engine import ScriptedEngine
from tide.core.results import FinishReason
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Piece, Request

PROMPT = "once upon a time"
WORDS = 8
# Whether sentence i is bad. Arguments: i, whether rows before it were moved or its first word is
# banned, and the words before it, including the 4 of the prompt; None for a row that was moved.
Bad = Callable[[int, bool, list[str | None]], bool]


class Storyteller(ScriptedEngine):
    """Writes `sentences` sentences and stops. After moved rows, first words end with `m`; of a
    banned first word, a further `m` makes another word.

    under_way: number of requests that it is writing.
    """

    def __init__(self, bad: Bad, sentences: int = 6, **options: Any) -> None:
        super().__init__(lambda x, seed: "", **options)
        self._bad, self._sentences, self.under_way = bad, sentences, 0

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        if self.on_write is not None and (waits := self.on_write(request)) is not None:
            await waits
        self.requests.append(request)
        ids, reason = self._story(request)
        size = request.piece_tokens or max(1, len(ids))
        self.under_way += 1
        try:
            for start in range(0, max(1, len(ids)), size):
                await self._pause(request, start)
                part = tuple(ids[start : start + size])
                yield Piece(part, reason if start + size >= len(ids) else None)
        finally:
            self.under_way -= 1

    async def _pause(self, request: Request, written: int) -> None:
        """Called before each piece of a text. written: words of the text so far."""

    def _story(self, request: Request) -> tuple[list[int], FinishReason]:
        prompt, sampling = request.prompt, request.sampling
        if isinstance(prompt, Sequence):
            words: list[str | None] = [list(self._words)[i].strip() for i in prompt]
        else:
            every = [(self._row(i), word.strip()) for word, i in self._words.items()]
            known = {row.numpy().tobytes(): word for row, word in every}
            words = [known.get(row.numpy().tobytes()) for row in prompt]
        moved, answer = None in words, words[len(PROMPT.split()) :]
        ids: list[int] = []
        while len(ids) < sampling.max_new_tokens:
            sentence, position = divmod(len(answer), WORDS)
            if sentence == self._sentences:
                return ids, "stop"
            word = f"w{position}" if position < WORDS - 1 else "end."
            if position == 0:
                word = self._first_word(request, sentence, moved, [*words[:4], *answer])
            answer.append(word)
            ids.append(self._id(f" {word}"))
        return ids, "length"

    def _first_word(
        self, request: Request, sentence: int, moved: bool, words: list[str | None]
    ) -> str:
        bans = {*request.banned_token_ids, *request.banned_first_ids}
        for marks in count(int(moved)):
            kind = "Bad" if self._bad(sentence, marks > 0, words) else "Good"
            word = f"{kind}{sentence}{'m' * marks}"
            if self._id(f" {word}") not in bans:
                break
        return word


class Reader(FakeScorer):
    """Scores `bad` texts 0.9, others 0.1."""

    def __init__(
        self, bad: Callable[[str], bool] = lambda text: "Bad" in text, **members: Any
    ) -> None:
        super().__init__(lambda text: 0.9 if bad(text) else 0.1, name="reader", **members)


SETTINGS: dict[str, Any] = {
    "strategy": "backtrack:pace=sentence,lag=0,least=0",
    "toxicity_threshold": 0.5,
    "num_samples": 2,
    "max_iterations": 3,
    "max_new_tokens": 100,
    "temperature": 0.0,
}


def story(bad: Bad, scorer: Any = None, *, max_batch: int = 16, **changes: Any) -> Detoxifier:
    engine = Storyteller(bad, max_batch=max_batch)
    return Detoxifier(engine, scorer=scorer or Reader(), **{**SETTINGS, **changes})


def sentence(first: str) -> str:
    return f" {first} w1 w2 w3 w4 w5 w6 end."


def text(*firsts: str) -> str:
    return "".join(map(sentence, firsts))


ALL_GOOD = text(*(f"Good{number}" for number in range(6)))
REPAIRED = text("Good0", "Good1", "Good2m", "Good3", "Good4", "Good5")


def never(number: int, moved: bool, words: list[str | None]) -> bool:
    return False


def third(number: int, moved: bool, words: list[str | None]) -> bool:
    """The third sentence is bad, until it is repaired."""
    return number == 2 and not moved


def third_always(number: int, moved: bool, words: list[str | None]) -> bool:
    return number == 2


def second(number: int, moved: bool, words: list[str | None]) -> bool:
    """The second sentence is bad, and the fifth unless the second was repaired."""
    return (number == 4 and "Good1m" not in words) or (number == 1 and not moved)

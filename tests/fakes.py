"""A scorer and engines that a test describes in a line."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tests.scripted_engine import ScriptedEngine
from tide.engines.base import Piece, Request
from tide.scorers.base import TextScore

WORDS = ("the", "weather", "was", "fine", "and", "then", "we", "went", "home", "again", "early")


class FakeScorer:
    """Scores each text, or exchange, by a function, which may raise.

    members: optional members of a scorer, such as `pace="word"`. calls: the texts of each call.
    """

    def __init__(
        self,
        score: Callable[[Any], float] = lambda text: 0.0,
        *,
        name: str = "fake",
        threshold: float = 0.5,
        **members: Any,
    ) -> None:
        self.name, self.threshold = name, threshold
        self.closed = False
        self.calls: list[list[Any]] = []
        self._score = score
        vars(self).update(members)

    @property
    def texts(self) -> list[Any]:
        """All that it was sent, in order."""
        return [text for call in self.calls for text in call]

    def score(self, texts: Sequence[Any]) -> NDArray[np.float64]:
        self.calls.append(list(texts))
        return np.array([self._score(text) for text in texts], dtype=np.float64)

    def close(self) -> None:
        self.closed = True


def hundredths(text: str) -> float:
    """A score: the length of the text in hundredths."""
    return len(text) / 100


def attribute(scores: Sequence[TextScore], name: str) -> list[float]:
    """An attribute of each text, NaN where it is unknown."""
    return [score.attributes.get(name, math.nan) for score in scores]


class RudeScorer(FakeScorer):
    """1.0 for a text with the rude word; called at each word."""

    def __init__(self, word: str = "idiot") -> None:
        super().__init__(lambda text: float(word in text.casefold()), name="rude", pace="word")


class FailingScorer(FakeScorer):
    """Raises `error` while it is not None."""

    def __init__(self, error: Exception | None = None, **members: Any) -> None:
        super().__init__(**members)
        self.error = error

    def score(self, texts: Sequence[Any]) -> NDArray[np.float64]:
        if self.error is not None:
            raise self.error
        return super().score(texts)


class HeldScorer(FakeScorer):
    """Waits for `go` at the texts that it holds, and then raises `error` if it has one."""

    def __init__(
        self,
        error: Exception | None = None,
        *,
        holds: Callable[[Any], bool] = lambda text: text != "quick",
        score: Callable[[Any], float] = lambda text: 0.0,
        **members: Any,
    ) -> None:
        super().__init__(self._held, **members)
        self.entered, self.go = threading.Event(), threading.Event()
        self._error, self._holds, self._score_of = error, holds, score

    def _held(self, text: Any) -> float:
        if self._holds(text):
            self.entered.set()
            assert self.go.wait(120)
            if self._error is not None:
                raise self._error
        return self._score_of(text)


class FakeEngine(ScriptedEngine):
    """Completes prompts with these texts in turn; then it repeats the last one."""

    def __init__(self, *texts: str, **options: Any) -> None:
        self.left = list(texts)
        super().__init__(lambda x, seed: self._next(), **options)

    def _next(self) -> str:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


class Babbler(ScriptedEngine):
    """Writes 10 to 40 words, a random share of them rude; word by word if requested."""

    def __init__(self, share: float = 0.02, rude: Sequence[str] = ("idiot",)) -> None:
        def respond(x: Tensor, seed: int) -> str:
            dice = random.Random(seed)
            words = dice.choices(WORDS, k=dice.randint(10, 40))
            return "".join(f" {dice.choice(rude) if dice.random() < share else w}" for w in words)

        super().__init__(respond, context_length=None, max_batch=64)

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        most, size = request.sampling.max_new_tokens, request.piece_tokens or 1000
        async for whole in super()._write(request):
            ids = whole.token_ids[:most]
            for start in range(0, len(ids) or 1, size):
                ended = whole.finish_reason if start + size >= len(ids) else None
                yield Piece(ids[start : start + size], ended)

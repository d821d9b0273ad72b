from __future__ import annotations

import asyncio

import pytest

from tide.runtime.blame import blamed


@pytest.mark.parametrize("number", range(9))
def test_it_is_the_first_word_with_which_the_level_is_reached(number: int) -> None:
    """The level itself is reached, as a text that scores the threshold is not accepted."""
    words = [f" w{i}" for i in range(9)]
    asked: list[str] = []

    async def score(text: str) -> float:
        asked.append(text)
        return 0.5 if words[number] in text else 0.4

    assert asyncio.run(blamed(words, score, 0.5)) == number
    assert len(asked) <= 4

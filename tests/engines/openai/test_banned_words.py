"""Tokens that are banned for a word, in a vocabulary that spells some words letter by letter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tide.engines.base import MOST_SPELLINGS
from tide.engines.openai.words import TokenSource

SPELLED = [space + word for word in ("fine", "Fine", "FINE") for space in ("", " ", "\n\n", "  ")]
VOCABULARY = ["\n", *SPELLED, *" aAdD", " a", " A", " \u05e9", *"\u05e9\u05dc\u4eba", " \u4eba"]


async def tokenize(text: str) -> list[int]:
    ids = []
    while text:
        token = max((token for token in VOCABULARY if text.startswith(token)), key=len)
        ids.append(VOCABULARY.index(token))
        text = text[len(token) :]
    return ids


async def detokenize(ids: Sequence[int]) -> str:
    return "".join(VOCABULARY[token] for token in ids)


@pytest.mark.parametrize(
    ("word", "banned"),
    [
        (" ad", {" a", "a", "A", " A"}),
        (" \u4eba\u4eba", {" \u4eba", "\u4eba"}),
        (" \u05e9\u05dc", set()),  # its tokens are single letters: it is redrawn instead
        ("\u05dc", set()),
    ],
)
def test_what_is_banned_for_a_word(word: str, banned: set[str]) -> None:
    held = TokenSource("here", tokenize, detokenize)
    assert {VOCABULARY[token] for token in asyncio.run(held.ids([word]))} == banned


def test_few_spellings_are_banned_at_once() -> None:
    held = TokenSource("here", tokenize, detokenize)
    ids = asyncio.run(held.ids(["  fine"]))
    assert 6 <= len(ids) <= MOST_SPELLINGS
    assert VOCABULARY[ids[0]] == "  fine"

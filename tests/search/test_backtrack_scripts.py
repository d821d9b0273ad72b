"""Backtracking in twelve scripts: no character is cut, and few tokens are banned."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import regex

from tests.byte_engine import SENTENCES, ByteEngine
from tide.core.results import Result
from tide.core.text import HALF
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import MOST_SPELLINGS

SETTINGS: dict[str, Any] = {"strategy": "backtrack:then=none", "max_new_tokens": 24}


class Blaming:
    """Scores 0.9 for texts with a word, or a character, of the seventh that `seed` picks."""

    def __init__(self, seed: int, unit: str) -> None:
        self._seed, self._unit = seed, regex.compile(unit)

    def __call__(self, texts: list[str]) -> list[float]:
        return [0.9 if any(map(self._is_bad, self._unit.findall(text))) else 0.05 for text in texts]

    def _is_bad(self, unit: str) -> bool:
        return HALF not in unit and zlib.crc32(unit.encode(), self._seed) % 7 == 0


def characters(text: str) -> list[str]:
    return regex.findall(r"\X", text)


def is_cut(before: str, whole: str) -> bool:
    """Whether `before` ends inside a character of `whole`."""
    found = characters(before)
    return characters(whole)[: len(found)] != found


def check(engine: ByteEngine, prompt: str, result: Result) -> None:
    """No half character, kept texts end with a character, and few tokens are banned at once."""
    (ids,) = engine.tokenize([prompt])
    texts = [one.text for one in result.trace]
    for text in texts:
        assert HALF not in text.rstrip(HALF)
    first, *repairs = engine.requests
    before = first.never
    for request in repairs:
        kept = engine.bytes_of(list(request.prompt)[len(ids) :]).decode()  # type: ignore[arg-type]
        assert any(text.startswith(kept) and not is_cut(kept, text) for text in texts)
        assert len(set(request.never) - set(before)) <= MOST_SPELLINGS
        assert len(request.never_first) <= len(repairs)
        before = request.never
    assert len(repairs) == len(texts) - 1


@pytest.mark.parametrize("script", SENTENCES)
def test_repairs_cut_no_character(script: str) -> None:
    engine, moved = ByteEngine(), 0
    for seed in range(17):
        prompt = SENTENCES[script][: 4 + seed]
        scorer = Blaming(seed, r"\S+" if seed % 3 == 0 else r"\X")
        engine.requests.clear()
        result = Detoxifier(engine, scorer=scorer, **SETTINGS)(prompt, seed=seed)
        check(engine, prompt, result)
        moved += len(result.trace) > 1
    assert moved > 5

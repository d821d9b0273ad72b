"""Backtracking in twelve scripts: no character is cut, and few tokens are banned."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest
import regex

from tests.byte_engine import SENTENCES, ByteEngine
from tests.fakes import FakeScorer
from tide.core.results import Result
from tide.core.settings import derive_seed
from tide.core.text import HALF
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import MOST_SPELLINGS, Request

SETTINGS: dict[str, Any] = {"strategy": "backtrack", "max_new_tokens": 24}


def blaming(seed: int, unit: str, **members: str) -> FakeScorer:
    """Scores texts 0.9 if they hold a bad unit (word or character); `seed` picks one in seven."""

    def is_bad(found: str) -> bool:
        return HALF not in found and zlib.crc32(found.encode(), seed) % 7 == 0

    def score(text: str) -> float:
        return 0.9 if any(map(is_bad, regex.findall(unit, text))) else 0.05

    return FakeScorer(score, **members)


def characters(text: str) -> list[str]:
    return regex.findall(r"\X", text)


def is_cut(before: str, whole: str) -> bool:
    """Whether `before` ends inside a character of `whole`."""
    begun = characters(before)
    return characters(whole)[: len(begun)] != begun


def checked(engine: ByteEngine, prompt: str, seed: int, unit: str) -> tuple[Result, int]:
    """Repairs hold no half character, kept texts end with a character, and bans are small.

    Returns the result, and how often a repair was redrawn without an entry in the trace.
    """
    engine.requests.clear()
    result = Detoxifier(engine, scorer=blaming(seed, unit), **SETTINGS)(prompt, seed=seed)
    (ids,) = engine.tokenize([prompt])
    texts = [evaluation.text for evaluation in result.trace]
    for text in texts[1:]:
        assert HALF not in text
    first, *repairs = engine.requests
    before = first.banned_token_ids
    again = len(repairs) - len(texts) + 1
    for request in repairs:
        kept = engine.bytes_of(list(request.prompt)[len(ids) :]).decode()  # type: ignore[arg-type]
        known = any(text.startswith(kept) and not is_cut(kept, text) for text in texts)
        assert known or again
        assert len(set(request.banned_token_ids) - set(before)) <= MOST_SPELLINGS
        assert len(request.banned_first_ids) <= len(repairs)
        before = request.banned_token_ids
    return result, again


@pytest.mark.parametrize("script", SENTENCES)
def test_repairs_cut_no_character(script: str) -> None:
    engine, moved = ByteEngine(), 0
    for seed in range(6):
        unit = r"\S+" if seed % 3 == 0 else r"\X"
        result, again = checked(engine, SENTENCES[script][: 4 + seed], seed, unit)
        assert HALF not in result.trace[0].text.rstrip(HALF)
        assert again == 0
        moved += len(result.trace) > 1
    assert moved > 1


class Careless(ByteEngine):
    """Writes a space inside about every third character."""

    def _draw(self, ids: list[int], request: Request, step: int) -> int:
        is_half = self._texts([ids[-4:]])[0].endswith(HALF)
        breaks = random.Random(derive_seed(request.seed, "breaks", step)).random() < 0.3
        return self._ids[b" "] if is_half and breaks else super()._draw(ids, request, step)


def test_a_repair_holds_no_half_character_of_the_model_s_own() -> None:
    engine = Careless()
    again = broken = 0
    for seed in range(12):
        prompt = list(SENTENCES.values())[seed][: 4 + seed]
        result, redrawn = checked(engine, prompt, seed, r"\X")
        again += redrawn
        broken += HALF in result.trace[0].text.rstrip(HALF)
    assert again > 2
    assert broken > 2


def test_a_stream_keeps_what_it_gave_out_of_a_broken_text() -> None:
    """The model's half characters remain in text that was given out before a repair."""
    repaired = 0
    for seed in range(8):
        prompt = list(SENTENCES.values())[seed][: 4 + seed]
        scorer = blaming(seed, r"\X", pace="word")
        shown = ""
        detox = Detoxifier(Careless(), scorer=scorer, **SETTINGS)
        with detox.stream(prompt, seed=seed) as stream:
            for text in stream:
                shown += text
                assert shown in scorer.texts
        assert shown == stream.result.text
        repaired += len(stream.result.trace) > 1 and HALF in shown
    assert repaired > 0

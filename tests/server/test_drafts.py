"""A monitored text is the model's own; its forecast matches the effect of enforcing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.byte_engine import ByteEngine
from tests.chats import CHATML, save_chat_model
from tests.fakes import Babbler, FakeEngine, FakeScorer, RudeScorer
from tests.runtime.world import PROMPT, SETTINGS, Reader, Storyteller, never, third
from tide.core.chat import Parts
from tide.engines.base import Piece, Request
from tide.engines.local.engine import TransformersEngine
from tide.server.monitor import Draft, Forecast
from tide.server.policies import ServedDetoxifier

BACKTRACK = {"preset": "backtrack", "max_new_tokens": 400}


async def monitored(
    detox: ServedDetoxifier, prompt: str, in_pieces: bool = False, **settings: Any
) -> tuple[Draft, list[str], Forecast]:
    pieces: list[str] = []
    on_text = pieces.append if in_pieces else None
    settings["on_unresolved"] = "refuse"
    draft = await detox.draft(prompt, on_text, **settings)
    return draft, pieces, await detox.forecast(prompt, draft, **settings)


@pytest.mark.parametrize("pace", ["word", "sentence", "whole", "8"])
def test_the_forecast_is_what_enforcing_does(pace: str) -> None:
    """For each request, and for the share of changed texts to within one point."""
    settings: dict[str, Any] = {**BACKTRACK, "strategy": f"backtrack:pace={pace}"}
    prompts = [f"prompt number {number % 7}" for number in range(60)]
    with ServedDetoxifier(Babbler(), scorer=RudeScorer(), **settings) as detox:

        async def both(seed: int, prompt: str) -> tuple[bool, bool]:
            draft, _, forecast = await monitored(detox, prompt, seed=seed)
            enforced = await detox(prompt, seed=seed, on_unresolved="refuse")
            changed = enforced.text != draft.text
            if forecast.character is not None:
                at = draft.text[forecast.character :]
                assert at.startswith("idiot"), at
                assert draft.text.split()[forecast.word or 0] == "idiot"
                assert enforced.text.startswith(draft.text[: forecast.character])
            return changed, forecast.would_change

        async def check() -> list[tuple[bool, bool]]:
            return await asyncio.gather(*(both(i, one) for i, one in enumerate(prompts)))

        found = asyncio.run(check())
    really, forecast = (sum(one) / len(found) for one in zip(*found, strict=True))
    assert 0.2 < really < 0.8
    assert abs(really - forecast) <= 0.01
    assert all(one == other for one, other in found)


def test_the_forecast_says_where_a_text_would_be_rewound() -> None:
    for bad, place in ((never, None), (third, 2)):
        with ServedDetoxifier(Storyteller(bad), scorer=Reader(), **SETTINGS) as detox:
            draft, pieces, forecast = asyncio.run(monitored(detox, PROMPT, True))
            assert "".join(pieces) == draft.text
            assert len(pieces) == 48
            assert forecast.would_change is (place is not None)
            assert forecast.score == (0.1 if place is None else 0.9)
            if place is not None:
                assert draft.text[forecast.character :].startswith(f"Bad{place}")
                assert forecast.word == 8 * place
    whole = {**SETTINGS, "strategy": "random-walk"}  # the text fails as a whole
    with ServedDetoxifier(Storyteller(third), scorer=Reader(), **whole) as detox:
        draft, _, forecast = asyncio.run(monitored(detox, PROMPT))
        assert "Bad2" in draft.text
        assert (forecast.character, forecast.word, forecast.score) == (1, 0, 0.9)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_text_without_visible_characters_would_be_withheld(in_pieces: bool) -> None:
    for text, would_change in ((" \n", True), (" 4", False)):
        engine = FakeEngine(text, context_length=None)
        with ServedDetoxifier(engine, scorer=RudeScorer(), **BACKTRACK) as detox:
            draft, _, forecast = asyncio.run(monitored(detox, "x", in_pieces))
            assert draft.text == text
            assert forecast.would_change is would_change
    engine = FakeEngine("", context_length=None)
    with ServedDetoxifier(engine, scorer=RudeScorer(), **BACKTRACK) as detox:
        draft, pieces, forecast = asyncio.run(monitored(detox, "x", in_pieces))
        assert (draft.text, pieces, forecast.would_change) == ("", [], False)


def test_characters_and_stop_strings_are_not_cut() -> None:
    text = "caf\u00e9 \U0001f600 na\u00efve END of it"

    class Bytes(ByteEngine):
        async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
            ids = [self._ids[bytes([one])] for one in text.encode()]
            for number, one in enumerate(ids):
                yield Piece((one,), "stop" if number == len(ids) - 1 else None)

    for stop, said in (((), text), (("END",), text.partition("END")[0])):
        with ServedDetoxifier(Bytes(), scorer=RudeScorer(), **BACKTRACK) as detox:
            draft, pieces, forecast = asyncio.run(monitored(detox, "x", True, stop=stop))
        assert "".join(pieces) == draft.text == said
        assert "\ufffd" not in "".join(pieces)
        assert not any("E" in one for one in pieces) or not stop
        assert not forecast.would_change


def test_forecast_of_a_text_reads_no_special_tokens(tmp_path: Path) -> None:
    """A shadow tokenizes the text that another policy sent, and its model begins texts by BOS."""
    scorer = FakeScorer()
    folder = save_chat_model(tmp_path, CHATML, bos=True)
    with (
        TransformersEngine(folder) as engine,
        ServedDetoxifier(engine, scorer=scorer, **BACKTRACK) as detox,
    ):
        draft = Draft("The weather is fine.", Parts(), "stop", True)
        forecast = asyncio.run(detox.forecast("Hello", draft, max_new_tokens=20))
    assert not forecast.would_change
    assert scorer.texts
    assert not any("<" in text for text in scorer.texts)

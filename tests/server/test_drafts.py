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
from tests.runtime.world import PROMPT, SETTINGS, Reader, Storyteller, third
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
    settings: dict[str, Any] = {**BACKTRACK, "strategy": f"backtrack:pace={pace}"}
    with ServedDetoxifier(Babbler(), scorer=RudeScorer(), **settings) as detox:

        async def is_changed(seed: int) -> bool:
            """Forecast an answer, and enforce it."""
            prompt = f"prompt number {seed % 7}"
            draft, _, forecast = await monitored(detox, prompt, seed=seed)
            enforced = await detox(prompt, seed=seed, on_unresolved="refuse")
            assert forecast.would_change is (enforced.text != draft.text)
            assert forecast.score == float(forecast.would_change)
            if forecast.character is not None:
                assert draft.text[forecast.character :].startswith("idiot")
                assert draft.text.split()[forecast.word or 0] == "idiot"
                assert enforced.text.startswith(draft.text[: forecast.character])
            return forecast.would_change

        async def check() -> list[bool]:
            return await asyncio.gather(*map(is_changed, range(60)))

        changed = asyncio.run(check())
    assert 12 < sum(changed) < 48


def test_a_text_that_fails_as_a_whole_would_be_rewound_to_its_beginning() -> None:
    settings: dict[str, Any] = {**SETTINGS, "strategy": "random-walk"}
    with ServedDetoxifier(Storyteller(third), scorer=Reader(), **settings) as detox:
        _, _, forecast = asyncio.run(monitored(detox, PROMPT))
    assert (forecast.character, forecast.word, forecast.score) == (1, 0, 0.9)


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(("text", "would_change"), [(" \n", True), (" 4", False), ("", False)])
def test_a_text_without_visible_characters_would_be_withheld(
    text: str, would_change: bool, in_pieces: bool
) -> None:
    engine = FakeEngine(text, context_length=None)
    with ServedDetoxifier(engine, scorer=RudeScorer(), **BACKTRACK) as detox:
        draft, pieces, forecast = asyncio.run(monitored(detox, "x", in_pieces))
    assert draft.text == text
    assert pieces == ([text] if text and in_pieces else [])
    assert forecast.would_change is would_change


@pytest.mark.parametrize("stop", [(), ("END",)])
def test_characters_and_stop_strings_are_not_cut(stop: tuple[str, ...]) -> None:
    text = "caf\u00e9 \U0001f600 na\u00efve END of it"

    class Bytes(ByteEngine):
        async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
            ids = [self._ids[bytes([byte])] for byte in text.encode()]
            for number, token in enumerate(ids):
                yield Piece((token,), "stop" if number == len(ids) - 1 else None)

    with ServedDetoxifier(Bytes(), scorer=RudeScorer(), **BACKTRACK) as detox:
        draft, pieces, forecast = asyncio.run(monitored(detox, "x", True, stop=stop))
    assert "".join(pieces) == draft.text == (text.partition("END")[0] if stop else text)
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

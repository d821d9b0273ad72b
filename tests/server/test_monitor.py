"""Monitored answers are the model's own, and the effect of enforcing is recorded.

A shadow policy records the same beside an enforced policy.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.byte_engine import ByteEngine
from tests.chats import CHATML, save_chat_model
from tests.fakes import Babbler, FakeEngine, FakeScorer, HeldScorer, RudeScorer
from tests.runtime.world import PROMPT, SETTINGS, Reader, Storyteller, third
from tests.server.running import (
    BACKTRACK,
    PATIENCE,
    Running,
    counted,
    plain,
    running,
    streamed,
    wait_for_forecasts,
    wait_until,
    written,
)
from tide.core.chat import Parts
from tide.core.errors import ScorerUnavailableError
from tide.engines.base import Piece, Request
from tide.engines.local.engine import TransformersEngine
from tide.server.limits import Limits
from tide.server.monitor import Draft, Forecast
from tide.server.policies import ServedDetoxifier


def monitoring(engine: Any = None, scorer: Any = None, **options: Any) -> Any:
    engine, scorer = engine or Babbler(), scorer or RudeScorer()
    return running(engine, scorer, mode="monitor", **{**BACKTRACK, **options})


AFTER_SECOND = FakeScorer(
    lambda exchange: 0.9 * (exchange.context == "a second one"), reads="exchange"
)


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_monitor_log_on_a_full_disk_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR, "tide.server"),
        monitoring(monitor_log=Path("/dev/full")) as server,
    ):
        assert server.ask("x y").status_code == 200
        wait_until(lambda: "No space left" in caplog.text)
    assert "Traceback" not in caplog.text


def test_answers_are_the_models_own_and_each_has_a_forecast(tmp_path: Path) -> None:
    log = tmp_path / "monitor.jsonl"
    with monitoring(monitor_log=log) as server:
        for seed in range(20):
            stop = ("fine",) if seed % 3 == 0 else ()
            given = {"seed": seed, "stop": list(stop)}
            own = plain(seed, "x y", stop)
            if seed % 2:
                pieces, reason, tide = streamed(server, "x y", **given)
                assert ("".join(pieces), reason) == own
                # As the words are written; those that are written together come together.
                assert stop or 0 < len(pieces) <= len(own[0].split())
            else:
                answer = server.ask("x y", **given)
                choice = answer.json()["choices"][0]
                assert (choice["text"], choice["finish_reason"]) == own
                tide = choice["tide"]
                assert answer.headers["x-tide-mode"] == "monitor"
            assert (tide["mode"], tide["policy"], tide["seed"]) == ("monitor", "default", seed)
            assert "toxicity" not in tide
        wait_for_forecasts(server, 20)
        changed = counted(server, "changed")
        assert 0 < changed < 20
        assert server.metric('tide_completions_total{outcome="monitored"}') == 20
        assert server.metric('tide_monitor_score_count{beside="",policy="default"}') == 20
    assert [line["outcome"] for line in lines_of(log)].count("changed") == changed
    assert len(lines_of(log)) == 20


@pytest.mark.parametrize("texts", [False, True])
def test_lines_of_the_log(texts: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "monitor.jsonl"
    with (
        caplog.at_level(logging.INFO),
        monitoring(Babbler(1.0), monitor_log=log, monitor_texts=texts) as server,
    ):
        answer = server.ask("our wombat", n=2, seed=1)
    for number, line in enumerate(sorted(lines_of(log), key=lambda line: line["choice"])):
        text = answer.json()["choices"][number]["text"]
        said = {"prompt": "our wombat", "text": text} if texts else {}
        request = answer.headers["x-request-id"]
        assert line == {
            **{"time": line["time"], "request": request, "choice": number, "policy": "default"},
            **{"beside": "", "outcome": "changed", "score": 1.0},
            **{"character": 1, "accepted_above": 1.0, **said},
        }
    logged = [message for message in caplog.messages if "monitored" in message]
    assert len(logged) == len(lines_of(log)) == 2
    assert not any("wombat" in line or "idiot" in line for line in logged)


def test_scorer_that_hangs_and_fails_changes_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    scorer = HeldScorer(ScorerUnavailableError("down: it quotes a wombat"))
    with (
        caplog.at_level(logging.INFO),
        monitoring(scorer=scorer, limits=Limits(max_under_way=8)) as server,
    ):
        for seed in range(12):  # each is answered, though no score comes
            assert server.ask("x", seed=seed).json()["choices"][0]["text"] == plain(seed, "x")[0]
        wait_until(lambda: counted(server, "skipped") == 4)
        scorer.go.set()
        wait_until(lambda: counted(server, "failed") == 8)
        assert server.http.get("/ready").status_code == 200
        pieces, reason, _ = streamed(server, "x", seed=3)
        assert ("".join(pieces), reason) == plain(3, "x")
    logged = [message for message in caplog.messages if '"failed"' in message]
    assert len(logged) == 9
    assert all("ScorerUnavailableError" in line and "wombat" not in line for line in logged)


@pytest.mark.parametrize(
    ("options", "changed", "unchanged"),
    [
        pytest.param({"refuse_prompt_above": 0.5}, "you idiot", "you", id="refused prompt"),
        pytest.param({"scorer": AFTER_SECOND}, "a second one", "a third one", id="exchange"),
    ],
)
def test_answer_is_scored_with_its_prompt(options: Any, changed: str, unchanged: str) -> None:
    with monitoring(Babbler(0.0), **options) as server:
        assert server.ask(changed, seed=1).status_code == 200
        wait_until(lambda: counted(server, "changed") == 1)
        assert server.ask(unchanged, seed=1).status_code == 200
        wait_until(lambda: counted(server, "unchanged") == 1)


def test_a_stream_that_its_client_leaves_is_counted() -> None:
    class Slow(Babbler):
        async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
            async for piece in super()._write(request):
                yield piece
                await asyncio.sleep(0.05)

    with monitoring(Slow()) as server:
        body = {"prompt": "x", "stream": True, "max_tokens": 400}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            next(line for line in answer.iter_lines() if line)
        wait_until(lambda: counted(server, "failed") == 1)
        assert counted(server, "changed") + counted(server, "unchanged") == 0


def test_forecasts_end_with_the_drain_and_are_recorded(tmp_path: Path) -> None:
    log = tmp_path / "monitor.jsonl"
    scorer = HeldScorer()
    with (
        ThreadPoolExecutor() as clients,
        monitoring(scorer=scorer, monitor_log=log, drain=1.0) as server,
    ):
        assert server.ask("x", seed=1).status_code == 200
        # A request that is still open then. The forecast does not get as long again after it.
        url = f"{server.url}/v1/moderations"
        clients.submit(httpx.post, url, json={"input": "x"}, timeout=PATIENCE)
        wait_until(lambda: server.metric("tide_requests_in_flight") == 2)
        threading.Timer(1.8, scorer.go.set).start()
    (line,) = lines_of(log)
    assert line["outcome"] == "skipped"


# Shadow policies


def text_of(server: Running, seed: int) -> str:
    if seed % 2:
        return "".join(streamed(server, "x y", seed=seed)[0])
    return str(server.ask("x y", seed=seed).json()["choices"][0]["text"])


def test_answers_are_those_without_a_shadow_and_each_has_a_forecast(tmp_path: Path) -> None:
    log = tmp_path / "monitor.jsonl"
    policies = {"main": {"shadow": "strict"}, "strict": {"never": ["weather"]}}
    file = written(tmp_path / "tide.yaml", policies=policies)
    with running(Babbler(), RudeScorer(), **BACKTRACK) as server:
        alone = [text_of(server, seed) for seed in range(12)]
    with running(Babbler(), RudeScorer(), policies=file, monitor_log=log, **BACKTRACK) as server:
        assert [text_of(server, seed) for seed in range(12)] == alone
        wait_for_forecasts(server, 12, "strict", "main")
        changed = counted(server, "changed", "strict", "main")
        assert changed == sum("weather" in text for text in alone)
        assert 0 < changed < 12
        assert server.metric('tide_monitor_score_count{beside="main",policy="strict"}') == 12
        assert counted(server, "changed", "strict") == 0
        altered = 'tide_policy_answers_total{outcome="%s",policy="main"}'
        assert server.metric(altered % "altered") + server.metric(altered % "unaltered") == 12
    assert {(line["policy"], line["beside"]) for line in lines_of(log)} == {("strict", "main")}
    assert [line["outcome"] for line in lines_of(log)].count("changed") == changed


# Drafts and their forecasts, without a server


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
    assert (forecast.character, forecast.score) == (1, 0.9)


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(("text", "would_change"), [(" \n", True), (" 4", False), ("", False)])
def test_forecast_of_invisible_text(text: str, would_change: bool, in_pieces: bool) -> None:
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

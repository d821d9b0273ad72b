"""Monitored answers are the model's own, and the effect of enforcing is recorded."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.fakes import Babbler, RudeScorer
from tests.server.running import (
    BACKTRACK,
    PATIENCE,
    counted,
    plain,
    running,
    streamed,
    wait_until,
)
from tide.core.errors import ScorerUnavailableError
from tide.engines.base import Piece, Request
from tide.scorers import Exchange, load_scorer
from tide.server.limits import Limits


def test_a_monitor_log_on_a_full_disk_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    full = Path("/dev/full")
    with (
        caplog.at_level(logging.ERROR, "tide.server"),
        running(Babbler(), RudeScorer(), mode="monitor", monitor_log=full, **BACKTRACK) as server,
    ):
        assert server.ask("x y").status_code == 200
        wait_until(lambda: "No space left" in caplog.text)
    # The line is still in the buffer of the file when the server closes it.
    assert caplog.text.count("No space left") == 2
    assert "Traceback" not in caplog.text


def test_answers_are_the_models_own_and_each_has_a_forecast(tmp_path: Path) -> None:
    log = tmp_path / "monitor.jsonl"
    with running(Babbler(), RudeScorer(), mode="monitor", monitor_log=log, **BACKTRACK) as server:
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
        wait_until(lambda: counted(server, "changed") + counted(server, "unchanged") == 20)
        changed = counted(server, "changed")
        assert 0 < changed < 20
        assert server.metric('tide_completions_total{outcome="monitored"}') == 20
        assert server.metric('tide_monitor_score_count{policy="default"}') == 20
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 20
    assert sum(line["would_change"] for line in lines) == changed
    assert "idiot" not in log.read_text()


def test_a_line_of_the_log_says_where_and_has_texts_only_if_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for texts in (False, True):
        log = tmp_path / f"{texts}.jsonl"
        options = {"mode": "monitor", "monitor_log": log, "monitor_texts": texts, **BACKTRACK}
        with (
            caplog.at_level(logging.INFO),
            running(Babbler(1.0), RudeScorer(), **options) as server,
        ):
            answer = server.ask("our wombat", n=2, seed=1)
        lines = sorted(map(json.loads, log.read_text().splitlines()), key=lambda x: x["choice"])
        number = answer.headers["x-request-id"]
        own = [choice["text"] for choice in answer.json()["choices"]]
        for place, line in enumerate(lines):
            said = {"prompt": "our wombat", "text": own[place]} if texts else {}
            assert line == {
                **{"time": line["time"], "request": number, "choice": place, "policy": "default"},
                **{"outcome": "changed", "score": 1.0, "would_change": True},
                **{"character": 1, "word": 0, "accepted_above": 1.0, **said},
            }
        assert len(lines) == 2
    logged = [one.getMessage() for one in caplog.records if "monitored" in one.getMessage()]
    assert len(logged) == 4
    assert not any("wombat" in line or "idiot" in line for line in logged)


def test_a_scorer_that_fails_or_hangs_changes_no_answer_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on = threading.Event()

    def scorer(texts: Sequence[str]) -> np.ndarray:
        go_on.wait(PATIENCE)
        raise ScorerUnavailableError("down: it quotes a wombat")

    options: dict[str, Any] = {"mode": "monitor", "limits": Limits(max_under_way=8), **BACKTRACK}
    with caplog.at_level(logging.INFO), running(Babbler(), scorer, **options) as server:
        for seed in range(12):  # each is answered, though no score comes
            assert server.ask("x", seed=seed).json()["choices"][0]["text"] == plain(seed, "x")[0]
        wait_until(lambda: counted(server, "skipped") == 4)
        go_on.set()
        wait_until(lambda: counted(server, "failed") == 8)
        pieces, reason, _ = streamed(server, "x", seed=3)
        assert ("".join(pieces), reason) == plain(3, "x")
    logged = [one.getMessage() for one in caplog.records if '"failed"' in one.getMessage()]
    assert len(logged) == 9
    assert all("ScorerUnavailableError" in line and "wombat" not in line for line in logged)


def test_a_prompt_that_would_be_refused_is_answered_and_counted() -> None:
    options: dict[str, Any] = {"mode": "monitor", "refuse_prompt_above": 0.5, **BACKTRACK}
    with running(Babbler(0.0), RudeScorer(), **options) as server:
        assert server.ask("you idiot", seed=1).status_code == 200
        assert server.ask("you", seed=1).status_code == 200
        wait_until(lambda: counted(server, "changed") == counted(server, "unchanged") == 1)


def test_forecast_scores_an_answer_with_its_prompt() -> None:
    asked: list[Exchange] = []

    def reader(exchanges: list[Exchange]) -> list[float]:
        asked.extend(exchanges)
        return [0.9 * (exchange.context == "a second one") for exchange in exchanges]

    reader.reads = "exchange"  # type: ignore[attr-defined]
    with running(mode="monitor", scorer=load_scorer(reader)) as server:
        for prompt, outcome in (("a second one", "changed"), ("a third one", "unchanged")):
            server.ask(prompt)
            wait_until(lambda outcome=outcome: counted(server, outcome) == 1)
    assert {exchange.context for exchange in asked} == {"a second one", "a third one"}


def test_a_stream_that_its_client_leaves_is_counted() -> None:
    class Slow(Babbler):
        async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
            async for piece in super()._write(request):
                yield piece
                await asyncio.sleep(0.05)

    with running(Slow(), RudeScorer(), mode="monitor", **BACKTRACK) as server:
        body = {"prompt": "x", "stream": True, "max_tokens": 400}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            next(line for line in answer.iter_lines() if line)
        wait_until(lambda: counted(server, "failed") == 1)
        assert counted(server, "changed") + counted(server, "unchanged") == 0


def test_forecasts_that_a_stop_interrupts_are_recorded(tmp_path: Path) -> None:
    go_on = threading.Event()
    log = tmp_path / "monitor.jsonl"

    def scorer(texts: Sequence[str]) -> np.ndarray:
        go_on.wait(PATIENCE)
        return np.zeros(len(texts))

    limits = Limits(drain=0.2)
    with running(
        Babbler(), scorer, mode="monitor", monitor_log=log, limits=limits, **BACKTRACK
    ) as server:
        assert server.ask("x", seed=1).status_code == 200
        threading.Timer(0.5, go_on.set).start()  # the scorer's thread ends then
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["outcome"], line["would_change"]) == ("skipped", None)

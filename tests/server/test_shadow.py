"""A shadow policy scores the answers of another policy, and changes none of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import Babbler, RudeScorer
from tests.server.running import BACKTRACK, PATIENCE, Running, running, wait_until, written
from tide.scorers import REGISTRY
from tide.server.limits import Limits
from tide.server.policies import CommandLine, Policies, PolicyError

POLICIES = {"main": {"shadow": "strict"}, "strict": {"never": ["weather"]}}


def counted(server: Running, outcome: str) -> float:
    labels = f'outcome="{outcome}",policy="main",shadow="strict"'
    return server.metric(f"tide_shadow_answers_total{{{labels}}}")


def test_answers_are_those_without_a_shadow_and_each_has_a_forecast(tmp_path: Path) -> None:
    log = tmp_path / "monitor.jsonl"
    file = written(tmp_path / "tide.yaml", policies=POLICIES)
    asked = [{"prompt": "x y", "seed": seed, "stream": seed % 2 > 0} for seed in range(12)]
    with running(Babbler(), RudeScorer(), **BACKTRACK) as server:
        plain = [texts(server, body) for body in asked]
    with running(Babbler(), RudeScorer(), policies=file, monitor_log=log, **BACKTRACK) as server:
        assert [texts(server, body) for body in asked] == plain
        wait_until(lambda: counted(server, "changed") + counted(server, "unchanged") == 12)
        changed = counted(server, "changed")
        assert changed == sum("weather" in text for text in plain)
        assert 0 < changed < 12
        assert server.metric('tide_shadow_score_count{policy="main",shadow="strict"}') == 12
        assert server.metric('tide_monitor_answers_total{outcome="changed",policy="strict"}') == 0
        altered = 'tide_policy_answers_total{outcome="%s",policy="main"}'
        assert server.metric(altered % "altered") + server.metric(altered % "unaltered") == 12
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(line["policy"], line["beside"]) for line in lines} == {("strict", "main")}
    assert sum(line["would_change"] for line in lines) == changed


def texts(server: Running, body: dict[str, Any]) -> str:
    if body["stream"]:
        events = server.events(**body)
        return "".join(event["choices"][0]["text"] for event in events)
    return str(server.ask(**body).json()["choices"][0]["text"])


def test_slow_shadow_delays_no_answer_and_drops_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    class Slow(RudeScorer):
        def score(self, texts: Sequence[str]) -> np.ndarray:
            go_on.wait(PATIENCE)
            return super().score(texts)

    monkeypatch.setitem(REGISTRY._targets, "slow", Slow)
    file = written(
        tmp_path / "tide.yaml",
        policies={
            "main": {"shadow": "strict"},
            "strict": {"scorer": "slow"},
            "other": {"mode": "monitor"},
        },
    )
    limits = Limits(max_under_way=4)
    with running(Babbler(), RudeScorer(), policies=file, limits=limits, **BACKTRACK) as server:
        began = time.monotonic()
        for seed in range(10):
            assert server.ask("x", seed=seed).status_code == 200
        assert time.monotonic() - began < PATIENCE / 2
        wait_until(lambda: counted(server, "skipped") == 6)
        go_on.set()
        wait_until(lambda: counted(server, "changed") + counted(server, "unchanged") == 4)


def test_failing_shadow_is_counted_and_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Down(RudeScorer):
        def score(self, texts: Sequence[str]) -> np.ndarray:
            raise ValueError("down: it quotes a wombat")

    monkeypatch.setitem(REGISTRY._targets, "down", Down)
    file = written(
        tmp_path / "tide.yaml",
        policies={"main": {"shadow": "strict"}, "strict": {"scorer": "down"}},
    )
    with running(Babbler(), RudeScorer(), policies=file, **BACKTRACK) as server:
        assert server.ask("x", seed=1).status_code == 200
        wait_until(lambda: counted(server, "failed") == 1)


@pytest.mark.parametrize(
    ("policies", "problem"),
    [
        ({"main": {"shadow": "none"}}, "policies.main.shadow: unknown policy 'none'"),
        ({"main": {"shadow": "main"}}, "policies.main.shadow: is this policy itself"),
        (
            {"main": {"shadow": "b", "mode": "monitor"}, "b": {}},
            "policies.main.shadow: needs mode enforce",
        ),
    ],
)
def test_shadow_that_cannot_be_is_refused(
    policies: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError, match=problem):
        Policies(
            CommandLine(scorer=RudeScorer()), written(tmp_path / "tide.yaml", policies=policies)
        )

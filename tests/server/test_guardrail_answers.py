"""Litellm's guardrail answers NONE or BLOCKED by the policy of the key."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import RudeScorer
from tests.server.running import Running, digest_of, running, written
from tide.core.errors import ScorerUnavailableError
from tide.server.limits import Limits

PATH = "/beta/litellm_basic_guardrail_api"
CLEAN, FAILING = "The weather is fine.", "You are an idiot. Bring 2 coats."


def action(server: Running, *texts: str, **more: Any) -> str:
    body = {"input_type": "response", "texts": texts, "request_data": {}, **more}
    answer = server.http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["action"])


def counted(server: Running, outcome: str, policy: str = "default") -> float:
    labels = f'outcome="{outcome}",policy="{policy}"'
    return server.metric(f"tide_guardrail_answers_total{{{labels}}}")


def test_guardrail_blocks_and_logs_without_text(caplog: pytest.LogCaptureFixture) -> None:
    with running(scorer=RudeScorer()) as server, caplog.at_level(logging.INFO, "tide.server"):
        assert action(server, CLEAN) == "NONE"
        assert action(server, CLEAN, FAILING) == "BLOCKED"
        assert (counted(server, "passed"), counted(server, "blocked")) == (1, 1)
    (line,) = (json.loads(one.message) for one in caplog.records if 'guardrail"' in one.message)
    assert line["guardrail"]["outcome"] == "blocked"
    assert line["guardrail"]["score"] == 1.0
    assert "idiot" not in caplog.text


def test_guardrail_judges_more_texts_than_one_scoring_request_may_have() -> None:
    arguments = {f"argument {n}": {"type": f"kind {n}"} for n in range(300)}
    for last, expected in (("fine", "NONE"), ("idiot", "BLOCKED")):
        function = {"name": "ask", "parameters": {"properties": arguments, "last": last}}
        with running(scorer=RudeScorer(), limits=Limits(max_texts=50)) as server:
            assert action(server, CLEAN, tools=[{"function": function}]) == expected
            assert len(server.scorer.calls) > 10


def test_guardrail_and_moderation_judge_by_the_threshold_of_the_policy() -> None:
    def scorer(texts: list[str]) -> list[float]:
        return [0.3] * len(texts)

    for threshold, flagged in ((0.2, True), (0.4, False)):
        with running(scorer=scorer, toxicity_threshold=threshold) as server:
            assert action(server, CLEAN) == ("BLOCKED" if flagged else "NONE")
            answer = server.http.post("/v1/moderations", json={"input": CLEAN}).json()
            assert answer["results"][0]["flagged"] is flagged


def test_guardrail_of_a_monitored_policy_answers_none() -> None:
    def scorer(texts: list[str]) -> list[float]:
        if any("broken" in text for text in texts):
            raise ScorerUnavailableError("down")
        return [float("idiot" in text) for text in texts]

    with running(scorer=scorer, mode="monitor") as server:
        for text in (CLEAN, FAILING, "broken"):
            assert action(server, text) == "NONE"
        assert action(server, CLEAN, images=["x"]) == "NONE"
        assert [counted(server, one) for one in ("passed", "blocked", "failed")] == [1, 2, 1]
        assert not server.engine.requests


def test_guardrail_applies_the_policy_of_the_key(tmp_path: Path) -> None:
    policies: dict[str, Any] = {"new": {"never": ["fine"]}, "old": {}}
    keys = {name: {"sha256": digest_of(f"sk-{name}"), "policies": [name]} for name in policies}
    path = written(tmp_path / "tide.yaml", policies=policies, keys=keys)
    with running(scorer=RudeScorer(), policies=path) as server:
        actions = {}
        for name in keys:
            server.http.headers["authorization"] = f"Bearer sk-{name}"
            actions[name] = action(server, CLEAN)
        assert actions == {"new": "BLOCKED", "old": "NONE"}

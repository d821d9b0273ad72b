"""The share of a policy's altered answers is compared with its budget."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import Babbler, FakeScorer, RudeScorer
from tests.server.running import BACKTRACK, counted, running, wait_until
from tide.scorers.wrappers import ConfirmScorer
from tide.server.telemetry import Budget, Metrics


@pytest.mark.parametrize("mode", ["enforce", "monitor"])
def test_a_policy_over_its_budget_warns_once(
    mode: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tide.json"
    path.write_text(json.dumps({"policies": {"only": {"alter_at_most": 0.02, "mode": mode}}}))
    babbler = Babbler(0.2)
    with (
        caplog.at_level(logging.WARNING, "tide.server"),
        running(babbler, RudeScorer(), policies=path, **BACKTRACK) as server,
    ):
        for seed in range(4):
            assert server.ask("x y", n=5, seed=seed).status_code == 200
        share = 'tide_policy_altered_share{policy="only"}'
        wait_until(lambda: server.metric('tide_policy_altered_evidence{policy="only"}') > 1000)
        assert server.metric(share) > 0.5
        assert server.metric('tide_policy_alter_at_most{policy="only"}') == 0.02
    (warning,) = (json.loads(r.getMessage()) for r in caplog.records if "over_bud" in r.message)
    assert warning["over_budget"]["policy"] == "only"
    assert warning["over_budget"]["alter_at_most"] == 0.02


def test_a_policy_within_its_budget_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    kept, without = Budget("kept", 0.1, metrics), Budget("without", None, metrics)
    for number in range(1000):
        kept.count(altered=number % 10 == 0)
        without.count(altered=True)
    assert not caplog.records
    text = metrics.text().decode()
    assert 'tide_policy_altered_share{policy="kept"} 0.1' in text
    assert 'policy="without"' not in text


# A hundredth for each word; and the same with a screen that doubts every text.
LENGTH = FakeScorer(lambda text: min(1.0, len(text.split()) / 100), pace="word")
SCREENED = ConfirmScorer([FakeScorer(lambda text: 0.95, pace="word"), LENGTH])


@pytest.mark.parametrize("scorer", [LENGTH, SCREENED], ids=["one", "screened"])
def test_the_monitor_log_has_the_score_that_a_threshold_must_exceed(
    scorer: Any, tmp_path: Path
) -> None:
    found = []
    for threshold in (0.15, 0.6):
        log = tmp_path / f"{threshold}.jsonl"
        options = {"monitor_log": log, "toxicity_threshold": threshold, **BACKTRACK}
        with running(Babbler(0.0), scorer, mode="monitor", **options) as server:
            texts = [choice["text"] for choice in server.ask("x y", n=8, seed=1).json()["choices"]]
            wait_until(lambda: counted(server, "changed") + counted(server, "unchanged") == 8)
        lines = sorted(map(json.loads, log.read_text().splitlines()), key=lambda x: x["choice"])
        found.append([line["accepted_above"] for line in lines])
        for line, text in zip(lines, texts, strict=True):
            assert line["accepted_above"] == pytest.approx(len(text.split()) / 100)
            assert line["would_change"] is (line["accepted_above"] >= threshold)
        assert not math.isclose(min(found[-1]), max(found[-1]))
    assert found[0] == found[1]

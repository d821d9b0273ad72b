"""Answers of policies that repair, block or flag what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import Babbler, RudeScorer
from tests.server.running import BACKTRACK, running, written
from tide.core.errors import InputError
from tide.scorers import REGISTRY
from tide.server.policies import CommandLine, Policy

POLICIES = {
    "marks": {"repaired_mark": "[edited]"},
    "blocks": {"on_fail": "block"},
    "flags": {"on_fail": {"default": "flag"}},
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY._targets, "rude", RudeScorer)


def test_policies_say_what_is_done_with_text_that_fails(tmp_path: Path) -> None:
    path = written(tmp_path / "tide.yaml", policies=POLICIES, default=list(POLICIES))

    def choices(policy: str) -> list[Any]:
        body = {"seed": 3, "n": 8, "tide": {"policy": policy}}
        answer = server.ask(**body)
        whole = answer.json()["tide"]
        assert answer.headers["x-tide-repaired"] == str(whole["repaired"]).lower()
        assert answer.headers["x-tide-repairs"] == str(whole["repairs"])
        found: list[Any] = answer.json()["choices"]
        texts = [""] * len(found)
        for event in server.events(prompt="a second one", **body):
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == [choice["text"] for choice in found]
        return found

    with running(Babbler(0.05), "rude", policies=path, **BACKTRACK) as server:
        for choice in choices("marks"):
            tide = choice["tide"]
            assert choice["text"].endswith(" [edited]") is tide["repaired"]
            assert tide["repaired"] is (tide["repairs"] > 0) is ("base" not in tide)
            assert "idiot" not in choice["text"]
        blocked = [choice for choice in choices("blocks") if choice["tide"]["failed"]]
        flagged = [choice for choice in choices("flags") if choice["tide"]["failed"]]
    assert len(blocked) == len(flagged) > 1
    for before, whole in zip(blocked, flagged, strict=True):
        assert before["finish_reason"] == "content_filter"
        assert whole["tide"]["flagged"] == ["toxicity"]
        assert {before["tide"]["repaired"], whole["tide"]["repaired"]} == {False}
        beginning, rude, _ = whole["text"].partition(" idiot")
        assert (before["text"], rude) == (beginning, " idiot")


def test_words_of_never_are_not_flagged() -> None:
    with pytest.raises(InputError, match="never: text with these words cannot be flagged"):
        CommandLine().settings(Policy(never=["acme"], on_fail="flag"))

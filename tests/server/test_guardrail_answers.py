"""Litellm's guardrail rewrites failing sentences of a response, and sends nothing unscored."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.running import Running, running
from tests.server.test_drafts import WORDS, Rude
from tests.server.test_policies import digest_of, written
from tests.server.test_rewrite import Script
from tide.core.errors import InputError, ScorerUnavailableError
from tide.engines.none import NoEngine
from tide.scorers.words import ParticularsScorer

CLEAN, FAILING = "The weather is fine.", "You are an idiot. Bring 2 coats."
NEW = "You are an kind one. Bring 2 coats."
ASKED = {"additional_provider_specific_params": {"tide_rewrite": True}}
FUNCTION = {"name": "ask", "arguments": json.dumps({"what": "an idiot"})}


def asked(server: Running, *texts: str, **more: Any) -> dict[str, Any]:
    body = {"input_type": "response", "texts": texts, "request_data": {}, **ASKED, **more}
    answer = server.http.post("/beta/litellm_basic_guardrail_api", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def counted(server: Running, outcome: str, policy: str = "default") -> float:
    labels = f'outcome="{outcome}",policy="{policy}"'
    return server.metric(f"tide_guardrail_answers_total{{{labels}}}")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(Script({}), Rude(), guardrail_rewrite=True) as found:
        yield found


def test_only_failing_texts_are_rewritten_each_in_its_place(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    before = counted(server, "rewritten")
    with caplog.at_level(logging.INFO, "tide.server"):
        answer = asked(server, CLEAN, FAILING, "", FAILING, "idiot")
    assert answer == {
        "action": "GUARDRAIL_INTERVENED", "texts": [CLEAN, NEW, "", NEW, " kind one."],
    }  # fmt: skip
    assert counted(server, "rewritten") == before + 1
    (line,) = (json.loads(one.message) for one in caplog.records if 'guardrail"' in one.message)
    assert line["guardrail"]["outcome"] == "rewritten"
    assert line["guardrail"]["score"] == 1.0
    assert "idiot" not in caplog.text
    before = counted(server, "passed")
    assert asked(server, CLEAN) == {"action": "NONE"}
    assert counted(server, "passed") == before + 1


@pytest.mark.parametrize(
    "more",
    [
        {"input_type": "request"},
        {"additional_provider_specific_params": None},
        {"additional_provider_specific_params": {"tide_rewrite": "true"}},
        {"tool_calls": [{"type": "function", "id": "1", "function": FUNCTION}]},
        {"structured_messages": [{"role": "user", "content": "an idiot"}]},
        {"structured_messages": [{"role": "user", "content": FAILING}]},
        {"images": ["data:image/png;base64,AAAA"]},
        {"model": "m", "a_field_of_the_future": {"idiot": 1}},
        {"a_field_of_the_future": FAILING},
    ],
)
def test_what_cannot_be_matched_back_is_blocked(server: Running, more: dict[str, Any]) -> None:
    assert asked(server, CLEAN, FAILING, **more)["action"] == "BLOCKED"


@pytest.mark.parametrize("text", ["an \\u0069diot", json.dumps("\u0442 idiot"), "idiot\\u0021"])
def test_what_fails_as_it_is_read_is_blocked_or_gone(server: Running, text: str) -> None:
    answer = asked(server, text)
    assert answer["action"] == "BLOCKED" or "idiot" not in answer["texts"][0]


def test_names_of_the_messages_may_be_written() -> None:
    with running(Script({}, " friend of Maria."), Rude(), guardrail_rewrite=True) as server:
        assert asked(server, "You idiot")["action"] == "BLOCKED"
        messages = [{"role": "user", "content": "Who is Maria?"}]
        answer = asked(server, "You idiot", structured_messages=messages)
        assert answer["texts"] == ["You friend of Maria."]


def test_the_whole_text_must_pass_as_it_is_sent() -> None:
    class Both(Rude):
        """Also 1.0 for a text with both words, which are too far apart for the watch."""

        def score(self, texts: Sequence[str]) -> np.ndarray:
            both = [float("dear" in text and "coats" in text) for text in texts]
            return np.maximum(super().score(texts), both)

    with running(Script({}), Both(), guardrail_rewrite=True) as server:
        far = f"{CLEAN} " * 60
        assert asked(server, f"My friend. {far}{FAILING}")["action"] == "GUARDRAIL_INTERVENED"
        assert asked(server, f"My dear. {far}{FAILING}")["action"] == "BLOCKED"


def test_a_scorer_that_fails() -> None:
    """Its error is a 503 while the text is judged; during the rewrite the text is blocked."""

    class Dying(Rude):
        left = 0

        def score(self, texts: Sequence[str]) -> np.ndarray:
            self.left -= 1
            if self.left < 0:
                raise ScorerUnavailableError("down")
            return super().score(texts)

    scorer = Dying()
    with running(Script({}), scorer, guardrail_rewrite=True) as server:
        body = {"input_type": "response", "texts": [FAILING], **ASKED}
        answer = server.http.post("/beta/litellm_basic_guardrail_api", json=body)
        assert answer.status_code == 503
        assert counted(server, "failed") == 1
        actions = []
        for calls in range(1, 40):
            scorer.left = calls
            actions.append(asked(server, FAILING)["action"])
        assert {*actions} == {"BLOCKED", "GUARDRAIL_INTERVENED"}
        assert (actions[0], actions[-1]) == ("BLOCKED", "GUARDRAIL_INTERVENED")


def test_a_monitored_policy_says_none_and_records() -> None:
    def scorer(texts: list[str]) -> list[float]:
        if any("broken" in text for text in texts):
            raise ScorerUnavailableError("down")
        return [float("idiot" in text) for text in texts]

    engine = Script({})
    with running(engine, scorer, mode="monitor", guardrail_rewrite=True) as server:
        for text in (CLEAN, FAILING, "broken"):
            assert asked(server, text) == {"action": "NONE"}
        assert asked(server, CLEAN, images=["x"]) == {"action": "NONE"}
        found = [counted(server, one) for one in ("passed", "blocked", "failed", "rewritten")]
        assert found == [1, 2, 1, 0]
        assert not engine.requests


def test_a_key_s_policy_decides(tmp_path: Path) -> None:
    keys = {
        name: {"sha256": digest_of(f"sk-{name}"), "policies": [name]} for name in ("new", "old")
    }
    policies: dict[str, Any] = {"new": {"guardrail_rewrite": True, "never": ["fine"]}, "old": {}}
    path = written(tmp_path / "tide.yaml", policies=policies, keys=keys)
    with running(
        Script({}, " fine man. And"), "tests.server.test_drafts:Rude", policies=path
    ) as server:
        found = {}
        for name in keys:
            server.http.headers["authorization"] = f"Bearer sk-{name}"
            found[name] = asked(server, FAILING)["action"]
            assert counted(server, "blocked", name) == 1
        assert found == {"new": "BLOCKED", "old": "BLOCKED"}  # `fine` is a `never` word


@pytest.mark.parametrize(
    ("engine", "problem"),
    [(NoEngine, "needs a model in this process"), (lambda: "pocket", "pocket is a toy")],
)
def test_a_model_that_must_not_rewrite(engine: Callable[[], Any], problem: str) -> None:
    with (
        pytest.raises(InputError, match=f"^guardrail_rewrite: {problem}"),
        running(engine(), Rude(), guardrail_rewrite=True),
    ):
        pass


@pytest.mark.attack
def test_whatever_is_sent_back_passes() -> None:
    dice = random.Random(0)
    names = ("Anna", "Oslo", "7", "three")

    class Chatty(Script):
        """Writes words of all kinds, with names, numbers and insults among them."""

        def _ids(self, text: str) -> list[int]:
            return super()._ids(sentences() if text == self._then else text)

    def sentences() -> str:
        words = (*WORDS, *WORDS, *names, "idiot", "Maria", "9", "two")
        some = [dice.choice(words) + dice.choice(("", "", "", ".", "!\n", ",")) for _ in range(30)]
        return "".join(f" {word}" for word in some)

    actions = []
    with running(Chatty({}), Rude(), guardrail_rewrite=True) as server:
        for _ in range(60):
            texts = [sentences() for _ in range(dice.randint(1, 3))]
            answer = asked(server, *texts)
            actions.append(answer["action"])
            if answer["action"] != "GUARDRAIL_INTERVENED":
                continue
            assert len(answer["texts"]) == len(texts)
            known = ParticularsScorer(texts)
            for old, new in zip(texts, answer["texts"], strict=True):
                assert "idiot" not in new
                assert known.score([new]).tolist() == [0.0]
                if "idiot" in old:
                    assert new.startswith(old[: old.index("idiot")].rstrip())
                else:
                    assert new == old
    assert len(actions) == 60
    assert actions.count("GUARDRAIL_INTERVENED") > 20

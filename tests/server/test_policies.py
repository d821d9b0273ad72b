"""Policies: named sets of scorer, threshold, strategy, mode and words, for keys and requests."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.fakes import Babbler, FailingScorer, FakeScorer, RudeScorer
from tests.server.running import (
    BACKTRACK,
    PATIENCE,
    Held,
    Running,
    counted,
    digest_of,
    plain,
    running,
    wait_until,
    written,
)
from tide.core.errors import InputError, ScorerUnavailableError
from tide.scorers import REGISTRY
from tide.scorers.base import Attributed, AttributedScorer
from tide.server.policies import CommandLine, Policies, Policy, PolicyFile

KEYS = {name: f"sk-key-of-{name}" for name in ("red", "blue", "green", "grey", "all")}
FIVE = {
    "red": {"never": ["Weather"]},
    "blue": {"never": ["home"], "strategy": "backtrack:lag=0,pace=4"},
    "green": {"never": ["early", "again"], "toxicity_threshold": 0.3},
    "black": {"strategy": "backtrack:pace=whole", "mode": "enforce"},
    "grey": {"mode": "monitor", "never": ["weather"]},
}


class Profane(AttributedScorer):
    """Of its two attributes, the higher is the score; "home" is profane, "early" a threat."""

    name, pace = "profane", "word"
    attributes = highest_of = ("profanity", "threat")

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        profanity = np.array([0.8 * ("home" in text) for text in texts])
        threat = np.array([0.3 * ("early" in text) for text in texts])
        columns = {"profanity": profanity, "threat": threat}
        return Attributed(np.maximum(profanity, threat), columns)


SCORERS: dict[str, Callable[[], Any]] = {
    "rude": RudeScorer,
    "profane": Profane,
    "mild": lambda: FakeScorer(lambda text: 0.4, pace="word"),
}
RUDE = "rude"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, scorer in SCORERS.items():
        monkeypatch.setitem(REGISTRY._targets, name, scorer)


# Keys and requests


@pytest.fixture
def five(tmp_path: Path) -> Path:
    allowed = {name: [name] for name in ("red", "blue", "green", "grey")}
    allowed["all"] = ["black", *FIVE]
    keys = {
        name: {"sha256": digest_of(KEYS[name]), "policies": policies}
        for name, policies in allowed.items()
    }
    return written(tmp_path / "tide.yaml", policies=FIVE, keys=keys)


def asked(server: Running, key: str, policy: Any = None, **more: Any) -> httpx.Response:
    tide = {} if policy is None else {"tide": {"policy": policy}}
    headers = {"authorization": f"Bearer {KEYS[key]}"}
    body = {"prompt": "x y", **tide, **more}
    return server.http.post("/v1/completions", json=body, headers=headers)


def test_a_key_has_its_policies_and_no_other(five: Path) -> None:
    with running(Babbler(), RUDE, policies=five, **BACKTRACK) as server:
        for key, policy in (("red", None), ("red", "red"), ("all", None), ("all", "grey")):
            answer = asked(server, key, policy, seed=1)
            usual = "black" if key == "all" else key
            assert answer.json()["tide"]["policy"] == (policy or usual)
            assert answer.headers["x-tide-policy"] == (policy or usual)
        for key, policy in (("red", "grey"), ("grey", "red"), ("red", "violet"), ("red", "")):
            for stream in (False, True):
                refused = asked(server, key, policy, stream=stream)
                error = refused.json()["error"]
                assert refused.status_code == 403
                assert (error["param"], error["code"]) == ("tide.policy", "policy_not_allowed")
                assert f"this key may use {key}" in error["message"]
        assert asked(server, "red", 5).status_code == 400
        looser = asked(server, "green", tide={"toxicity_threshold": 0.4})
        assert looser.json()["error"]["param"] == "tide.toxicity_threshold"
        for headers in ({}, {"authorization": f"Bearer {digest_of(KEYS['red'])}"}):
            assert server.ask_with(headers).status_code == 401
        for key, flagged in (("red", True), ("blue", False)):  # scores follow the policy, too
            server.http.headers["x-api-key"] = KEYS[key]
            scored = server.post("/v1/moderations", {"input": "fine WEATHER"})
            assert scored.json()["results"][0]["flagged"] is flagged
            content = {"input_type": "response", "texts": ["fine WEATHER"]}
            guarded = server.post("/beta/litellm_basic_guardrail_api", content).json()
            assert guarded["action"] == ("BLOCKED" if flagged else "NONE")
        server.http.headers["x-api-key"] = KEYS["grey"]
        version = server.http.get("/version").json()
        assert (version["policy"], version["mode"]) == ("grey", "monitor")
        labels = 'key="all",policy="black",status="200"'
        wait_until(lambda: server.metric(f"tide_answers_total{{{labels}}}") == 1)
        assert server.metric('tide_first_text_seconds_count{policy="black"}') == 1


def test_without_keys_local_clients_have_the_default(tmp_path: Path) -> None:
    path = written(tmp_path / "a", policies=FIVE, default=["blue", "grey"])
    with running(Babbler(), RUDE, policies=path, **BACKTRACK) as server:
        assert server.ask("x").json()["tide"]["policy"] == "blue"
        assert server.ask("x", tide={"policy": "grey"}).json()["tide"]["policy"] == "grey"
        assert server.ask("x", tide={"policy": "red"}).status_code == 403
    first = written(tmp_path / "b", policies=FIVE)
    with running(Babbler(), RUDE, policies=first, keys=("sk-plain",), **BACKTRACK) as server:
        answer = server.ask_with({"authorization": "Bearer sk-plain"})
        assert answer.json()["tide"]["policy"] == "red"
        assert server.ask("x").status_code == 401


def test_mixed_requests_at_once_are_each_answered_by_their_own_policy(five: Path) -> None:
    """Each answer is the same as alone; words banned by a policy occur under the others."""
    jobs = [(policy, seed) for seed in range(5) for policy in FIVE]
    with running(Babbler(), RUDE, policies=five, **BACKTRACK) as server:

        def choice_of(job: tuple[str, int]) -> Any:
            policy, seed = job
            return asked(server, "all", policy, seed=seed).json()["choices"][0]

        with ThreadPoolExecutor(len(jobs)) as clients:
            mixed = list(clients.map(choice_of, jobs))
        alone = [choice_of(job)["text"] for job in jobs]
    texts: dict[str, str] = dict.fromkeys(FIVE, "")
    for (policy, seed), choice, text in zip(jobs, mixed, alone, strict=True):
        assert choice["text"] == text
        assert choice["tide"]["policy"] == policy
        assert choice["tide"]["mode"] == ("monitor" if policy == "grey" else "enforce")
        texts[policy] += choice["text"]
        if policy == "grey":
            assert (choice["text"], choice["finish_reason"]) == plain(seed, "x y")
    for policy, text in texts.items():
        words = set(text.split())
        never = {word.lower() for word in FIVE[policy].get("never", ())}
        assert words >= {"weather", "home", "early", "again"} - never
        assert policy == "grey" or not words & (never | {"idiot"})


def test_policies_say_what_is_done_with_text_that_fails(tmp_path: Path) -> None:
    policies = {
        "marks": {"repaired_mark": "[edited]"},
        "blocks": {"on_fail": "block"},
        "flags": {"on_fail": {"default": "flag"}},
    }
    path = written(tmp_path / "tide.yaml", policies=policies, default=list(policies))

    def choices(policy: str) -> list[Any]:
        body = {"seed": 3, "n": 8, "tide": {"policy": policy}}
        answer = server.ask(**body)
        whole = answer.json()["tide"]
        assert answer.headers["x-tide-repaired"] == str(whole["repaired"]).lower()
        assert answer.headers["x-tide-repairs"] == str(whole["repairs"])
        choices: list[Any] = answer.json()["choices"]
        texts = [""] * len(choices)
        for event in server.events(prompt="a second one", **body):
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == [choice["text"] for choice in choices]
        return choices

    with running(Babbler(0.05), RUDE, policies=path, **BACKTRACK) as server:
        repaired = 0
        for choice in choices("marks"):
            tide = choice["tide"]
            repaired += tide["repaired"]
            assert choice["text"].endswith(" [edited]") is tide["repaired"]
            assert tide["repaired"] is (tide["repairs"] > 0) is tide["base_partial"]
            assert tide["repaired"] is ("base" not in tide)
            assert "idiot" not in choice["text"]
        altered = 'tide_policy_answers_total{outcome="altered",policy="marks"}'
        assert server.metric(altered) == 2 * repaired > 0  # whole and in streams
        blocked = [choice for choice in choices("blocks") if choice["tide"]["failed"]]
        flagged = [choice for choice in choices("flags") if choice["tide"]["failed"]]
    assert len(blocked) == len(flagged) > 1
    for before, whole in zip(blocked, flagged, strict=True):
        assert before["finish_reason"] == "content_filter"
        assert whole["tide"]["flagged"] == ["toxicity"]
        assert {before["tide"]["repaired"], whole["tide"]["repaired"]} == {False}
        beginning, rude, _ = whole["text"].partition(" idiot")
        assert (before["text"], rude) == (beginning, " idiot")


def test_a_policy_limits_attributes_and_a_request_can_only_lower_them(tmp_path: Path) -> None:
    loose = {"thresholds": {"profanity": 0.9}, "never": ["weather"], "toxicity_threshold": 0.5}
    path = written(tmp_path / "tide.yaml", policies={"loose": {"scorer": "profane", **loose}})

    def answer(**thresholds: float) -> Any:
        return server.ask("x y", seed=3, n=8, tide={"thresholds": thresholds})

    def words(answer: Any) -> set[str]:
        texts = " ".join(choice["text"] for choice in answer.json()["choices"])
        return set(texts.split())

    with running(Babbler(0.0), policies=path, **BACKTRACK) as server:
        lenient, strict = answer(), answer(threat=0.1)
        assert words(lenient) >= {"home", "early"}
        assert lenient.json()["tide"]["failed"] == ["toxicity"]
        assert "home" in words(strict)
        assert not words(strict) & {"weather", "early"}
        assert set(strict.json()["tide"]["failed"]) == {"threat", "toxicity"}
        for name, limit in (("profanity", 0.95), ("threat", 0.6)):
            refused = answer(**{name: limit})
            assert refused.status_code == 400
            assert f"{name} must be at most" in refused.text
        assert "no attribute 'rude'" in answer(rude=0.1).text
        guarded = {"input_type": "response", "texts": ["at home", "too early"]}
        guardrail = server.post("/beta/litellm_basic_guardrail_api", guarded)
        assert guardrail.json() == {"action": "NONE"}
        rows = server.post("/v1/moderations", {"input": ["at home", "weather"]}).json()
        assert [row["flagged"] for row in rows["results"]] == [False, True]


def test_shadow_keeps_its_limits_where_a_request_lowers_them(tmp_path: Path) -> None:
    policies = {"main": {"scorer": "profane", "shadow": "mild"}, "mild": {"scorer": "mild"}}
    path = written(tmp_path / "tide.yaml", policies=policies)
    settings = {**BACKTRACK, "toxicity_threshold": 0.5}
    with running(Babbler(0.0), policies=path, **settings) as server:
        lower = {"toxicity_threshold": 0.3, "thresholds": {"threat": 0.2}}
        assert server.ask("x y", seed=3, tide=lower).status_code == 200
        wait_until(lambda: counted(server, "unchanged", "mild", "main") == 1)


def test_second_scorer_while_the_first_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FailingScorer(score=lambda text: float("idiot" in text), name="rude", pace="word")
    monkeypatch.setitem(REGISTRY._targets, "dying", lambda: first)
    bare = {"scorer": "dying"}
    policies = {"backed": {**bare, "on_scorer_failure": RUDE}, "bare": bare}
    path = written(tmp_path / "tide.yaml", policies=policies, default=[*policies])

    def texts() -> tuple[list[str], set[str]]:
        choices = server.ask("x y", seed=3, n=8).json()["choices"]
        return [choice["text"] for choice in choices], {c["tide"]["scorer"] for c in choices}

    with running(Babbler(0.1), policies=path, **BACKTRACK) as server:
        before, by = texts()
        assert by == {"fallback:rude,rude"}
        first.error = ScorerUnavailableError("down")
        assert texts() == (before, {"rude"})
        assert server.ask(tide={"policy": "bare"}).status_code == 503
        ready = server.http.get("/ready")  # for the other policy
        assert (ready.status_code, ready.json()["down"]) == (200, ["scorer rude"])
        assert server.metric("tide_scorer_fallback_texts_total") > 8
        assert not any("idiot" in text for text in before)


# Files that change


def test_a_file_is_read_anew_without_a_dropped_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[FakeScorer] = []

    def load() -> FakeScorer:
        made.append(FakeScorer(pace="word"))
        return made[-1]

    monkeypatch.setitem(REGISTRY._targets, "counted", load)
    counting = {"scorer": "counted"}
    policies = {"a": counting, "b": counting, "c": {"scorer": RUDE}}
    path = written(tmp_path / "tide.yaml", policies=policies)
    held = Held(Babbler(0.0))
    options = {"policies": path, **BACKTRACK}
    with running(held.engine, **options) as server, ThreadPoolExecutor() as clients:
        kept = server.policies.table.policies["c"]
        assert not made[0].closed
        asked = clients.submit(server.ask, "x", seed=2)
        assert held.writing.wait(PATIENCE)
        written(path, policies={"b": {"never": ["weather"]}, "c": {"scorer": RUDE}})
        server.policies.reload()
        assert server.policies.table.policies["c"] is kept  # unchanged, so not made again
        held.go.set()
        assert asked.result(PATIENCE).json()["tide"]["policy"] == "a"
        later = server.ask("x", seed=2).json()
        assert later["tide"]["policy"] == "b"
        assert "weather" not in later["choices"][0]["text"]
        wait_until(lambda: gc.collect() >= 0 and made[0].closed)  # unused, so closed
        for wrong in ("policies: [", "policies: {}", "policies: {b: {mode: loose}}"):
            path.write_text(wrong)
            with pytest.raises(InputError):
                server.policies.reload()
            assert server.ask("x").json()["tide"]["policy"] == "b"
    assert len(made) == 1


def test_a_list_that_has_changed_is_read_anew(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("weather\n")
    scorer = f"max:lexicon:{words},{RUDE}"
    policies = Policies(
        CommandLine(), written(tmp_path / "tide.yaml", policies={"a": {"scorer": scorer}})
    )
    assert policies.table.policies["a"].measured.score(["weather", "home"]).tolist() == [1.0, 0.0]
    policies.start(Babbler())
    time.sleep(0.02)
    words.write_text("home\n")
    policies.reload()
    scorer_now = policies.table.policies["a"].detox.scorer
    assert scorer_now.score(["weather", "home"]).tolist() == [0.0, 1.0]
    policies.close()


def test_keys_are_not_lost_by_a_reload(tmp_path: Path) -> None:
    def content(**keys: Any) -> Path:
        return written(tmp_path / "tide.yaml", policies={"a": {"scorer": RUDE}}, keys=keys)

    path = content(x={"sha256": digest_of("sk-x"), "policies": ["a"]})
    policies = Policies(CommandLine(), path)
    policies.start(Babbler())
    content()
    with pytest.raises(InputError, match="a reload cannot remove all keys"):
        policies.reload()
    assert len(policies.table.keys) == 1
    policies.close()


# Files that are refused

KEY_OF_NO_POLICY = {"sha256": "a" * 64, "policies": ["b"]}
EMPTY_KEY = {"sha256": digest_of(""), "policies": ["a"]}
SAME_KEYS = dict.fromkeys("jk", KEY_OF_NO_POLICY)
WRONG = {
    "policies: {a: {}, b: {toxicity_threshold: 2}}": "policies.b.toxicity_threshold: ",
    "policies: {a: {scorer: no-such}}": "policies.a: unknown scorer 'no-such'",
    "policies: {a: {never: [' ']}}": "policies.a: never: ' ' has too few visible characters",
    "policies: {a: {never: [acme], on_fail: flag}}": "policies.a: never: text with these words",
    "policies: {a: {scorer: mine.py:score}}": "policies.a: 'mine.py:score': a file may only",
    "policies: {a: {scorer: 'max:pocket,windows:mine.py:F'}}": "policies.a: 'mine.py:F'",
    "policies: {a: {on_scorer_failure: a.b:C}}": "policies.a: 'a.b:C': a file may only",
    "policies: {a: {strategy: mine.py:F}}": "policies.a: 'mine.py:F': a file may only",
    "policies: {a: {scorer: rude, thresholds: {threat: 0.1}}}": "policies.a: thresholds: ",
    "policies: {a: {threshold: 0.1}}": "policies.a.threshold: unknown",
    "policies: {a: {reasoning: ignored}}": "policies.a: reasoning: not supported by",
    "policies: {a: {shadow: b}}": "policies.a.shadow: unknown policy 'b'",
    "policies: {a: {shadow: b, mode: monitor}, b: {}}": "policies.a: shadow: needs mode enforce",
    "policies: {a: {}}\ndefault: [b]": "default: unknown policy 'b'; the file has: a",
    "policies: {a: {}}\nkeys: {k: {sha256: abc, policies: [a]}}": "keys.k.sha256: must be 64",
    f"policies: {{a: {{}}}}\nkeys: {{k: {json.dumps(KEY_OF_NO_POLICY)}}}": "keys.k.policies: ",
    f"policies: {{a: {{}}}}\nkeys: {{k: {json.dumps(EMPTY_KEY)}}}": "keys.k.sha256: ",
    f"policies: {{b: {{}}}}\nkeys: {json.dumps(SAME_KEYS)}": "keys.k.sha256: is also the digest",
    "policies: {a b: {}}": "policies.a b: must be up to 64 of a-z",
    "policies: {on: {}}\ndefault: [on]": "valid string; in YAML, 'on', 'off', 'yes', 'no'",
    "policies: {a: &a {}, b: {<<: *a, <<: *a}}": "<<: is there twice; write <<: [*first, ",
    "policies: [": "line 1, column 12",
    "": "file: Input should be",
    "policies: {a: {never: [2024-13-01]}}": "month must be",
    "policies: !!python/object/apply:os.system [echo]": "could not determine a constructor",
    "policies: {a: {}, b: {}, a: {mode: monitor}}": "a: is there twice",
}


@pytest.mark.parametrize("content", WRONG)
def test_what_is_no_file_of_policies(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tide.yaml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        Policies(CommandLine(scorer=RUDE), path).start(Babbler())
    assert str(caught.value).startswith(f"--policies {path}: ")
    assert WRONG[content] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_are_as_written_and_policies_merge_others(tmp_path: Path) -> None:
    path = tmp_path / "tide.yaml"
    merged = "{<<: [&m {<<: *a, scorer: lexicon}, *a], mode: monitor}"
    path.write_text(f"policies: {{a: &a {{scorer: pocket, preset: auto}}, on: {merged}, 1: *m}}")
    policies = PolicyFile.read(path).policies
    assert {name: policy.scorer for name, policy in policies.items()} == {
        "a": "pocket", "on": "lexicon", "1": "lexicon"
    }  # fmt: skip


def test_never_has_no_short_words_if_short_texts_are_not_scored(tmp_path: Path) -> None:
    path = written(tmp_path / "tide.yaml", policies={"a": {"never": ["ok"]}})
    Policies(CommandLine(scorer=RUDE), path).close()
    with pytest.raises(InputError, match="a: never: 'ok' has too few visible"):
        Policies(CommandLine(scorer=RUDE, overrides={"accept_empty": True}), path)


def test_the_example_of_the_page_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text("utf-8")
    example, *_ = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "tide.yaml"
    path.write_text(example)
    assert list(PolicyFile.read(path).policies) == ["strict", "internal", "trial"]
    assert all(f"`{field}`" in page for field in Policy.model_fields)

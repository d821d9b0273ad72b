"""Random requests, from nearly valid to garbage: no 5xx, no traceback, no hang."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.hostile import BODIES, mutations
from tests.scripted_engine import ScriptedEngine
from tests.server.running import Running, running
from tide.server.limits import Limits

pytestmark = pytest.mark.attack

HELLO = {"type": "text", "text": "hello there"}
RIGHT: dict[str, Any] = {
    "/v1/completions": {
        "model": "scripted", "prompt": ["a second one", "short words"], "max_tokens": 5,
        "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_tokens": 0, "repetition_penalty": 1.0,
        "stop": ["\n"], "seed": 1, "n": 1, "logit_bias": {},
        "stream": True, "stream_options": {"include_usage": True},
        "tide": {"toxicity_threshold": 0.05, "max_iterations": 2, "num_samples": 2, "deadline": 9},
        # As `vllm bench serve`, lm-eval, langchain and others send them.
        "logprobs": None, "presence_penalty": 0, "frequency_penalty": 0.0, "best_of": 1,
        "echo": False, "suffix": None, "ignore_eos": False, "min_p": 0,
        "skip_special_tokens": True, "user": "somebody",
    },
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [HELLO]},
        ],
        "max_completion_tokens": 5, "tools": [], "n": 2, "tide": {"trace": True},
        "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"],
        "logprobs": False, "top_logprobs": 0, "parallel_tool_calls": True, "metadata": {"a": "b"},
        "service_tier": "auto", "store": False, "top_k": -1, "max_tokens": None, "seed": -3,
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{**HELLO, "type": "input_text"}]},
            {"type": "reasoning", "id": "x"},
        ],
        "instructions": "be kind", "max_output_tokens": 5, "tools": [], "tool_choice": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"effort": "low"},
        "stream": True, "store": False,
    },
    "/v1/messages": {
        "system": [HELLO],
        "messages": [
            {"role": "user", "content": "hello there"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]},
            {"role": "user", "content": [HELLO]},
        ],
        "max_tokens": 5, "stop_sequences": ["x"], "tools": [], "output_config": {"effort": "low"},
    },
    "/v1/moderations": {"input": ["a text", HELLO], "model": "x"},
    "/v1alpha1/comments:analyze": {
        "comment": {"text": "a text", "type": "PLAIN_TEXT"},
        "requestedAttributes": {"TOXICITY": {"scoreThreshold": 0.0}},
        "languages": ["en"], "doNotStore": True, "clientToken": "x",
    },
    "/beta/litellm_basic_guardrail_api": {
        "texts": ["a text"], "input_type": "request", "images": None, "request_data": {},
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
    },
}  # fmt: skip
TYPES = ["application/json"] * 6 + ["", "text/plain", "application/json; charset=utf-16", "a/b/c"]
ALLOWED = {200, 400, 404, 405, 413}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    limits = Limits(max_body=1_000_000, traces=True, request_seconds=10)
    engine = ScriptedEngine(lambda x, seed: "word", max_batch=64)

    def scorer(texts: list[str]) -> list[float]:
        return [len(text) % 10 / 10 for text in texts]

    with running(engine, scorer, limits=limits, max_iterations=2, num_samples=2) as found:
        yield found


@pytest.mark.parametrize("path", RIGHT)
def test_right_bodies(server: Running, path: str) -> None:
    assert server.post(path, RIGHT[path]).status_code == 200


@given(
    st.sampled_from(sorted(RIGHT)),
    mutations() | st.just(lambda value: value),
    st.none() | st.none() | st.sampled_from(BODIES),
    st.sampled_from(TYPES),
)
@examples(40, 10_000)
def test_json(server: Running, path: str, mutate: Any, change: Any, kind: str) -> None:
    body = json.dumps(mutate(RIGHT[path])).encode()
    answer = server.http.post(
        path, content=change(body) if change else body, headers={"content-type": kind}
    )
    assert answer.status_code in ALLOWED, (answer.text, body[:500])
    assert '"internal"' not in answer.text
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]


def test_nothing_of_it_was_a_fault(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    assert server.http.get("/health").status_code == 200
    with caplog.at_level(logging.INFO):
        assert server.ask().status_code == 200
    assert server.metric("tide_completions_under_way") == 0
    assert not [line for line in server.http.get("/metrics").text.split("\n") if '"50' in line]

"""A gateway before vLLM's server, whose model has a sampling of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.server.running import PATIENCE, Running, running
from tests.server.transparent import OTHER_APIS, answer
from tests.vllm.servers import serving_chats
from tide.engines.openai.engine import OpenAIEngine

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

SAMPLING = {"temperature": 0.0, "repetition_penalty": 1.3, "max_new_tokens": 30}
QUESTIONS = [f"Tell me about {what}." for what in ("music", "rain", "tea", "a dog", "the sea")]
TOO_LONG = "word " * 2000


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    sampling = ("--override-generation-config", json.dumps(SAMPLING))
    with serving_chats(tmp_path_factory.mktemp("server") / "log", *sampling) as url:
        yield url


@pytest.fixture(scope="module", params=["enforce", "monitor"])
def gateway(upstream: str, request: pytest.FixtureRequest) -> Iterator[Running]:
    def harmless(texts: list[str]) -> np.ndarray:
        return np.zeros(len(texts))

    with (
        OpenAIEngine(base_url=upstream) as engine,
        running(engine, harmless, mode=request.param, preset="backtrack") as server,
    ):
        yield server


def chat(url: str, question: str, **more: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": question}], **more}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE)


def streamed(url: str, question: str) -> tuple[list[str], str, Any]:
    """The pieces of a streamed answer, its finish reason and its usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = chat(url, question, **options).text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    pieces = [choice["delta"].get("content") or "" for choice in choices]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return pieces, reasons[-1], events[-1]["usage"]


def counts(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


def test_answers_are_the_servers_own(upstream: str, gateway: Running) -> None:
    for question in QUESTIONS:
        direct, passed = (chat(url, question).json() for url in (upstream, gateway.url))
        (expected,), (choice,) = direct["choices"], passed["choices"]
        assert choice["message"]["content"] == expected["message"]["content"]
        assert choice["finish_reason"] == expected["finish_reason"]
        assert counts(passed["usage"]) == counts(direct["usage"])
        pieces, reason, usage = streamed(upstream, question)
        passed_pieces, passed_reason, passed_usage = streamed(gateway.url, question)
        assert "".join(passed_pieces) == "".join(pieces)
        assert (passed_reason, counts(passed_usage)) == (reason, counts(usage))


@pytest.mark.parametrize(
    "more",
    [{"temperature": 9}, {"min_p": 5}, {"model": "other"}, {"logit_bias": {"-5": 1}}],
    ids=str,
)
def test_refusals_are_the_servers_own(
    more: dict[str, Any], upstream: str, gateway: Running
) -> None:
    for question in (QUESTIONS[0], TOO_LONG):
        direct, passed = (chat(url, question, **more) for url in (upstream, gateway.url))
        assert passed.status_code == direct.status_code
        if direct.status_code >= 400:
            assert passed.json()["error"]["message"] in direct.json()["error"]["message"]


@pytest.mark.parametrize("path", OTHER_APIS)
@pytest.mark.parametrize("gateway", ["monitor"], indirect=True)
def test_monitored_answers_of_other_apis_are_the_servers(
    path: str, upstream: str, gateway: Running
) -> None:
    """Whole answers: vLLM puts tokens that are ready at one time into one event of a stream."""
    (model,) = httpx.get(f"{upstream}/v1/models").json()["data"]
    body = {"model": model["id"], "temperature": 0.0, **OTHER_APIS[path]}
    status, direct = answer(upstream, path, body)
    assert status == 200
    assert answer(gateway.url, path, body) == (status, direct)

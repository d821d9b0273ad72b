"""Litellm's proxy, with our guardrail in front of a server that says what is asked of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY
from tests.engines.openai.server import TextServer
from tests.server.processes import answering

pytestmark = pytest.mark.clients

CLEAN = "The weather is fine. Bring 2 coats, Anna. "
SAYS = {"clean": CLEAN, "failing": f"{CLEAN}You idiot. Bye. "}
MASTER, BLOCKED = "sk-of-the-proxy", "(blocked)"


def written(chat: str, _: dict[str, Any]) -> tuple[list[str], str]:
    """Say what the last message asks for."""
    (asked,) = (name for name in SAYS if f"user: {name}" in chat)
    return [f"{word} " for word in SAYS[asked].split()], "stop"


def called(_: str, body: Any) -> tuple[int, Any] | None:
    """Call a tool, if there is one, with what the last message asks for."""
    if not (body or {}).get("tools"):
        return None
    arguments = json.dumps({"what": SAYS[body["messages"][-1]["content"]]})
    function = {"name": "ask", "arguments": arguments}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return 200, {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with TextServer(written=written, answer=called) as server:
        yield f"{server.url}/v1"


@pytest.fixture(scope="module")
def client(upstream: str, guardrail_url: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A client of a proxy with our guardrail."""
    openai = pytest.importorskip("openai")
    pytest.importorskip("litellm")
    guardrail = {
        "guardrail": "generic_guardrail_api",
        "mode": ["pre_call", "post_call"],
        "api_base": guardrail_url,
        "api_key": KEY,
        "default_on": True,
    }
    model = {"model": "openai/m", "api_base": upstream, "api_key": "none"}
    config = {
        "model_list": [{"model_name": "m", "litellm_params": model}],
        "guardrails": [{"guardrail_name": "tide", "litellm_params": guardrail}],
        "general_settings": {"master_key": MASTER},
    }
    folder = tmp_path_factory.mktemp("proxy")
    path = folder / "config.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML, too
    with answering(
        Path(sys.executable).with_name("litellm"), "--config", path, "--port",
        log=folder / "log", seconds=120.0, health="/health/liveliness",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    ) as url:  # fmt: skip
        yield openai.OpenAI(base_url=f"{url}/v1", api_key=MASTER, max_retries=0)


def said(client: Any, asked: str, **more: Any) -> str:
    """The answer, or BLOCKED."""
    import openai

    messages = [{"role": "user", "content": asked}]
    try:
        answer = client.chat.completions.create(model="m", messages=messages, **more)
        if not more.get("stream"):
            return str(answer.choices[0].message.content)
        deltas = [part.choices[0].delta.content for part in answer if part.choices]
    except openai.APIError as error:
        if "toxicity 1.00" not in str(error):
            raise
        return BLOCKED
    return "".join(delta or "" for delta in deltas)


@pytest.mark.parametrize("stream", [False, True])
def test_guardrail_blocks_failing_responses(client: Any, stream: bool) -> None:
    assert said(client, "clean", stream=stream) == CLEAN
    assert said(client, "failing", stream=stream) == BLOCKED


def test_guardrail_blocks_tool_calls_and_requests(client: Any) -> None:
    tools = [{"type": "function", "function": {"name": "ask"}}]
    assert said(client, "clean", tools=tools) == "None"
    assert said(client, "failing", tools=tools) == BLOCKED
    assert said(client, "you idiot") == BLOCKED

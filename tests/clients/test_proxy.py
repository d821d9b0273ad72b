"""Litellm's proxy, with our guardrail in front of a server that says what is asked of it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.clients.conftest import KEY
from tests.server.processes import serving

pytestmark = pytest.mark.clients

CLEAN = "The weather is fine. Bring 2 coats, Anna."
SAYS = {"clean": CLEAN, "failing": f"{CLEAN} You idiot. Bye."}
MASTER, BLOCKED = "sk-of-the-proxy", "(blocked)"


class Upstream(BaseHTTPRequestHandler):
    """OpenAI's chat completions: says `SAYS[the last message]`, or calls a tool with it."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = SAYS[asked["messages"][-1]["content"]]
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if asked.get("tools"):
            call = {"name": "ask", "arguments": json.dumps({"what": text})}
            calls = [{"index": 0, "id": "call_1", "type": "function", "function": call}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        self.send_response(200)
        if not asked.get("stream"):
            self.answer("application/json", json.dumps(self.chunk("message", message, "stop")))
            return
        deltas = [{"content": f"{word} "} for word in text.split()]
        chunks = [
            self.chunk("delta", delta) for delta in (deltas if message["content"] else [message])
        ]
        chunks.append(self.chunk("delta", {}, "stop"))
        events = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks)
        self.answer("text/event-stream", f"{events}data: [DONE]\n\n")

    def chunk(self, name: str, content: Any, reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, name: content, "finish_reason": reason}
        kind = "chat.completion" if name == "message" else "chat.completion.chunk"
        return {"id": "x", "object": kind, "created": 1, "model": "m", "choices": [choice]}

    def answer(self, kind: str, text: str) -> None:
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


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
    path = tmp_path_factory.mktemp("proxy") / "config.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML, too
    own = {"CONFIG_FILE_PATH": str(path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with serving(sys.executable, "-m", "tests.clients.proxy", **own) as process:
        yield openai.OpenAI(base_url=f"{process.url}/v1", api_key=MASTER, max_retries=0)


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
    return "".join(delta or "" for delta in deltas).strip()


@pytest.mark.parametrize("stream", [False, True])
def test_guardrail_blocks_failing_responses(client: Any, stream: bool) -> None:
    assert said(client, "clean", stream=stream) == CLEAN
    assert said(client, "failing", stream=stream) == BLOCKED


def test_guardrail_blocks_tool_calls_and_requests(client: Any) -> None:
    tools = [{"type": "function", "function": {"name": "ask"}}]
    assert said(client, "clean", tools=tools) == "None"
    assert said(client, "failing", tools=tools) == BLOCKED
    assert said(client, "you idiot") == BLOCKED

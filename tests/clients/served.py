"""`python -m tests.clients.served NAME`: one of three servers, for the process of a client."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.chats import CHATML, save_chat_model
from tests.clients.conftest import KEY
from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import Events, TextServer
from tests.server.running import running
from tide.cli import main

CALLS = Said(calls=[("weather", '{"town": "Oslo"}'), ("weather", '{"town": "Bergen"}')])
TIDE = ("tide", "serve", "--port", "0", "--served-model-name", "tiny")


def chat() -> None:
    """Serve a tiny chat model with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        model = save_chat_model(Path(folder), CHATML)
        sys.argv = [*TIDE, "--traces", "--model", str(model)]
        sys.argv += ["--strategy", "resample", "--max-iterations", "2"]
        main()


def guardrail() -> None:
    """Serve litellm's guardrail, by a scorer of one rude word."""
    with running(scorer="tests.fakes:RudeScorer", keys=(KEY,)) as server:
        print(json.dumps({"serving": server.url}), file=sys.stderr, flush=True)
        threading.Event().wait()


def tools() -> None:
    """Serve a gateway before a server that calls tools."""
    with TextServer(message=message) as upstream:
        sys.argv = [*TIDE, "--engine", "openai", "--base-url", upstream.url]
        main()


def message(body: dict[str, Any]) -> Events:
    """Call the tools that were sent, and say what they answered."""
    results = [turn["content"] for turn in body["messages"] if turn["role"] == "tool"]
    if "tools" not in body:
        return WIRES["vLLM"](Said("Hello, and a fine morning."))
    return WIRES["vLLM"](Said(f"It is {' and '.join(results)}.") if results else CALLS)


if __name__ == "__main__":
    {"chat": chat, "guardrail": guardrail, "tools": tools}[sys.argv[1]]()

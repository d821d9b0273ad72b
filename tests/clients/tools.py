"""`python -m tests.clients.tools`: serves a gateway before a server that calls tools."""

from __future__ import annotations

import sys
from typing import Any

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import Events, TextServer
from tide.cli import main

CALLS = Said(calls=[("weather", '{"town": "Oslo"}'), ("weather", '{"town": "Bergen"}')])


def message(body: dict[str, Any]) -> Events:
    """Calls the tools that it is sent, and says what they answered."""
    results = [one["content"] for one in body["messages"] if one["role"] == "tool"]
    if "tools" not in body:
        return WIRES["vLLM"](Said("Hello, and a fine morning."))
    return WIRES["vLLM"](Said(f"It is {' and '.join(results)}.") if results else CALLS)


if __name__ == "__main__":
    with TextServer(message=message) as upstream:
        sys.argv = ["tide", "serve", "--port", "0", "--served-model-name", "tiny"]
        sys.argv += ["--engine", "openai", "--base-url", upstream.url]
        main()

"""Gateways before a server with a made-up model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import TextServer
from tests.fakes import RudeScorer
from tests.server.running import Running, running
from tide.engines.openai.engine import OpenAIEngine

BAD = "dull"
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
TEXT = "The river is wide. It runs to the sea. The town is on its left bank."
# Passed on unchanged, with null values and unknown fields.
PARAMETERS = {"type": "object", "properties": {"a": {"enum": ["b", None], "default": None}}}
ARGUMENTS = '{"where": "the town", "deep": [1, {"key": "value"}]}'
FINE = Said("I look.", "They ask for a river.", [("find", ARGUMENTS), ("find", "{}")])
Serve = Callable[..., Running]


@contextmanager
def gateway(
    upstream: TextServer,
    scorer: Any = None,
    deadline: float = 120.0,
    timeout: float = 60.0,
    **options: Any,
) -> Iterator[Running]:
    """A gateway before `upstream`, whose scorer objects to `BAD`."""
    settings = {"preset": "backtrack", "toxicity_threshold": 0.5, **options}
    with (
        OpenAIEngine("tiny", base_url=upstream.url, deadline=deadline, timeout=timeout) as engine,
        running(engine, scorer or RudeScorer(BAD), **settings) as server,
    ):
        upstream.requests.clear()
        yield server


def choice_of(server: Running, **body: Any) -> Any:
    """The answer to a chat."""
    answer = server.chat(**body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def says(server: TextServer, *said: Said, wire: str = "vLLM") -> None:
    """Let the model give these answers to chats in turn, and then repeat the last one."""
    left = list(said)
    server.message = lambda _: WIRES[wire](left.pop(0) if len(left) > 1 else left[0])


def writes(server: TextServer, words: Sequence[str], repaired: Sequence[str] = ()) -> None:
    """Let the model write `words`, and `repaired`, if given, where words are banned."""

    def written(text: str, body: dict[str, Any]) -> tuple[list[str], str]:
        return list(repaired if repaired and body.get("logit_bias") else words), "stop"

    server.written = written  # type: ignore[method-assign]

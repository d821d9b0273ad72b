"""The promise at the server's doors: what a client is shown, a scorer has passed as it stands."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.runtime.test_promise import PROMPTS, Babbler, Oracle, Seen, overrides, passed, worlds
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.scorers import load_scorer
from tide.scorers.base import is_empty
from tide.server.app import create_app
from tide.server.limits import Limits
from tide.server.metrics import MeasuredScorer

pytestmark = pytest.mark.attack


async def answered(
    settings: dict[str, Any], world: Any, oracle: Oracle, path: str, body: dict[str, Any]
) -> httpx.Response:
    salt, ends, _, _ = world
    scorer = MeasuredScorer(load_scorer(oracle))
    async with AsyncDetoxifier(Babbler(salt, ends, 16), scorer=scorer, **settings) as detox:
        app = create_app(detox, "babbler", limits=Limits(max_tokens=300))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post(path, json=body)


def pieces_of(answer: httpx.Response, stream: bool) -> list[str]:
    """The texts that a client is shown, one after the other."""
    if not stream:
        choices = answer.json().get("choices", [])
        return [one["text"] if "text" in one else one["message"]["content"] for one in choices]
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    events = [json.loads(line) for line in lines if line[:1] == "{"]
    shown = [one for event in events for one in event.get("choices", [])]
    texts = [one["text"] if "text" in one else one["delta"].get("content", "") for one in shown]
    return [text for text in texts if text]


@examples(40, 2000)
@given(overrides, worlds, st.booleans(), st.booleans())
def test_what_a_client_is_shown_was_scored(
    given: dict[str, Any], world: Any, stream: bool, chat: bool
) -> None:
    oracle = Oracle(*world[2:])
    said = {"messages": [{"role": "user", "content": PROMPTS[0]}]} if chat else {}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = {"stream": stream, "seed": 3, **(said or {"prompt": PROMPTS[0]})}
    answer = asyncio.run(answered(given, world, oracle, path, body))
    assert answer.status_code in (200, 500, 503), answer.text
    shown = pieces_of(answer, stream)
    if stream:
        seen = Seen(oracle, given)
        for piece in shown:
            seen.next(piece)
    elif not is_empty("".join(shown)):
        assert passed("".join(shown), oracle, given)

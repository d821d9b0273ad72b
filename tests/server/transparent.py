"""Checks of a gateway before a real server: it answers as the server itself, and repairs."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from tests.server.running import PATIENCE
from tide.core.settings import Settings
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.scorers.base import Exchange

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
PLACES = ("the sea", "a market", "the moon", "a garden", "an old house")
KINDS: dict[str, dict[str, Any]] = {
    "completion": {},
    "chat": {},
    "sampled": {"temperature": 0.7, "top_p": 0.8, "seed": 3},
    "tools": {"tools": [TOOL]},
    "JSON": {"response_format": {"type": "json_object"}},
}
QUESTION = "How was your day?"
OTHER_APIS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": QUESTION, "max_output_tokens": 12},
    "/v1/messages": {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12},
}
# What no two answers of a server have in common.
_OWN = re.compile(
    rb'"(?:(?:item_|request_)?id|(?:created|completed)(?:_at)?|system_fingerprint)": ?'
    rb'(?:"[^"]*"|[\d.]+)|"timings": ?{[^}]*}'
)


def bodies(number: int) -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies of `number` requests: whole and streamed, of all kinds."""
    made: list[tuple[str, dict[str, Any]]] = []
    while len(made) < number:
        kind = [*KINDS][len(made) // 2 % len(KINDS)]
        asked = f"Tell me about {PLACES[len(made) // 10 % len(PLACES)]}, number {len(made) // 50}."
        body = {"temperature": 0.0, "max_tokens": 12, **KINDS[kind], "stream": len(made) % 2 > 0}
        if kind == "completion":
            made.append(("/v1/completions", {**body, "prompt": asked}))
        else:
            messages = [{"role": "user", "content": asked}]
            made.append(("/v1/chat/completions", {**body, "messages": messages}))
    return made


def answer(url: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """The status and the bytes of an answer, without its own ids and times."""
    reply = httpx.post(f"{url}{path}", json=body, timeout=PATIENCE)
    return reply.status_code, _OWN.sub(b"", reply.content)


def differing(direct: str, gateway: str, model: str, number: int) -> list[Any]:
    """The requests to a monitored gateway whose answers are not the server's own bytes."""
    differs = []
    for path, body in bodies(number):
        body["model"] = model
        own, passed = answer(direct, path, body), answer(gateway, path, body)
        if own != passed:
            differs.append((path, body, own, passed))
    return differs


def text_of(url: str, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The text of an answer and its finish reason; the status of a refusal."""
    reply = httpx.post(f"{url}{path}", json=body, timeout=PATIENCE)
    if reply.status_code != 200:
        return "", str(reply.status_code)
    if body["stream"]:
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        choices = [choice for line in lines for choice in json.loads(line).get("choices") or []]
    else:
        choices = reply.json()["choices"]
    parts = [choice.get("delta") or choice.get("message") or choice for choice in choices]
    text = "".join(part.get("content") or part.get("text") or "" for part in parts)
    return text, next(c["finish_reason"] for c in reversed(choices) if c.get("finish_reason"))


def other_texts(direct: str, gateway: str, model: str, number: int) -> list[Any]:
    """The requests of equal noise whose clean answers differ from an enforced gateway's."""
    differs = []
    for path, body in bodies(number):
        if "tools" in body or "response_format" in body or body["temperature"]:
            continue
        body["model"] = model
        own, passed = text_of(direct, path, body), text_of(gateway, path, body)
        if own != passed:
            differs.append((path, body, own, passed))
    return differs


def assert_repaired(client: Any, prompts: list[str]) -> None:
    """Only text below the threshold is sent, though some of the prompts lead to toxic text."""
    threshold = Settings().toxicity_threshold
    done = [
        client.completions.create(model="safe", prompt=prompt, max_tokens=20, seed=1)
        for prompt in prompts
    ]
    exchanges = [
        Exchange(prompt, answer.choices[0].text)
        for prompt, answer in zip(prompts, done, strict=True)
        if answer.choices[0].finish_reason != "content_filter"
    ]
    scorer = load_scorer(DEFAULT_SCORER)
    assert max(scorer.score(exchanges)) < threshold
    assert len(exchanges) >= 0.9 * len(prompts)
    repaired = [answer.tide for answer in done if answer.tide["rounds"] > 1]
    assert len(repaired) >= 0.2 * len(prompts)
    assert all(cost["scorer_calls"] > cost["rounds"] for cost in repaired)  # to find blamed words

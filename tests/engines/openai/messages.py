"""Messages with reasoning and tool calls, as servers stream them.

Modelled on streams reported in the issues of these servers: vLLM 43267 and 17506, llama.cpp's
pull request 12379, Ollama 7881 and 7963, lmdeploy 3412 (vLLM and SGLang without an index), and on
the `ThinkChunk` of Mistral's client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.engines.openai.server import Events

_CUT = 7  # characters of an event


@dataclass
class Said:
    """A model's answer to a chat. calls: names and arguments. field: of the text."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, str]] = ()
    reason: str = "stop"
    field: str = "content"

    def id_of(self, number: int) -> str:
        return f"call_{number:08d}"


Wire = Callable[[Said], Events]


def _events(said: Said, calls: Iterator[dict[str, Any]], *, reasoning: str, **each: str) -> Events:
    """Reasoning, text and calls in turn. each: further fields of every delta."""
    deltas = [{"role": "assistant", "content": "" if said.text else None}]
    deltas += _cut(reasoning, said.reasoning)
    deltas += _cut(said.field, said.text)
    deltas += ({"tool_calls": [call]} for call in calls)
    reason = "tool_calls" if said.calls and said.reason == "stop" else said.reason
    choices = [{"index": 0, "delta": {**each, **delta}, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    return [{"choices": [choice]} for choice in choices]


def _cut(name: str, text: str) -> Iterator[dict[str, Any]]:
    for start in range(0, len(text), _CUT):
        yield {name: text[start : start + _CUT]}


def _openai(
    said: Said, *, reasoning: str = "reasoning_content", one_index: bool = False, begun: int = 0
) -> Events:
    """A call's id and name come first, with `begun` characters of its arguments; then the rest."""

    def calls() -> Iterator[dict[str, Any]]:
        for number, (name, arguments) in enumerate(said.calls):
            index = 0 if one_index else number
            first = {"name": name, "arguments": arguments[:begun]}
            yield {"index": index, "id": said.id_of(number), "type": "function", "function": first}
            for part in _cut("arguments", arguments[begun:]):
                more = {"id": ""} if one_index else {}
                yield {"index": index, **more, "function": part}

    return _events(said, calls(), reasoning=reasoning)


def _ollama(said: Said, *, indexed: bool = True) -> Events:
    """Each call is one event; older versions send no index, and another finish reason."""

    def calls() -> Iterator[dict[str, Any]]:
        for number, (name, arguments) in enumerate(said.calls):
            index = {"index": number} if indexed else {}
            function = {"name": name, "arguments": arguments}
            yield {**index, "id": said.id_of(number), "type": "function", "function": function}

    events = _events(said, calls(), reasoning="reasoning", role="assistant", content="")
    if not indexed:
        events[-1]["choices"][0]["finish_reason"] = said.reason
    return events


def _mistral(said: Said) -> Events:
    """Reasoning and text are parts of the content."""
    events = _openai(said)
    for event in events:
        delta = event["choices"][0]["delta"]
        if text := delta.get("content"):
            delta["content"] = [{"type": "text", "text": text}]
        if thought := delta.pop("reasoning_content", None):
            thinking = [{"type": "text", "text": thought}]
            delta["content"] = [{"type": "thinking", "thinking": thinking}]
    return events


WIRES: dict[str, Wire] = {
    "vLLM": _openai,
    "vLLM, newer": lambda said: _openai(said, reasoning="reasoning"),
    "vLLM, older": lambda said: _openai(said, one_index=True),
    "llama.cpp": lambda said: _openai(said, begun=1),
    "Ollama": _ollama,
    "Ollama, older": lambda said: _ollama(said, indexed=False),
    "Mistral": _mistral,
}

"""Messages with reasoning and tool calls, as servers stream them.

Modelled on streams reported in the issues of these servers: vLLM 43267 and 17506, llama.cpp's
pull request 12379, Ollama 7881 and 7963, lmdeploy 3412 (vLLM and SGLang without an index).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.engines.openai.server import Events

_CUT = 7  # characters of an event


@dataclass
class Said:
    """A model's answer to a chat. calls: names and arguments."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, str]] = ()
    reason: str = "stop"
    ids: Sequence[str] = field(default=())

    def id_of(self, number: int) -> str:
        return self.ids[number] if number < len(self.ids) else f"call_{number:08d}"


Wire = Callable[[Said], Events]


def _events(deltas: Iterator[dict[str, Any]], reason: str) -> Events:
    events = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    return [*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}]


def _cut(name: str, text: str) -> Iterator[dict[str, Any]]:
    for start in range(0, len(text), _CUT):
        yield {name: text[start : start + _CUT]}


def _reason(said: Said) -> str:
    return "tool_calls" if said.calls and said.reason == "stop" else said.reason


def _openai(said: Said, *, name: str = "reasoning_content", one_index: bool = False) -> Events:
    """A call's id and name come first, then its arguments in pieces."""

    def deltas() -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": ""}
        yield from _cut(name, said.reasoning)
        yield from _cut("content", said.text)
        for number, (function, arguments) in enumerate(said.calls):
            index = 0 if one_index else number
            begun = {"name": function, "arguments": ""}
            call = {"id": said.id_of(number), "type": "function", "index": index}
            yield {"tool_calls": [{**call, "function": begun}]}
            for part in _cut("arguments", arguments):
                more = {"id": ""} if one_index else {}
                yield {"tool_calls": [{"index": index, **more, "function": part}]}

    return _events(deltas(), _reason(said))


def _llama_cpp(said: Said) -> Events:
    """A call's name comes together with the first piece of its arguments."""

    def deltas() -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": None}
        yield from _cut("reasoning_content", said.reasoning)
        yield from _cut("content", said.text)
        for number, (function, arguments) in enumerate(said.calls):
            begun = {"name": function, "arguments": arguments[:1]}
            call = {"index": number, "id": said.id_of(number), "type": "function"}
            yield {"tool_calls": [{**call, "function": begun}]}
            for part in _cut("arguments", arguments[1:]):
                yield {"tool_calls": [{"index": number, "function": part}]}

    return _events(deltas(), _reason(said))


def _ollama(said: Said, *, indexed: bool = True) -> Events:
    """Each call is one event; older versions send no index, and another finish reason."""

    def deltas() -> Iterator[dict[str, Any]]:
        for part in _cut("reasoning", said.reasoning):
            yield {"role": "assistant", "content": "", **part}
        for part in _cut("content", said.text):
            yield {"role": "assistant", **part}
        for number, (function, arguments) in enumerate(said.calls):
            call = {"id": said.id_of(number), "type": "function"}
            call |= {"index": number} if indexed else {}
            call |= {"function": {"name": function, "arguments": arguments}}
            yield {"role": "assistant", "content": "", "tool_calls": [call]}

    return _events(deltas(), _reason(said) if indexed else said.reason)


WIRES: dict[str, Wire] = {
    "vLLM": _openai,
    "vLLM, newer": lambda said: _openai(said, name="reasoning"),
    "vLLM, older": lambda said: _openai(said, one_index=True),
    "llama.cpp": _llama_cpp,
    "Ollama": _ollama,
    "Ollama, older": lambda said: _ollama(said, indexed=False),
}

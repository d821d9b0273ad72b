"""Anthropic's /v1/messages: its requests, its answers, and how a monitored answer is read."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AliasPath, BaseModel, Field
from pydantic_core import from_json

from tide.core.chat import Text
from tide.core.http import Rows, ServerFailed, parsed
from tide.core.results import Usage
from tide.engines.openai.streams import CallDelta, Delta, FunctionDelta
from tide.server.answers import Refused, event
from tide.server.schemas import (
    ImagePart,
    TextOr,
    TextPart,
    Translated,
    Wire,
    content_of,
    function_of,
    text_of,
)

if TYPE_CHECKING:
    from tide.server.generation import Sent


class TextBlock(TextPart):
    type: Literal["text"]


class Source(Wire):
    type: Literal["base64", "url"]
    media_type: Text = ""
    data: Text = ""
    url: Text = ""


class ImageBlock(ImagePart):
    type: Literal["image"]
    source: Source

    def image(self) -> dict[str, Any]:
        source = self.source
        return {"url": source.url or f"data:{source.media_type};base64,{source.data}"}


_TextOrImage = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class CallBlock(Wire):
    type: Literal["tool_use"]
    id: Text
    name: Text
    input: dict[str, Any]


class ResultBlock(Wire):
    type: Literal["tool_result"]
    tool_use_id: Text
    content: TextOr[_TextOrImage] = ""


class ThinkingBlock(Wire):
    """Reasoning that clients send back, which is ignored as in chats."""

    type: Literal["thinking", "redacted_thinking"]


_Block = Annotated[
    TextBlock | ImageBlock | CallBlock | ResultBlock | ThinkingBlock, Field(discriminator="type")
]


class Turn(Wire):
    role: Literal["user", "assistant", "system"]
    content: TextOr[_Block]

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages of a chat: results of tools, then the rest."""
        if isinstance(self.content, str):
            yield {"role": self.role, "content": self.content}
            return
        parts: list[TextBlock | ImageBlock] = []
        calls: list[dict[str, Any]] = []
        has_results = False
        for block in self.content:
            if isinstance(block, TextBlock | ImageBlock):
                parts.append(block)
            elif isinstance(block, CallBlock):
                function = {"name": block.name, "arguments": json.dumps(block.input)}
                calls.append({"id": block.id, "type": "function", "function": function})
            elif isinstance(block, ResultBlock):
                has_results = True
                result = {"role": "tool", "tool_call_id": block.tool_use_id}
                yield result | {"content": content_of(block.content)}
        if parts or calls or not has_results:
            message: dict[str, Any] = {"role": self.role, "content": content_of(parts)}
            yield message | ({"tool_calls": calls} if calls else {})


class FunctionTool(Wire):
    type: Literal["custom"] = "custom"
    name: Text
    input_schema: dict[str, Any]
    description: Text | None = None


class ToolChoice(Wire):
    type: Literal["auto", "any", "none", "tool"]
    name: Text | None = None
    disable_parallel_tool_use: bool = False


class SchemaFormat(Wire):
    type: Literal["json_schema"]


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesRequest(Translated):
    messages: Rows[Turn] = Field(min_length=1)
    system: TextOr[TextBlock] | None = None
    stop_sequences: Rows[Text] | None = None
    tools: Rows[FunctionTool] = Field(default=[])
    tool_choice: ToolChoice | None = None
    output_config: dict[str, Any] = Field({})
    format: SchemaFormat | None = Field(None, validation_alias=AliasPath("output_config", "format"))

    refused: ClassVar = {
        "container": "not supported; call tools yourself",
        "mcp_servers": "not supported; call tools yourself",
        "thread": "no messages are stored; send the whole conversation in messages",
    }
    without_effect: ClassVar = (
        "cache_control",
        "context_management",
        "metadata",
        "n",
        "service_tier",
        "thinking",
    )

    def fields(self) -> dict[str, Any]:
        messages = [message for turn in self.messages for message in turn.messages()]
        if self.system:
            messages.insert(0, {"role": "system", "content": text_of(self.system)})
        fields: dict[str, Any] = {
            "messages": messages,
            "stop": self.stop_sequences,
            "tools": [
                function_of(tool, tool.input_schema, ("name", "description")) for tool in self.tools
            ],
        }
        if (choice := self.tool_choice) is not None:
            named = {"type": "function", "function": {"name": choice.name}}
            fields["tool_choice"] = _CHOICES.get(choice.type, named)
            if choice.disable_parallel_tool_use:
                fields["parallel_tool_calls"] = False
        if self.format is not None:
            named = {"name": "answer", **(self.format.model_extra or {})}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        return fields


_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
# The field of each block that streams send in pieces, and the type and field of such a piece.
_PIECES = {
    "text": ("text", "text_delta", "text"),
    "thinking": ("thinking", "thinking_delta", "thinking"),
    "tool_use": ("input", "input_json_delta", "partial_json"),
}


class MessageShape:
    """The format of answers."""

    keep_alive, done = ': keep-alive\nevent: ping\ndata: {"type":"ping"}\n\n', ""

    def __init__(self, model: str) -> None:
        self._has_begun = self._has_text = False
        self._number_of_blocks = 0
        self._end: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._tide: dict[str, Any] = {}
        self._message = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    def whole(
        self, sent: Sequence[Sent], usage: dict[str, Any], tide: dict[str, Any]
    ) -> dict[str, Any]:
        (answer,) = sent
        content = _blocks(answer.text, answer)
        fields = {"content": content, **_end(answer), "usage": _usage(usage), "tide": answer.tide}
        return self._message | fields

    def piece(self, number: int, text: str) -> str:
        return "".join(map(event, self._text_events(text)))

    def _text_events(self, text: str) -> Iterator[dict[str, Any]]:
        yield from self._begin()
        if not self._has_text:
            self._has_text = True
            yield self._event("content_block_start", content_block={"type": "text", "text": ""})
        yield self._event("content_block_delta", delta={"type": "text_delta", "text": text})

    def end(self, number: int, rest: str, sent: Sent) -> Iterator[dict[str, Any]]:
        yield from self._begin(sent.usage)
        if self._has_text:
            if rest:
                yield from self._text_events(rest)
            rest = ""
            yield self._stopped()
        for block in _blocks(rest, sent):
            field, kind, name = _PIECES[block["type"]]
            piece = block[field]
            empty = "" if isinstance(piece, str) else {}
            yield self._event("content_block_start", content_block=block | {field: empty})
            written = piece if isinstance(piece, str) else json.dumps(piece)
            yield self._event("content_block_delta", delta={"type": kind, name: written})
            yield self._stopped()
        self._end = _end(sent)
        self._tide = sent.tide

    def finish(self, usage: dict[str, Any], tide: dict[str, Any]) -> Iterator[dict[str, Any]]:
        fields = {"delta": self._end, "usage": _usage(usage), "tide": self._tide}
        yield {"type": "message_delta", **fields}
        yield {"type": "message_stop"}

    @staticmethod
    def failed(error: Refused) -> str:
        return event(error.for_messages())

    def _begin(self, usage: Usage | None = None) -> Iterator[dict[str, Any]]:
        """Yield the first event. usage: unknown if the answer has not ended."""
        if not self._has_begun:
            self._has_begun = True
            read = (usage or Usage())._replace(completion_tokens=0, completion_tokens_details={})
            fields = {"content": [], **self._end, "usage": _usage(read._asdict())}
            yield {"type": "message_start", "message": self._message | fields}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "index": self._number_of_blocks, **fields}

    def _stopped(self) -> dict[str, Any]:
        self._number_of_blocks += 1
        return {"type": "content_block_stop", "index": self._number_of_blocks - 1}


def _blocks(text: str, sent: Sent) -> list[dict[str, Any]]:
    """Return the content of an answer. Raises Refused for arguments that are not an object.

    Of a call that the maximum length or a filter has cut, the whole arguments are sent.
    """
    blocks: list[dict[str, Any]] = []
    if sent.parts.reasoning:
        blocks.append({"type": "thinking", "thinking": sent.parts.reasoning, "signature": ""})
    if text:
        blocks.append({"type": "text", "text": text})
    is_cut = sent.reason in ("length", "content_filter")
    for call in sent.parts.tool_calls:
        try:
            arguments = from_json(call.arguments or "{}", allow_inf_nan=False, allow_partial=is_cut)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            message = "the model called a tool with arguments that are not a JSON object"
            raise Refused(500, message, "server_error", code="completion_error", again=True)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _end(sent: Sent) -> dict[str, Any]:
    if sent.reason == "stop" and sent.parts.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": sent.parts.stop_sequence}
    return {"stop_reason": _REASONS.get(sent.reason, "end_turn"), "stop_sequence": None}


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    details = usage.get("prompt_tokens_details", {})
    cached, stored = details.get("cached_tokens", 0), details.get("cache_write_tokens", 0)
    counts = {
        "input_tokens": max(0, usage["prompt_tokens"] - cached - stored),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": stored,
        "output_tokens": usage["completion_tokens"],
    }
    thoughts = usage.get("completion_tokens_details", {}).get("reasoning_tokens")
    if thoughts is not None:
        counts["output_tokens_details"] = {"thinking_tokens": thoughts}
    return counts


class _Piece(BaseModel):
    """A block of an answer, or a piece of it."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] = {}
    partial_json: str = ""
    stop_reason: str | None = None


class _Event(BaseModel):
    """An event, or a whole answer, which has the type `message`."""

    type: str = Field(max_length=100)
    index: int = 0
    content: list[_Piece] = []
    content_block: _Piece | None = None
    delta: _Piece = _Piece()
    stop_reason: str | None = None


def read(data: bytes) -> Iterator[tuple[int, Delta, str | None]]:
    """Yield the pieces of a server's answer in one of its events, or in a whole answer."""
    told = parsed(data, _Event)
    if told.type == "error":
        raise ServerFailed("an error in a stream")
    pieces = list(enumerate(told.content))
    if told.content_block is not None:
        pieces.append((told.index, told.content_block))
    pieces.append((told.index, told.delta))
    for index, piece in pieces:
        calls = None
        if piece.type in ("tool_use", "input_json_delta"):
            arguments = json.dumps(piece.input) if piece.input else piece.partial_json
            calls = [CallDelta(index, piece.id, FunctionDelta(piece.name, arguments))]
        yield 0, Delta(content=piece.text, reasoning=piece.thinking, tool_calls=calls), None
    reason = told.stop_reason or told.delta.stop_reason
    if reason is not None:
        yield 0, Delta(), reason

"""OpenAI's /v1/responses: its requests, its answers, and how a monitored answer is read.

No answer is stored, so each request holds the whole conversation.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, Discriminator, Field, Tag

from tide.core.chat import Text, ToolCall
from tide.core.http import Rows, ServerFailed, parsed
from tide.engines.openai.streams import CallDelta, Delta, FunctionDelta
from tide.server.answers import Refused, event
from tide.server.schemas import (
    ImagePart,
    MaxTokens,
    TextOr,
    TextPart,
    Translated,
    Wire,
    content_of,
    function_of,
)

if TYPE_CHECKING:
    from tide.server.generation import Sent

_CONVERSATION = "no answers are stored; send the whole conversation in input"


class Part(TextPart):
    type: Literal["input_text", "output_text", "text", "refusal"]
    text: Text = Field(validation_alias=AliasChoices("text", "refusal"))


class InputImage(ImagePart):
    type: Literal["input_image"]
    image_url: Text
    detail: Text | None = None

    def image(self) -> dict[str, Any]:
        detail = {} if self.detail is None else {"detail": self.detail}
        return {"url": self.image_url, **detail}


_TextOrImage = Annotated[Part | InputImage, Field(discriminator="type")]


class MessageItem(Wire):
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOr[_TextOrImage]


class CallItem(Wire):
    call_id: Text
    name: Text
    arguments: Text


class ResultItem(Wire):
    call_id: Text
    output: TextOr[_TextOrImage]


class ReasoningItem(Wire):
    """Reasoning that clients send back, which is ignored as in chats."""


def _kind_of(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else None


_Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind_of),
]


class FunctionTool(Wire):
    type: Literal["function"]
    name: Text
    parameters: dict[str, Any] | None = None
    description: Text | None = None
    strict: bool | None = None


class ChosenTool(Wire):
    """A function, or the tools that are allowed."""

    type: Literal["function", "allowed_tools"]
    tools: Rows[ChosenTool] = Field(default=[])

    def for_chat(self) -> dict[str, Any]:
        chosen = dict(self.model_extra or {})  # such as its name
        if self.tools:
            chosen["tools"] = [tool.for_chat() for tool in self.tools]
        return {"type": self.type, self.type: chosen}


class TextFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]


class ResponsesRequest(Translated):
    input: TextOr[_Item]
    instructions: Text | None = None
    max_output_tokens: MaxTokens = None
    tools: Rows[FunctionTool] = Field(default=[])
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    text: dict[str, Any] = Field({})
    reasoning: dict[str, Any] = Field({})
    format: TextFormat | None = Field(None, validation_alias=AliasPath("text", "format"))
    verbosity: Text | None = Field(None, validation_alias=AliasPath("text", "verbosity"))
    effort: Text | None = Field(None, validation_alias=AliasPath("reasoning", "effort"))

    refused: ClassVar = {
        "background": "not supported; leave it out, and use stream for long answers",
        "conversation": _CONVERSATION,
        "previous_response_id": _CONVERSATION,
        "prompt": "no prompts are stored; send instructions and input",
        "top_logprobs": "would expose unscored text; leave it out",
    }
    without_effect: ClassVar = (
        "include",
        "max_tool_calls",
        "metadata",  # OpenAI refuses it in a chat that is not stored
        "n",
        "store",
        "stream_options",
        "truncation",
    )

    def fields(self) -> dict[str, Any]:
        choice, format_ = self.tool_choice, self.format
        described = ("name", "description", "strict")
        fields: dict[str, Any] = {
            "messages": self._messages(),
            "max_tokens": self.max_output_tokens,
            "tools": [function_of(tool, tool.parameters, described) for tool in self.tools],
            "tool_choice": choice.for_chat() if isinstance(choice, Wire) else choice,
            "verbosity": self.verbosity,
            "reasoning_effort": self.effort,
        }
        if format_ is not None:
            fields["response_format"] = {"type": format_.type}
            if format_.type == "json_schema":
                fields["response_format"]["json_schema"] = format_.model_extra
        return fields

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        for item in self.input:
            if isinstance(item, MessageItem):
                messages.append({"role": item.role, "content": content_of(item.content)})
            elif isinstance(item, CallItem):
                # The calls of an answer belong to one message, together with its text.
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                call = ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
                messages[-1].setdefault("tool_calls", []).append(call.dump())
            elif isinstance(item, ResultItem):
                result = {"role": "tool", "tool_call_id": item.call_id}
                messages.append(result | {"content": content_of(item.output)})
        return messages


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseShape:
    """The format of answers. Items of the output are added as their events are built."""

    keep_alive, done = ": keep-alive\n\n", ""

    def __init__(self, request: ResponsesRequest, model: str) -> None:
        self._output: list[dict[str, Any]] = []
        self._number_of_events = 0
        self._message: int | None = None  # index of the message in the output
        chosen = request.tool_choice
        self._response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": self._output,
            "parallel_tool_calls": (request.model_extra or {}).get("parallel_tool_calls", True),
            "tool_choice": chosen or "auto",
            "tools": [tool.model_dump() for tool in request.tools],
            "usage": None,
        }
        if isinstance(chosen, Wire):
            self._response["tool_choice"] = chosen.model_dump(exclude_unset=True)

    def whole(
        self, sent: Sequence[Sent], usage: dict[str, Any], tide: dict[str, Any]
    ) -> dict[str, Any]:
        events = [*self.end(0, sent[0].text, sent[0]), *self.finish(usage, tide)]
        response: dict[str, Any] = events[-1]["response"]
        return response

    def piece(self, number: int, text: str) -> str:
        return "".join(map(event, self._text_events(text)))

    def _text_events(self, text: str, *, is_refusal: bool = False) -> Iterator[dict[str, Any]]:
        yield from self._begin()
        if self._message is None:
            self._message = len(self._output)
            item = {"type": "message", "id": f"msg_{secrets.token_hex(12)}", "role": "assistant"}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            if is_refusal:
                part = {"type": "refusal", "refusal": ""}
            yield from self._open(item, part)
        yield self._delta(self._message, text)

    def end(self, number: int, rest: str, sent: Sent) -> Iterator[dict[str, Any]]:
        yield from self._begin()
        reason = _INCOMPLETE.get(sent.reason)
        status = "incomplete" if reason else "completed"
        if sent.parts.reasoning:
            index = len(self._output)
            item = {"type": "reasoning", "id": f"rs_{secrets.token_hex(12)}", "summary": []}
            yield from self._open(item, {"type": "reasoning_text", "text": ""})
            yield self._delta(index, sent.parts.reasoning)
            yield from self._close(index, "completed")
        if rest:
            yield from self._text_events(rest, is_refusal=sent.parts.is_refusal)
        if self._message is not None:
            yield from self._close(self._message, status)
        for call in sent.parts.tool_calls:
            yield from self._call(call, status)
        details = {"reason": reason} if reason else None
        self._response |= {"status": status, "incomplete_details": details, "tide": sent.tide}

    def finish(self, usage: dict[str, Any], tide: dict[str, Any]) -> Iterator[dict[str, Any]]:
        unknown = {"cached_tokens": 0, "cache_write_tokens": 0}
        self._response["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": unknown | usage.get("prompt_tokens_details", {}),
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0}
            | usage.get("completion_tokens_details", {}),
            "total_tokens": usage["total_tokens"],
        }
        yield self._event(self._response["status"], response=self._response)

    def failed(self, error: Refused) -> str:
        reported = {"code": "server_error", "message": error.body["message"]}
        response = self._response | {"status": "failed", "error": reported}
        return event(self._event("failed", response=response))

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number_of_events += 1
        number = self._number_of_events - 1
        return {"type": f"response.{kind}", "sequence_number": number, **fields}

    def _of_item(self, kind: str, index: int, **fields: Any) -> dict[str, Any]:
        item_id = self._output[index]["id"]
        return self._event(kind, item_id=item_id, output_index=index, **fields)

    def _begin(self) -> Iterator[dict[str, Any]]:
        if self._number_of_events == 0:
            yield self._event("created", response=self._response)
            yield self._event("in_progress", response=self._response)

    def _open(self, item: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Add an item whose content is one part with text."""
        index = len(self._output)
        self._output.append(item | {"status": "in_progress", "content": []})
        yield self._event("output_item.added", output_index=index, item=self._output[index])
        self._output[index]["content"] = [part]
        yield self._of_item("content_part.added", index, content_index=0, part=part)

    def _delta(self, index: int, text: str) -> dict[str, Any]:
        (part,) = self._output[index]["content"]
        part[_field_of(part)] += text
        return self._of_part("delta", index, delta=text)

    def _close(self, index: int, status: str) -> Iterator[dict[str, Any]]:
        (part,) = self._output[index]["content"]
        field = _field_of(part)
        yield self._of_part("done", index, **{field: part[field]})
        yield self._of_item("content_part.done", index, content_index=0, part=part)
        self._output[index]["status"] = status
        yield self._event("output_item.done", output_index=index, item=self._output[index])

    def _of_part(self, kind: str, index: int, **fields: Any) -> dict[str, Any]:
        (part,) = self._output[index]["content"]
        if "logprobs" in part:
            fields["logprobs"] = []
        return self._of_item(f"{part['type']}.{kind}", index, content_index=0, **fields)

    def _call(self, call: ToolCall, status: str) -> Iterator[dict[str, Any]]:
        index, name, arguments = len(self._output), call.name, call.arguments
        item = {"type": "function_call", "id": f"fc_{secrets.token_hex(12)}", "call_id": call.id}
        item |= {"name": name, "arguments": "", "status": "in_progress"}
        self._output.append(item)
        yield self._event("output_item.added", output_index=index, item=item)
        yield self._of_item("function_call_arguments.delta", index, delta=arguments)
        yield self._of_item("function_call_arguments.done", index, name=name, arguments=arguments)
        item |= {"arguments": arguments, "status": status}
        yield self._event("output_item.done", output_index=index, item=item)


def _field_of(part: dict[str, Any]) -> str:
    """Return the name of the field with the text of a part."""
    return "refusal" if part["type"] == "refusal" else "text"


class _OutputPart(BaseModel):
    text: str = ""
    refusal: str = ""


class _OutputItem(BaseModel):
    type: str
    content: list[_OutputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None

    @property
    def text(self) -> str:
        return "".join(part.text or part.refusal for part in self.content or ())


class _Answer(BaseModel):
    output: list[_OutputItem] = []
    cut_by: str | None = Field(None, validation_alias=AliasPath("incomplete_details", "reason"))


class _Event(_Answer):
    """An event, or a whole answer, which has no type."""

    type: str = Field("response.completed", max_length=100)
    response: _Answer | None = None


def read(data: bytes) -> Iterator[tuple[int, Delta, str | None]]:
    """Yield the answer of a server from its last event, or from a whole answer."""
    last = parsed(data, _Event)
    if last.type in ("error", "response.failed"):
        raise ServerFailed("an error in a stream")
    if last.type not in ("response.completed", "response.incomplete"):
        return
    answer = last.response or last
    texts = {"message": "", "reasoning": ""}
    calls = []
    for number, item in enumerate(answer.output):
        if item.type in texts:
            texts[item.type] += item.text
        elif item.type == "function_call":
            function = FunctionDelta(item.name, item.arguments)
            calls.append(CallDelta(number, item.call_id, function))
    delta = Delta(content=texts["message"], reasoning=texts["reasoning"], tool_calls=calls)
    yield 0, delta, "length" if answer.cut_by == "max_output_tokens" else "stop"

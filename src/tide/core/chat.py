"""Messages of a chat, and their text as rendered by a chat template, with spans of user messages.

    detox.chat([{"role": "user", "content": "Tell me about your neighbours."}])

By default a search perturbs only the last user message; the template's role markers, the system
prompt and all earlier messages stay unchanged.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from tide.core.errors import InputError, guarded, problem
from tide.core.sanitize import Unread, half_character, readings, strings_of_json

# A private-use character, which encloses the placeholder for user messages while a template is
# analysed.
_MARK = "\ue000"
_THOUGHTS = ("reasoning_content", "reasoning")
# Fields that ask for JSON, or for text that may be JSON: of vLLM, SGLang, llama.cpp, TGI, TabbyAPI
# and NIM.
_FORMS = (
    *("guided_grammar", "guided_json", "guided_regex", "structured_outputs"),
    *("ebnf", "regex", "structural_tag"),
    *("grammar", "json_schema", "response_format"),
    *("grammar_string", "regex_pattern", "nvext"),
)
# Values of such fields that ask for plain text; an empty schema asks for any JSON.
_NO_FORM = (None, "", False, {"type": "text"})


def _encodable(text: str) -> str:
    if (index := half_character(text)) is not None:
        raise ValueError(f"invalid Unicode: lone surrogate at index {index}")
    return text


# Text without lone surrogates, which JSON may contain and UTF-8 cannot encode.
Text = Annotated[str, AfterValidator(_encodable)]


class ToolCall(BaseModel):
    """A tool call. arguments: JSON, as the model wrote it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: Text
    name: Text
    arguments: Text

    @model_validator(mode="before")
    @classmethod
    def _from_wire(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(function := values.get("function"), dict):
            rest = {
                name: value for name, value in values.items() if name not in ("type", "function")
            }
            return {**rest, **function}
        return values

    @model_serializer
    def dump(self) -> dict[str, Any]:
        """Return the call in the format of OpenAI's API."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class Parts(BaseModel):
    """Parts of an answer besides its text.

    is_refusal: whether the text is a refusal in place of an asked form. stop_sequence: the stop
    string that ended the text, if it is known. num_tokens: total number of tokens in these
    parts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    is_refusal: bool = False
    stop_sequence: str | None = None
    num_tokens: int = 0


class Message(BaseModel):
    """One message of a chat. User messages are never empty.

    tool_calls: calls that an assistant made. tool_call_id: the call that a tool message answers.
    An assistant's reasoning (`reasoning_content`, `reasoning`) is accepted and dropped, because
    templates omit it from earlier turns.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: Text
    tool_calls: Annotated[tuple[ToolCall, ...], Field(strict=False)] = ()
    tool_call_id: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_thoughts(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("role") == "assistant":
            return {name: value for name, value in values.items() if name not in _THOUGHTS}
        return values

    @model_validator(mode="after")
    def _of_its_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls: not allowed in a message of the role {self.role}")
        if (self.tool_call_id is None) is (self.role == "tool"):
            raise ValueError("tool_call_id: required for the role tool, not allowed for others")
        return self

    @property
    def texts(self) -> list[str]:
        """The non-empty texts among the content and the names and arguments of tool calls."""
        calls = [text for call in self.tool_calls for text in (call.name, call.arguments)]
        return [text for text in (self.content, *calls) if text]

    @model_serializer
    def dump(self) -> dict[str, Any]:
        """Return the message in the format of OpenAI's API."""
        calls = {"tool_calls": [call.dump() for call in self.tool_calls]} if self.tool_calls else {}
        answers = {} if self.tool_call_id is None else {"tool_call_id": self.tool_call_id}
        return {"role": self.role, "content": self.content, **calls, **answers}


class Chat(BaseModel):
    """A conversation that can be used as a prompt; its last message is not the assistant's.

    asks: request fields that allow more than a plain-text answer (`tools`, `tool_choice`,
    `response_format`, and fields of single servers that ask for JSON or a grammar), as a JSON
    object. Chats are hashable and compare by content.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    messages: tuple[Message, ...] = Field(min_length=1, strict=False)
    asks: str = ""

    @field_validator("messages")
    @classmethod
    def _check_roles(
        cls, messages: tuple[Message, ...], info: ValidationInfo
    ) -> tuple[Message, ...]:
        if (info.context or {}).get("for_server"):
            return messages
        if messages[-1].role == "assistant":
            raise ValueError("the last message must not have the role assistant")
        if not any(message.role == "user" for message in messages):
            raise ValueError("no message has the role user")
        for number, message in enumerate(messages):
            if message.role == "user" and not message.content.strip():
                raise ValueError(f"message {number} (role user) is empty")
        return messages

    @classmethod
    def of(
        cls, messages: Any, asks: Mapping[str, Any] | None = None, *, for_server: bool = False
    ) -> Self:
        """Create a chat from `[{"role": "user", "content": "..."}, ...]`. Raises InputError.

        for_server: the server behind a gateway checks the roles. It may continue a last message of
        the assistant.
        """
        if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
            kind = type(messages).__name__
            raise InputError(
                f'messages: expected a list of {{"role": ..., "content": ...}}, got {kind}'
            )
        try:
            fields = {"messages": tuple(messages), "asks": json.dumps(asks) if asks else ""}
            return cls.model_validate(fields, context={"for_server": for_server})
        except ValidationError as error:
            raise InputError(problem(error)) from None

    @classmethod
    def said(cls, content: str) -> Self:
        """Create a chat with one message, from the user."""
        return cls.of([{"role": "user", "content": content}])

    def dump(self) -> list[dict[str, Any]]:
        """Return the messages in the format that `of` accepts."""
        return [message.dump() for message in self.messages]

    @property
    def asked(self) -> dict[str, Any]:
        """The request fields of `asks`, parsed from JSON."""
        fields: dict[str, Any] = json.loads(self.asks or "{}")
        return fields

    def asking(self, fields: Mapping[str, Any]) -> Self:
        """Return the chat with further request fields in `asks`."""
        if fields.keys() <= self.asked.keys():
            return self
        return self.model_copy(update={"asks": json.dumps({**fields, **self.asked})})

    @property
    def in_parts(self) -> bool:
        """Whether the chat involves tools or a response format; not every engine supports these."""
        return bool(self.asks) or any(
            message.role == "tool" or message.tool_calls for message in self.messages
        )

    @property
    def begun(self) -> str:
        """The beginning of the answer: the text of a last message of the assistant."""
        last = self.messages[-1]
        return last.content if last.role == "assistant" else ""

    @property
    def before_answer(self) -> Self:
        """The chat without messages of the assistant at its end, unless it has no others."""
        others = [i for i, message in enumerate(self.messages) if message.role != "assistant"]
        count = max(others, default=len(self.messages) - 1) + 1
        return self.model_copy(update={"messages": self.messages[:count]})

    @property
    def unanswered(self) -> list[str]:
        """The last user message, and the `readings` of all later messages and tool calls.

        Without a user these are all messages. Raises Unread.
        """
        users = [i for i, message in enumerate(self.messages) if message.role == "user"]
        last = max(users, default=-1)
        texts = [self.messages[last].content] if users else []
        for message in self.messages[last + 1 :]:
            for text in message.texts:
                texts += readings(text)
                with suppress(Unread):  # most results are not JSON
                    texts += strings_of_json(text)
        return list(dict.fromkeys(texts))


def forms_of(server_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that ask a server for JSON, or for text that may be JSON."""
    return {
        name: value
        for name, value in server_fields.items()
        if name.casefold() in _FORMS and value not in _NO_FORM
    }


class Rendered(str):
    """A chat rendered by its template. Engines add no special tokens to this text.

    spans: start and end of each user message in the text, in order.
    """

    __slots__ = ("spans",)
    spans: tuple[tuple[int, int], ...]

    def __new__(cls, text: str, spans: tuple[tuple[int, int], ...] = ()) -> Self:
        rendered = super().__new__(cls, text)
        rendered.spans = spans
        return rendered

    def spans_of(self, tokens: Iterable[tuple[int, int]]) -> list[int]:
        """Return for each token the index of the span that contains all of it, or -1.

        Indices count back from the last span (0). tokens: start and end of each token.
        """
        begins, indices = [begin for begin, _ in self.spans], []
        for begin, end in tokens:
            span = bisect_right(begins, begin)
            within = span > 0 and begin < end <= self.spans[span - 1][1]
            indices.append(len(begins) - span if within else -1)
        return indices


def in_parts(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose content is a list of one text part, for templates that read parts."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        for message in messages
    ]


def render(chat: Chat, template: Callable[[list[dict[str, Any]]], str], model: str) -> Rendered:
    """Render `chat` with `template`, and locate each user message in the rendered text.

    Some templates read a message's content as a list of parts, and fail or leave it out if it is a
    text. So if a user message is lost, the messages are rendered again with their content as parts.
    The template may strip white space from messages. model: name of the model, for errors.
    Raises InputError if the template fails, or omits, repeats or rewrites a user message.
    """
    try:
        return _located(chat, template, model)
    except InputError:
        with suppress(InputError):
            return _located(chat, lambda messages: template(in_parts(messages)), model)
        raise


def _located(chat: Chat, template: Callable[[list[dict[str, Any]]], str], model: str) -> Rendered:
    """Render `chat`, and locate its user messages by a second rendering with placeholders."""
    messages, written = chat.dump(), chat.model_dump_json()
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    # Nobody can write the mark into the messages, as it depends on all of them.
    mark = f"{_MARK}{int(sha256(written.encode()).hexdigest(), 16)}{_MARK}"
    marks = {i: f"{mark}{i}{mark}" for i in users}
    marked = [m | {"content": marks.get(i, m["content"])} for i, m in enumerate(messages)]
    with guarded(InputError, f"messages: the chat template of {model} refuses them"):
        text, frame = template(messages), template(marked)
    # Texts around the user messages, and the numbers of the messages, alternate between the marks.
    first, *parts = frame.split(mark)
    if not text.startswith(first):
        raise _lost(model, users[0])
    position, spans = len(first), []
    for i, mark_number, after in zip(users, parts[::2], parts[1::2], strict=False):
        content = messages[i]["content"]
        # The text after the message shows whether the template stripped its white space.
        for user_text in (content, content.strip(), content.rstrip(), content.lstrip()):
            if mark_number == str(i) and text.startswith(user_text + after, position):
                break
        else:
            raise _lost(model, i)
        spans.append((position, position + len(user_text)))
        position += len(user_text) + len(after)
    if len(spans) < len(users):
        raise _lost(model, users[len(spans)])
    if len(parts) != 2 * len(users) or position != len(text):
        raise _lost(model, users[-1])
    return Rendered(text, tuple(spans))


def as_lines(messages: Sequence[dict[str, Any]]) -> str:
    """Render messages without a chat template, each as a line `ROLE: CONTENT CALLS`."""
    lines = []
    for message in messages:
        calls = [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
        lines.append(" ".join([f"{message['role']}: {message['content']}", *calls]))
    return "\n".join([*lines, "assistant:"])


def _lost(model: str, number: int) -> InputError:
    return InputError(
        f"messages: the chat template of {model} leaves out, repeats or rewrites message {number} "
        "(role user)"
    )

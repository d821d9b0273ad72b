"""HTTP schemas of requests.

A parameter with the value `null` counts as absent. A parameter is refused if it would expose or
accept unscored text. Unknown parameters, also of messages and their parts, are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tide.core.chat import Chat, Text
from tide.core.errors import InputError
from tide.core.http import Rows
from tide.core.sanitize import half_character
from tide.core.settings import COLDEST
from tide.server.answers import Refused

# Parameters that are refused, and why.
_UNSCORED = "would expose or accept unscored text"
_EXPOSING = ("chat_template", "echo", "logprobs", "prompt_embeds", "prompt_logprobs")
_REFUSED = {
    **dict.fromkeys(_EXPOSING, _UNSCORED),
    "functions": "use tools instead",  # a server calls them in a field that is not read
}
# In `chat_template_kwargs`, by which llama.cpp replaces the checked messages.
_REFUSED_IN_TEMPLATE = dict.fromkeys((*_EXPOSING, "messages"), _UNSCORED)
_MOST_NESTED, _MOST_NAMES = 64, 100


def few(names: Any) -> Any:
    # Checked before validation: a report of a fault at each name takes seconds, or the memory.
    if isinstance(names, dict) and len(names) > _MOST_NAMES:
        raise PydanticCustomError("too_long", f"at most {_MOST_NAMES} names")
    return names


def _limited(tokens: int | None) -> int | None:
    return None if tokens == -1 else tokens


def _greedy(temperature: float) -> float:
    return 0.0 if 0 < temperature < COLDEST else temperature


# Where 0 is refused, clients learned to send 1e-6 for it.
Temperature = Annotated[float, AfterValidator(_greedy)]
# An integer, which clients in Lua, R and other languages send as 6.0.
Whole = Annotated[int, Strict(False)]
# A limit of tokens. LM Studio, llama.cpp and Ollama take -1 for none.
MaxTokens = Annotated[Whole | None, AfterValidator(_limited)]


class Wire(BaseModel):
    """Base of requests and their parts. Null counts as absent; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, values: Any) -> Any:
        """Leave out nulls.

        `Messages` is refused, which a server in Go reads in place of the checked `messages`.
        """
        if not isinstance(values, dict):
            return values
        present = {name: value for name, value in values.items() if value is not None}
        known = cls.model_fields  # which is slow to read
        for name in present:
            if name not in known and name.casefold() in known:
                raise PydanticCustomError("case", "write it in lower case", {"param": name})
        return present


class Body(Wire):
    """Base of whole requests. The bound on nesting lets every field be encoded as JSON again.

    refused: fields that are refused, each with the reason or what to do.
    """

    refused: ClassVar[Mapping[str, str]] = _REFUSED

    @model_validator(mode="before")
    @classmethod
    def _is_shallow(cls, values: Any) -> Any:
        level = [values]
        for _ in range(_MOST_NESTED):
            parts = [list(part.values()) if isinstance(part, dict) else part for part in level]
            level = [inner for part in parts if isinstance(part, list) for inner in part]
        if level:
            message = f"nested more than {_MOST_NESTED} levels deep"
            raise PydanticCustomError("nested", message)
        return values

    @model_validator(mode="before")
    @classmethod
    def _has_no_refused(cls, values: Any) -> Any:
        fields = values if isinstance(values, dict) else {}
        for_template = fields.get("chat_template_kwargs")
        if not isinstance(for_template, dict):
            for_template = {}
        for part, refused in ((fields, cls.refused), (for_template, _REFUSED_IN_TEMPLATE)):
            for name, value in part.items():
                reason = refused.get(name.casefold())
                if reason is not None and value is not False and value not in (None, [], ""):
                    raise PydanticCustomError("refused", reason, {"param": name})
        return values


class TideExtensions(Wire):
    """Settings of a request in `extra_body={"tide": {...}}`.

    policy: name of a policy that the API key may use. Unknown settings are refused, because a
    misspelt limit would not be applied.
    """

    model_config = ConfigDict(extra="forbid")

    policy: Text | None = None
    toxicity_threshold: float | None = None
    thresholds: Annotated[dict[Text, float], BeforeValidator(few)] | None = None
    max_iterations: Whole | None = Field(default=None, ge=1, le=100)
    num_samples: Whole | None = Field(default=None, ge=1, le=64)
    deadline: float | None = None
    trace: bool = False


class StreamOptions(Wire):
    include_usage: bool = False


class Generation(Body):
    """Fields of requests for completions and for chat completions. `Settings` checks the values.

    not_passed: fields that the server behind a gateway does not get as they are.
    """

    # `generation.py` sets them.
    not_passed: ClassVar = frozenset(("n", "prompt", "stop", "stream", "stream_options", "tide"))

    model: Text | None = None
    max_tokens: MaxTokens = None
    temperature: Temperature | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_tokens: Whole | None = None
    repetition_penalty: float | None = None
    stop: Text | Rows[Text] | None = None
    seed: Whole | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    logit_bias: dict[str, Any] | list[Any] = {}  # llama.cpp also takes a list of pairs
    n: Whole = Field(default=1, ge=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    tide: Annotated[TideExtensions, BeforeValidator(few)] = TideExtensions()
    _sent: dict[str, Any]

    @model_validator(mode="wrap")
    @classmethod
    def _keep_sent(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        request = handler(values)
        request._sent = values
        return request

    def for_server(self) -> dict[str, Any]:
        """Return the fields that the server behind a gateway gets as the client sent them."""
        return {
            name: value
            for name, value in self._sent.items()
            if name.casefold() not in self.not_passed
        }

    def settings(self) -> dict[str, Any]:
        """Return the settings of the request, under the names of `Settings`."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        values = {
            "max_new_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "min_new_tokens": self.min_tokens,
            "repetition_penalty": self.repetition_penalty,
            "stop": None if stop is None else tuple(filter(None, stop)),
            **self.tide.model_dump(exclude={"trace", "policy"}),
        }
        return {name: value for name, value in values.items() if value is not None}


def _prompts(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and any(isinstance(part, int | list) for part in value):
        raise PydanticCustomError(
            "token_ids", "token ids are not accepted; send the prompt as text, which is scored"
        )
    return value


class CompletionRequest(Generation):
    prompt: Annotated[Rows[Text], BeforeValidator(_prompts)] = Field(min_length=1)

    # Nobody has checked a completion's `messages`.
    not_passed: ClassVar = Generation.not_passed | {"messages"}


def _form(content: Any) -> str:
    return "parts" if isinstance(content, list) else "text"


_Member = TypeVar("_Member")
# A text or a list. Only the errors of the form that the client used are reported.
TextOr = Annotated[
    Annotated[Text, Tag("text")] | Annotated[Rows[_Member], Tag("parts")], Discriminator(_form)
]


class TextPart(Wire):
    """A part of a message of another API, or of a thought of Mistral's models."""

    type: str
    text: Text

    def for_chat(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class ImagePart(Wire):
    """Base of the images in messages of other APIs."""

    def image(self) -> dict[str, Any]:
        """Return the field `image_url` of an image in a chat."""
        raise NotImplementedError

    def for_chat(self) -> dict[str, Any]:
        return {"type": "image_url", "image_url": self.image()}


def text_of(content: str | Sequence[TextPart]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content)


def content_of(content: str | Sequence[TextPart | ImagePart]) -> str | list[dict[str, Any]]:
    """Return the content of a message in a chat: parts if it has images, else a text."""
    if isinstance(content, str):
        return content
    texts = [part for part in content if isinstance(part, TextPart)]
    if len(texts) == len(content):
        return text_of(texts)
    return [part.for_chat() for part in content]


class Part(Wire):
    """A part of a message: a text, a model's refusal, or media (images, audio).

    Media have no text; only the server behind a gateway reads them.
    """

    type: Text
    text: Text | None = None
    refusal: Text | None = None
    thinking: TextOr[TextPart] | None = None

    @property
    def said(self) -> str | None:
        """The text or refusal, or None for media."""
        return {"text": self.text, "refusal": self.refusal}.get(self.type)

    @property
    def thought(self) -> str | None:
        return None if self.thinking is None else text_of(self.thinking)

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if self.type in ("text", "refusal") and self.said is None:
            raise PydanticCustomError("missing", "Field required", {"param": "text"})
        if self.type == "prompt_embeds":
            reason = "would accept unscored text"
            raise PydanticCustomError("unscored", reason, {"param": "type"})
        return self

    def only_text(self, field: str) -> str:
        """Return the text or refusal. Raises Refused for media, which no server reads here.

        field: the name of this part, as errors give it.
        """
        if self.said is None:
            reason = f"parts of type {self.type!r} cannot be scored; send text"
            raise Refused(400, f"{field}.type: {reason}", param=f"{field}.type")
        return self.said


class CalledFunction(Wire):
    name: Text
    arguments: Text


class MessageCall(Wire):
    """A tool call by the assistant, as clients send it back."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextOr[Part] | None = None
    refusal: Text | None = None  # of an assistant that wrote nothing else
    tool_calls: Rows[MessageCall] = []
    tool_call_id: Text | None = None
    function_call: None = None  # the older form of `tool_calls`

    def plain(self) -> dict[str, Any]:
        is_refusal = self.content is None and self.role == "assistant"
        parts = (self.refusal if is_refusal else self.content) or ""
        if isinstance(parts, str):
            text = parts
        else:
            # Servers read parts of other types as text, too: vLLM `input_text` and `thinking`.
            shown = [part.said or part.text or part.thought for part in parts]
            texts = [text for text in shown if text is not None]
            text = "\n".join(texts or [f"[{part.type}]" for part in parts])
        calls = [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in self.tool_calls
        ]
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": text, "tool_calls": calls}
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class Tool(Wire):
    """A tool of a chat. The call of another type than a function could not be read."""

    type: Literal["function"]


class ChatRequest(Generation):
    messages: Rows[ChatMessage] = Field(min_length=1)
    max_completion_tokens: MaxTokens = None  # the newer name of `max_tokens`
    tools: Rows[Tool] = []
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None

    def chat(self, forms: Mapping[str, Any] | None = None) -> Chat:
        """Return the chat to answer. Raises InputError for an invalid chat.

        forms: `forms_of` the fields that the server behind a gateway gets; None without such a
        server, which alone reads parts of messages other than text.
        """
        if forms is None:
            for number, message in enumerate(self.messages):
                parts = message.content if isinstance(message.content, list) else []
                for index, part in enumerate(parts):
                    part.only_text(f"messages.{number}.content.{index}")
        asks: dict[str, Any] = dict(sorted((forms or {}).items()))
        has_tools = self.tools or self.tool_choice not in (None, "none", "auto")
        names = ["tools", "tool_choice", "parallel_tool_calls"] if has_tools else []
        if self.response_format not in (None, {"type": "text"}):
            names.append("response_format")
        asks |= self.model_dump(include={*names}, exclude_unset=True)
        for name, value in asks.items():
            if half_character(json.dumps(value, ensure_ascii=False)) is not None:
                raise InputError(f"{name}: invalid Unicode: a lone surrogate")
        messages = [message.plain() for message in self.messages]
        return Chat.of(messages, asks, for_server=forms is not None)

    def settings(self) -> dict[str, Any]:
        tokens = self.max_completion_tokens
        return super().settings() | ({} if tokens is None else {"max_new_tokens": tokens})


class Translated(Body):
    """A request of another API than OpenAI's completions, which becomes a request for a chat.

    Fields that a subclass does not declare are passed on as fields of the chat. without_effect:
    fields that are left out.
    """

    without_effect: ClassVar[Sequence[str]]

    def fields(self) -> dict[str, Any]:
        """Return the declared fields as fields of a chat; None for those to leave out."""
        raise NotImplementedError

    def for_chat(self) -> ChatRequest:
        """Return the request for a chat. Raises Refused if it is invalid."""
        left_out = self.without_effect
        fields = {
            name: value for name, value in (self.model_extra or {}).items() if name not in left_out
        }
        fields |= {name: value for name, value in self.fields().items() if value is not None}
        if not fields["tools"]:
            del fields["tools"]  # OpenAI and vLLM refuse an empty list
        try:
            return ChatRequest.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            param = str((*first["loc"], first.get("ctx", {}).get("param", "body"))[0])
            raise Refused(400, f"{param}: {first['msg']}", param=param) from None


def function_of(tool: Wire, parameters: Any, described: Iterable[str]) -> dict[str, Any]:
    """Return a tool in the format of chats. described: fields that are copied if they are sent."""
    fields = tool.model_dump(include={*described}, exclude_unset=True)
    if parameters is not None:
        fields["parameters"] = parameters
    return {"type": "function", "function": fields}

"""HTTP schemas of requests, responses and errors.

A parameter with the value `null` counts as absent. A parameter is refused if it would expose or
accept unscored text. Unknown parameters, also of messages and their parts, are ignored.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from starlette.responses import JSONResponse

from tide.core.chat import Chat, Parts, Text
from tide.core.errors import (
    CompletionError,
    ContextLengthError,
    DeadlineError,
    EngineError,
    InputError,
    PromptRefusedError,
    ScorerBrokenError,
    ScorerError,
    ScorerRefusedError,
    ScorerUnavailableError,
)
from tide.core.http import Reply, Rows, ServerFailed
from tide.core.sanitize import half_character, sanitized

if TYPE_CHECKING:
    from tide.server.generation import Sent

# Parameters that are refused, because they would expose or accept unscored text.
_REFUSED = ("chat_template", "echo", "logprobs", "prompt_embeds", "prompt_logprobs")
_MOST_NESTED = 64


class Refused(Exception):
    """The error of a request, as the client sees it.

    again: whether the same request may succeed later. pause: the header `Retry-After`.
    detail: further fields of the error in Google's format.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        code: str | None = None,
        again: bool = False,
        pause: int | str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self._detail = detail or {}
        self.status, self.param, self.again, self.pause = status, param, again, pause
        # The message may quote a lone surrogate from the request, which JSON cannot represent.
        self.body: dict[str, Any] = {
            "message": sanitized(message),
            "type": kind,
            "param": None if param is None else sanitized(param),
            "code": code,
        }

    @classmethod
    def busy(cls, plural: str, pause: int) -> Refused:
        """Return the refusal of a request by a busy server. plural: such as "texts"."""
        message = f"too many {plural} are waiting; try again later"
        return cls(429, message, "rate_limit_error", code="busy", again=True, pause=pause)

    @classmethod
    def by_server(cls, reply: Reply) -> Refused:
        """Return the error that the server behind a gateway answered, without keys."""
        refused = cls(
            reply.status, reply.message(), again=True, pause=reply.headers.get("retry-after")
        )
        for name in ("type", "param", "code"):
            value = reply.error().get(name)
            if value is None or isinstance(value, int | str):
                refused.body[name] = sanitized(value) if isinstance(value, str) else value
        return refused

    @classmethod
    def of(cls, error: Exception, tokens_name: str = "max_tokens") -> Refused:
        """Return the refusal that a client sees for `error`, without details of internal errors.

        tokens_name: the request's name for `max_new_tokens`.
        """
        if isinstance(error, Refused):
            return error
        if isinstance(error, InputError):
            message, field = str(error), error.field
            names = {"max_new_tokens": tokens_name, "min_new_tokens": "min_tokens"}
            for ours, theirs in names.items():
                message = message.replace(ours, theirs)
                field = theirs if field == ours else field
            too_long = isinstance(error, ContextLengthError)
            code = "context_length_exceeded" if too_long else None
            return cls(400, message, param=field, code=code)
        if isinstance(error, PromptRefusedError):
            return cls(400, "the prompt is refused: a scorer finds it toxic", code="content_filter")
        cause = error.__cause__
        of_engine = isinstance(error, CompletionError | EngineError)
        if of_engine and isinstance(cause, ServerFailed) and cause.status >= 400 and cause.reply:
            return cls.by_server(cause.reply)
        for kind, (status, code, message, again) in _FAILURES.items():
            if isinstance(error, kind):
                # An unavailable scorer or engine is probed again within seconds.
                pause = 5 if again else None
                return cls(status, message, "server_error", code=code, again=again, pause=pause)
        return cls(500, "an internal error; see the server's log", "server_error", code="internal")

    def ending(self) -> str:
        """Return the end of a stream of OpenAI's completions that fails after it has begun."""
        return event({"error": self.body}) + DONE

    def for_messages(self) -> dict[str, Any]:
        """Return the error in Anthropic's format."""
        kind = _ANTHROPIC_KINDS.get(self.status, "api_error")
        return {"type": "error", "error": self.body | {"type": kind}}

    def response(self, path: str) -> JSONResponse:
        """Return the response in the format of the API at `path`."""
        headers = {} if self.pause is None else {"retry-after": str(self.pause)}
        if self.status == 401:
            headers["www-authenticate"] = 'Bearer realm="tide"'
        if self.status == 413:  # the rest of the request is not read
            headers["connection"] = "close"
        if not self.again:
            headers["x-should-retry"] = "false"
        content: dict[str, Any] = {"error": self.body}
        if path.startswith("/v1/messages"):
            content = self.for_messages()
        if path.startswith("/v1alpha1/"):
            code = self.body["code"]
            content = {
                "error": {
                    "code": self.status,
                    "message": self.body["message"],
                    "status": _GOOGLE_STATUS.get(self.status, "UNAVAILABLE"),
                    "details": [{**_GOOGLE, "errorType": code, **self._detail}] if code else [],
                }
            }
        return JSONResponse(content, self.status, headers)


DONE = "data: [DONE]\n\n"
_GOOGLE = {"@type": "type.googleapis.com/google.commentanalyzer.v1alpha1.Error"}
_GOOGLE_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    504: "DEADLINE_EXCEEDED",
}
_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_NO_SCORER = "the scorer is unavailable, and unscored text is not sent"
_FAILURES: dict[type[Exception], tuple[int, str, str, bool]] = {
    DeadlineError: (504, "deadline", "out of time before a completion was scored", False),
    ScorerRefusedError: (503, "scorer_refused", "the scorer refuses to answer this server", False),
    ScorerUnavailableError: (503, "scorer_unavailable", _NO_SCORER, True),
    ScorerBrokenError: (503, "scorer_unavailable", _NO_SCORER, True),
    ScorerError: (500, "scorer_error", "the scorer cannot score a text of this request", False),
    CompletionError: (500, "completion_error", "the model cannot complete this prompt", False),
    EngineError: (503, "engine_error", "the language model does not answer", True),
}


class Wire(BaseModel):
    """Base of requests and their parts. Null counts as absent; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _in_lower_case(cls, values: Any) -> Any:
        """Refuse `Messages`, which a server in Go reads in place of the checked `messages`."""
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields and name.casefold() in cls.model_fields:
                raise PydanticCustomError("case", "write it in lower case", {"param": name})
        return values

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class Body(Wire):
    """Base of whole requests. The bound on nesting lets every field be encoded as JSON again."""

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


class TideExtensions(Wire):
    """Settings of a request in `extra_body={"tide": {...}}`.

    policy: name of a policy that the API key may use. Unknown settings are refused, because a
    misspelt limit would not be applied.
    """

    model_config = ConfigDict(extra="forbid")

    policy: Text | None = None
    toxicity_threshold: float | None = None
    thresholds: dict[Text, float] | None = Field(default=None, max_length=100)
    max_iterations: int | None = Field(default=None, ge=1, le=100)
    num_samples: int | None = Field(default=None, ge=1, le=64)
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
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    stop: Text | Rows[Text] | None = None
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    logit_bias: dict[str, Any] = {}
    n: int = Field(default=1, ge=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    tide: TideExtensions = TideExtensions()
    _sent: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_sent(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        request = handler(values)
        if isinstance(values, dict):
            request._sent = values
        return request

    def for_server(self) -> dict[str, Any]:
        """Return the fields that the server behind a gateway gets as the client sent them."""
        return {
            name: value
            for name, value in self._sent.items()
            if name.casefold() not in self.not_passed
        }

    @model_validator(mode="before")
    @classmethod
    def _are_scored(cls, values: Any) -> Any:
        fields = values if isinstance(values, dict) else {}
        for_template = fields.get("chat_template_kwargs")
        for part in (fields, for_template if isinstance(for_template, dict) else {}):
            for name, value in part.items():
                if name.casefold() in _REFUSED and value is not None and value is not False:
                    reason = "would expose or accept unscored text"
                    raise PydanticCustomError("unscored", reason, {"param": name})
        return values

    @property
    def tokens_name(self) -> str:
        """The request's name for `max_new_tokens`."""
        return "max_tokens"

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
            "stop": None if stop is None else tuple(stop),
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


class Part(Wire):
    """A part of a message: a text, a model's refusal, or media (images, audio).

    Media have no text; only the server behind a gateway reads them.
    """

    type: Text
    text: Text | None = None
    refusal: Text | None = None

    @property
    def said(self) -> str | None:
        """The text or refusal, or None for media."""
        return {"text": self.text, "refusal": self.refusal}.get(self.type)

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if self.type in ("text", "refusal") and self.said is None:
            raise PydanticCustomError("missing", "Field required", {"param": "text"})
        return self

    def unread(self) -> str:
        """Return why media are refused where no server reads them."""
        return f"parts of type {self.type!r} cannot be scored; send text"


class CalledFunction(Wire):
    name: Text
    arguments: Text


class MessageCall(Wire):
    """A tool call by the assistant, as clients send it back."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction


class _PassedOn(BaseModel):
    """Base of objects whose unknown fields are passed on to the engine."""

    model_config = ConfigDict(strict=True, extra="allow")


class Function(_PassedOn):
    name: Text


class Tool(_PassedOn):
    type: Literal["function"]
    function: Function


class ResponseFormat(_PassedOn):
    type: Literal["text", "json_object", "json_schema"]


class ChatMessage(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextOr[Part] | None = None  # may be absent if there are tool calls
    refusal: Text | None = None  # of an assistant that wrote nothing else
    tool_calls: Rows[MessageCall] = []
    tool_call_id: Text | None = None

    @property
    def said(self) -> str | list[Part] | None:
        """The content, or the refusal in its place."""
        is_refusal = self.content is None and self.role == "assistant"
        return self.refusal if is_refusal else self.content

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.said is None and not self.tool_calls:
            raise PydanticCustomError("missing", "Field required", {"param": "content"})
        return self

    def plain(self) -> dict[str, Any]:
        parts = self.said or ""
        if isinstance(parts, str):
            text = parts
        else:
            # A server may read a part of another type as text, as vLLM does with `input_text`.
            texts = [shown for part in parts if (shown := part.said or part.text) is not None]
            text = "\n".join(texts or [f"[{part.type}]" for part in parts])
        role = "system" if self.role == "developer" else self.role
        calls = [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in self.tool_calls
        ]
        message = {"role": role, "content": text, "tool_calls": calls}
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class ChatRequest(Generation):
    messages: Rows[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    tools: Rows[Tool] = []
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _has_tools_to_choose(self) -> Self:
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise PydanticCustomError("tools", "needs tools", {"param": "tool_choice"})
        return self

    def chat(self, *, media: bool = False) -> Chat:
        """Return the chat to answer. Raises InputError for an invalid chat.

        media: whether messages may have parts other than text, which only a server reads.
        """
        if not media:
            self._check_only_text()
        asks: dict[str, Any] = {}
        form = self.response_format
        for name, is_asked in {
            **dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls"), bool(self.tools)),
            "response_format": form is not None and form.type != "text",
        }.items():
            if not is_asked or getattr(self, name) is None:
                continue
            asks |= self.model_dump(include={name})
            if half_character(json.dumps(asks[name], ensure_ascii=False)) is not None:
                raise InputError(f"{name}: invalid Unicode: a lone surrogate")
        return Chat.of([message.plain() for message in self.messages], asks)

    def _check_only_text(self) -> None:
        for number, message in enumerate(self.messages):
            parts = message.content if isinstance(message.content, list) else []
            for index, part in enumerate(parts):
                if part.said is None:
                    name = f"messages.{number}.content.{index}.type"
                    raise Refused(400, f"{name}: {part.unread()}", param=name)

    @property
    def tokens_name(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def settings(self) -> dict[str, Any]:
        tokens = self.max_completion_tokens
        return super().settings() | ({} if tokens is None else {"max_new_tokens": tokens})


class Translated(Body):
    """A request of another API than OpenAI's completions, which becomes a request for a chat.

    Fields that a subclass does not declare are passed on as fields of the chat. unsupported: fields
    that are refused, each with what to do. without_effect: fields that are left out.
    """

    unsupported: ClassVar[Mapping[str, str]]
    without_effect: ClassVar[Sequence[str]]
    chat_class: ClassVar[type[ChatRequest]] = ChatRequest

    @model_validator(mode="before")
    @classmethod
    def _is_supported(cls, values: Any) -> Any:
        for name, advice in cls.unsupported.items() if isinstance(values, dict) else ():
            if values.get(name):
                raise PydanticCustomError("unsupported", advice, {"param": name})
        return values

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
        try:
            return self.chat_class.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            param = str((*first["loc"], first.get("ctx", {}).get("param", "body"))[0])
            raise Refused(400, f"{param}: {first['msg']}", param=param) from None


class TextPart(Wire):
    """A part of a message of another API."""

    type: str
    text: Text


def text_of(content: str | Sequence[TextPart]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content)


def function_of(tool: Wire, parameters: Any, described: Iterable[str]) -> dict[str, Any]:
    """Return a tool in the format of chats. described: fields that are copied if they are sent."""
    fields = tool.model_dump(include={*described}, exclude_unset=True)
    if parameters is not None:
        fields["parameters"] = parameters
    return {"type": "function", "function": fields}


def event(data: dict[str, Any]) -> str:
    """Encode an event of a stream in ASCII, so that no character in a text ends the line.

    Events with a `type` are named by it; those of OpenAI's completions have none.
    """
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data, separators=(',', ':'))}\n\n"


class Shape(Protocol):
    """Builds the answer to one request in the format of an API.

    keep_alive: sent while a stream has nothing to send. done: ends a stream.
    """

    keep_alive: str
    done: str

    def whole(
        self, sent: Sequence[Sent], usage: dict[str, int], tide: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the answer without streaming."""

    def piece(self, number: int, text: str) -> str:
        """Return the encoded events for a piece of the text of choice `number`."""

    def end(self, number: int, rest: str, sent: Sent) -> Iterable[dict[str, Any]]:
        """Return the last events of choice `number`. rest: its text after the pieces."""

    def finish(self, usage: dict[str, int], tide: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Return the events after the last choice."""

    def failed(self, error: Refused) -> str:
        """Return the end of a stream that fails after it has begun."""


def _part_fields(parts: Parts) -> dict[str, Any]:
    """Return the fields of a message for reasoning and tool calls."""
    calls = [call.dump() for call in parts.tool_calls]
    return {
        **({"reasoning_content": parts.reasoning} if parts.reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }


_SLOT = "\0"  # no field after the text of a chunk holds this


class ReplyShape:
    """OpenAI's format for completions or chats. counts: whether a stream ends with its usage."""

    keep_alive, done = ": keep-alive\n\n", DONE

    def __init__(self, model: str, *, chat: bool, counts: bool) -> None:
        self._chat, self._counts = chat, counts
        kind = "chat.completion" if chat else "text_completion"
        prefix = "chatcmpl" if chat else "cmpl"
        self._whole = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self._begun: set[int] = set()
        # Of the choices that have begun, what stands before and after a piece of text in its event.
        self._encoded: dict[int, tuple[str, str]] = {}
        self._piece = {**self._whole, "object": "chat.completion.chunk" if chat else kind}

    def whole(
        self, sent: Sequence[Sent], usage: dict[str, int], tide: dict[str, Any]
    ) -> dict[str, Any]:
        choices = [self._choice(number, answer) for number, answer in enumerate(sent)]
        return {**self._whole, "choices": choices, "usage": usage, "tide": tide}

    def _choice(self, index: int, sent: Sent) -> dict[str, Any]:
        parts = sent.parts
        # OpenAI sends null as the content of a message that has only tool calls.
        written = None if parts.tool_calls and not sent.text else sent.text
        message = {"role": "assistant", "content": written, "refusal": None, **_part_fields(parts)}
        content = {"message": message} if self._chat else {"text": sent.text}
        end = {"logprobs": None, "finish_reason": sent.reason, "tide": sent.tide}
        return {"index": index, **content, **end}

    def piece(self, number: int, text: str) -> str:
        parts = self._encoded.get(number)
        if parts is None:  # the first piece, which also has the role
            first = event(self._chunk(number, text))
            before, _, after = event(self._chunk(number, _SLOT)).rpartition(json.dumps(_SLOT))
            self._encoded[number] = before, after
            return first
        return f"{parts[0]}{json.dumps(text)}{parts[1]}"

    def _chunk(
        self, index: int, text: str, reason: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Return a chunk of choice `index` with a piece of its text, or with its end."""
        content: dict[str, Any] = {"text": text}
        if self._chat:
            content = {"delta": {"content": text} if text else {}}
            if index not in self._begun:
                content["delta"]["role"] = "assistant"
                self._begun.add(index)
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        return {**self._piece, "choices": [choice], **more}

    def end(self, number: int, rest: str, sent: Sent) -> Iterator[dict[str, Any]]:
        """Yield the last chunks: reasoning, rest of the text, tool calls, reason."""
        if rest and not self._chat:
            yield self._chunk(number, rest)
        deltas = {"content": rest} | _part_fields(sent.parts) if self._chat else {}
        for name in ("reasoning_content", "content", "tool_calls"):
            if value := deltas.get(name):
                if name == "tool_calls":
                    value = [{"index": position, **call} for position, call in enumerate(value)]
                chunk = self._chunk(number, "")
                chunk["choices"][0]["delta"][name] = value
                yield chunk
        yield self._chunk(number, "", sent.reason, tide=sent.tide)

    def finish(self, usage: dict[str, int], tide: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._counts:
            yield {**self._piece, "choices": [], "usage": usage, "tide": tide}

    def failed(self, error: Refused) -> str:
        return error.ending()

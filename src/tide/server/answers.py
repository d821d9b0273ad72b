"""What is sent: the formats of answers and of errors.

`responses.py` and `messages.py` hold the answers of their APIs.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import JSONResponse

from tide.core.chat import Parts
from tide.core.errors import (
    CompletionError,
    CompletionLateError,
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
from tide.core.http import Reply, ServerFailed
from tide.core.sanitize import sanitized
from tide.engines.openai.upstream import FORBIDDEN

if TYPE_CHECKING:
    from tide.server.generation import Sent


class Refused(Exception):
    """The error of a request, as the client sees it.

    again: whether the same request may succeed later. pause: the header `Retry-After`. headers:
    those that say when to retry.
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
        pause: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.again = status, param, again
        self.headers = {} if pause is None else {"retry-after": str(pause)}
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
        """Return the error that the server behind a gateway answered, without keys.

        If it refuses the gateway's own key, the client's key is not to blame.
        """
        if reply.status in FORBIDDEN:
            message = f"the server behind this gateway refuses its key (HTTP {reply.status})"
            return cls(502, message, "server_error", code="upstream_refused")
        message = reply.message() or f"HTTP {reply.status}"
        refused = cls(reply.status, message, again=True)
        refused.headers = limits_in([reply.headers])
        for name in ("type", "param", "code"):
            value = reply.error().get(name)
            if value is None or isinstance(value, int | str):
                refused.body[name] = sanitized(value) if isinstance(value, str) else value
        return refused

    @classmethod
    def of(cls, error: Exception) -> Refused:
        """Return the refusal that a client sees for `error`, without details of internal errors."""
        if isinstance(error, Refused):
            return error
        if isinstance(error, InputError):
            too_long = isinstance(error, ContextLengthError)
            code = "context_length_exceeded" if too_long else None
            return cls(400, str(error), param=error.field, code=code)
        if isinstance(error, PromptRefusedError):
            return cls(400, _REJECTED, code="content_filter")
        reply = reply_of_server(error)
        if reply is not None:
            return cls.by_server(reply)
        for kind, (status, code, message, again) in _FAILURES.items():
            if isinstance(error, kind):
                # An unavailable scorer or engine is probed again within seconds.
                pause = 5 if again and status == 503 else None
                return cls(status, message, "server_error", code=code, again=again, pause=pause)
        return cls(500, "an internal error; see the server's log", "server_error", code="internal")

    def ending(self) -> str:
        """Return the end of a stream of OpenAI's completions that fails after it has begun."""
        return event({"error": self.body}) + DONE

    def for_messages(self) -> dict[str, Any]:
        """Return the error in Anthropic's format."""
        usual = "invalid_request_error" if self.status < 500 else "api_error"
        error = self.body | {"type": _ANTHROPIC_KINDS.get(self.status, usual)}
        if self.param == "thread":  # Anthropic's tool runner then sends whole conversations
            error["details"] = {"error_code": "thread_unsupported_request"}
        return {"type": "error", "error": error}

    def response(self, path: str) -> JSONResponse:
        """Return the response in the format of the API at `path`."""
        headers = dict(self.headers)
        if self.status == 401:
            headers["www-authenticate"] = 'Bearer realm="tide"'
        if self.status == 413:  # the rest of the request is not read
            headers["connection"] = "close"
        if not self.again:
            headers["x-should-retry"] = "false"
        for ours, theirs in (_SETTINGS | _NAMES.get(path, {})).items():
            for name in ("message", "param"):
                if isinstance(text := self.body[name], str):
                    self.body[name] = re.sub(ours, theirs, text)
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
                    "details": [{**_GOOGLE, "errorType": code}] if code else [],
                }
            }
        return JSONResponse(content, self.status, headers)


def reply_of_server(error: Exception) -> Reply | None:
    """Return the error that the server behind a gateway answered, if it is why a request failed."""
    cause = error.__cause__
    if not isinstance(error, CompletionError | EngineError) or not isinstance(cause, ServerFailed):
        return None
    return cause.reply if cause.status >= 400 else None


def limits_in(answers: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the headers that say how much may be asked, and when again; none of several answers.

    answers: the headers of the answers of a server.
    """
    if len(answers) != 1:
        return {}
    return {
        name: value
        for name, value in answers[0].items()
        if _ABOUT_RETRIES.fullmatch(name) and _WHEN.fullmatch(value)
    }


DONE = "data: [DONE]\n\n"
_GOOGLE = {"@type": "type.googleapis.com/google.commentanalyzer.v1alpha1.Error"}
_GOOGLE_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    504: "DEADLINE_EXCEEDED",
}
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# Headers that OpenAI's and Anthropic's clients read. Neither names nor values are text that a model
# may have written: the values are numbers, durations such as 6m0s, dates.
_ABOUT_RETRIES = re.compile(
    r"retry-after(-ms)?|x-should-retry"
    r"|(x|anthropic)-ratelimit(-(limit|remaining|reset|requests|tokens|input|output)){1,4}"
)
_WHEN = re.compile(
    r"[\d.:smhTZ+-]{1,40}|true|false|[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} [\d :]{13} GMT",
    re.ASCII,
)
# Settings, as requests name them outside of their field `tide`.
_SETTINGS = {
    r"(?<!\.)\bmax_new_tokens\b": "max_tokens",
    r"(?<!\.)\bmin_new_tokens\b": "min_tokens",
}
# The fields of a chat, as errors name them, in requests that become chats.
_NAMES = {
    "/v1/responses": {
        r"^messages(?=[.:]|$)": "input",
        r"\bmax_tokens\b": "max_output_tokens",
        r"\breasoning_effort\b": "reasoning.effort",
        r"\bresponse_format\b": "text.format",
    },
    "/v1/moderations": {r"^messages(?=[.:]|$)": "context"},
    "/v1/messages": {
        r"\bresponse_format\b": "output_config.format",
        r"^stop(?=[.:]|$)": "stop_sequences",
    },
}
# Litellm raises its ContentPolicyViolationError for the first words.
_REJECTED = (
    "the request was rejected as a result of the safety system: a scorer finds the prompt toxic"
)
_NO_SCORER = "the scorer is unavailable, and unscored text is not sent"
_FAILURES: dict[type[Exception], tuple[int, str, str, bool]] = {
    DeadlineError: (504, "deadline", "out of time before a completion was scored", False),
    ScorerRefusedError: (503, "scorer_refused", "the scorer refuses to answer this server", False),
    ScorerUnavailableError: (503, "scorer_unavailable", _NO_SCORER, True),
    ScorerBrokenError: (503, "scorer_unavailable", _NO_SCORER, True),
    ScorerError: (500, "scorer_error", "the scorer cannot score a text of this request", False),
    CompletionLateError: (504, "deadline", "the model did not complete this prompt in time", False),
    CompletionError: (500, "completion_error", "the model failed at this request", True),
    EngineError: (503, "engine_error", "the language model does not answer", True),
}


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
        self, sent: Sequence[Sent], usage: dict[str, Any], tide: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the answer without streaming."""

    def piece(self, number: int, text: str) -> str:
        """Return the encoded events for a piece of the text of choice `number`."""

    def end(self, number: int, rest: str, sent: Sent) -> Iterable[dict[str, Any]]:
        """Return the last events of choice `number`. rest: its text after the pieces."""

    def finish(self, usage: dict[str, Any], tide: dict[str, Any]) -> Iterable[dict[str, Any]]:
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
        self, sent: Sequence[Sent], usage: dict[str, Any], tide: dict[str, Any]
    ) -> dict[str, Any]:
        choices = [self._choice(number, answer) for number, answer in enumerate(sent)]
        return {**self._whole, "choices": choices, "usage": usage, "tide": tide}

    def _choice(self, index: int, sent: Sent) -> dict[str, Any]:
        parts = sent.parts
        message = {"role": "assistant", "content": sent.text, "refusal": None}
        if parts.is_refusal:
            message |= {"content": None, "refusal": sent.text}
        # OpenAI sends null as the content of a message that has only tool calls.
        if parts.tool_calls and not sent.text:
            message["content"] = None
        message |= _part_fields(parts)
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
        deltas: dict[str, Any] = {}
        if self._chat:
            written = "refusal" if sent.parts.is_refusal else "content"
            deltas = {written: rest, **_part_fields(sent.parts)}
        for name in ("reasoning_content", "content", "refusal", "tool_calls"):
            if value := deltas.get(name):
                if name == "tool_calls":
                    value = [{"index": position, **call} for position, call in enumerate(value)]
                chunk = self._chunk(number, "")
                chunk["choices"][0]["delta"][name] = value
                yield chunk
        yield self._chunk(number, "", sent.reason, tide=sent.tide)

    def finish(self, usage: dict[str, Any], tide: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._counts:
            yield {**self._piece, "choices": [], "usage": usage, "tide": tide}

    def failed(self, error: Refused) -> str:
        return error.ending()

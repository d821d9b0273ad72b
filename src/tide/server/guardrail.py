"""Input of litellm's generic guardrail: every text of a request or response, or none.

Text occurs anywhere: in `texts`, in messages, in names, ids and arguments of calls, in tools, and
in fields that are not known here. All strings and all keys are read, also as they are without their
escapes, because arguments of calls are JSON inside of JSON. What cannot be read is blocked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tide.core.strings import Unread, strings
from tide.server.schemas import Text

# Of the call, by litellm itself: nobody says them to the model, and the model says none of them.
_ABOUT_THE_CALL = frozenset((
    "input_type", "litellm_call_id", "litellm_trace_id", "litellm_version", "model", "request_data",
    "request_headers", "additional_provider_specific_params",
))  # fmt: skip
# Words of the protocol, which say nothing wherever they stand.
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
    texts: list[Text] | None = None
    images: list[Any] | None = None
    tool_calls: list[Any] | None = None
    structured_messages: list[Any] | None = None
    # What the guardrail's configuration in litellm says.
    additional_provider_specific_params: dict[str, Any] | None = None

    @property
    def asks_for_rewrite(self) -> bool:
        """Whether failing texts of a response may come back written anew."""
        asked = self.additional_provider_specific_params or {}
        return self.input_type == "response" and asked.get("tide_rewrite") is True

    def said(self) -> list[str]:
        """All texts. Raises Unread for anything else, and where there is nothing."""
        if self.images:
            raise Unread("images: this scorer reads texts")
        if self.texts is None and not self.structured_messages and not self.tool_calls:
            raise Unread("texts: there are none")
        said = {name: value for name, value in self if name not in _ABOUT_THE_CALL}
        try:
            found = dict.fromkeys(strings(said, _check))
        except RecursionError:
            raise Unread("lists or objects are nested too deeply") from None
        return [text for text in found if text and text not in _PROTOCOL]


def _check(value: Mapping[str, Any], where: str) -> None:
    """Raise Unread for an object with content that is no text."""
    # The schema of a tool has nothing but text; its types and names are those of arguments.
    if where.partition(".")[0] == "tools":
        return
    if (kind := value.get("type")) not in _READ:
        raise Unread(f"{where}: {kind!r} is not read")
    for key in _UNREAD:
        if value.get(key):
            raise Unread(f"{where}.{key} is not read" if where else f"{key} is not read")

"""Input of litellm's generic guardrail: every text of a request or response, or none.

Text occurs anywhere: in `texts`, in messages, in names, ids and arguments of calls, in tools, and
in fields that are not known here. All strings and all keys are read, also as they are without their
escapes, because arguments of calls are JSON inside of JSON. What cannot be read is blocked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tide.core.sanitize import half_character
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
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_WHITE = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b"}
# JSON in JSON in JSON: more of it is made to hide something.
_MOST_ESCAPED = 4


class Unread(Exception):
    """The request has content that is not read; the text says what."""


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
            found = dict.fromkeys(_strings(said, ""))
        except RecursionError:
            raise Unread("lists or objects are nested too deeply") from None
        return [text for text in found if text and text not in _PROTOCOL]


def _strings(value: Any, where: str) -> Iterator[str]:
    """Every string and key of a JSON value, with and without escapes. Raises Unread."""
    if isinstance(value, str):
        yield from _readings(value, where)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one, where)
    elif isinstance(value, dict):
        # The schema of a tool has nothing but text; its types and names are those of arguments.
        schema = where.partition(".")[0] == "tools"
        if not schema and (kind := value.get("type")) not in _READ:
            raise Unread(f"{where}: {kind!r} is not read")
        for key, one in value.items():
            yield from _readings(key, where)
            within = f"{where}.{key}" if where else key
            if not schema and key in _UNREAD and one:
                raise Unread(f"{within} is not read")
            yield from _strings(one, within)


def _readings(text: str, where: str) -> Iterator[str]:
    """`text`, and what it says when its escapes are resolved, and theirs. Raises Unread."""
    if half_character(text) is not None:
        raise Unread(f"{where}: holds half a character")
    for _ in range(_MOST_ESCAPED):
        yield text
        text, escaped = _unescaped(text), text
        if text == escaped:
            return
    raise Unread(f"{where}: holds escapes of escapes of escapes")


def _unescaped(text: str) -> str:
    def character(escape: re.Match[str]) -> str:
        code = escape[1] or escape[2]
        return chr(int(code, 16)) if code else _WHITE.get(escape[3], escape[3])

    # Two escapes may be one character.
    pairs = _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass")
    return pairs.decode("utf-16", "replace")

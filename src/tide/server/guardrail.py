"""Input of litellm's generic guardrail: every text of a request or response, or none.

Text occurs in many fields: `texts`, messages, names and arguments of calls, tools. Text in an
unknown field was not read, and what was not read is blocked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tide.core.sanitize import half_character
from tide.server.schemas import Text

# Of a message: whose it is, and not what it says.
_NOT_SAID = ("role", "tool_call_id", "cache_control", "id", "type", "index")
_READ = (None, "text", "refusal", "function", "custom")
_UNREAD = ("audio", "image_url", "input_audio", "file", "video_url")


class Unread(Exception):
    """The request has content that is not read; the text says what."""


class GuardrailRequest(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    input_type: Literal["request", "response"]
    texts: list[Text] | None = None
    images: list[Any] | None = None
    tool_calls: list[Any] | None = None
    tools: list[Any] | None = None
    structured_messages: list[Any] | None = None

    def said(self) -> list[str]:
        """All texts. Raises Unread for anything else, and where there is nothing."""
        if self.images:
            raise Unread("images: this scorer reads texts")
        if self.texts is None and not self.structured_messages and not self.tool_calls:
            raise Unread("texts: there are none")
        found = list(self.texts or ())
        for name, things in (
            ("structured_messages", self.structured_messages),
            ("tool_calls", self.tool_calls),
            ("tools", self.tools),
        ):
            for thing in things or ():
                found += _strings(thing, name)
        return [text for text in dict.fromkeys(found) if text]


def _strings(value: Any, where: str) -> Iterator[str]:
    """Every text of a JSON value, except roles and ids. Raises Unread for anything else."""
    if isinstance(value, str):
        if half_character(value) is not None:
            raise Unread(f"{where}: holds half a character")
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one, where)
    elif isinstance(value, Mapping):
        kind = value.get("type")
        # In the schema of a tool, `type` is that of an argument.
        if kind not in _READ and not where.startswith("tools"):
            raise Unread(f"{where}: {kind!r} is not read")
        for key, one in value.items():
            if key in _UNREAD and one:
                raise Unread(f"{where}.{key} is not read")
            if key not in _NOT_SAID:
                yield from _strings(one, f"{where}.{key}")

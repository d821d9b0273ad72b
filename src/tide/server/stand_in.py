"""Until answers come in blocks: one piece, the whole text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from tide.aio import AsyncDetoxifier
from tide.errors import InputError
from tide.results import Result


async def stream(
    detox: AsyncDetoxifier, prompt: str, **overrides: Any
) -> AsyncGenerator[str | Result, None]:
    result = await detox(prompt, **overrides)
    if result.accepted:
        yield result.text
    yield result


class Chat:
    @staticmethod
    def of(messages: list[dict[str, str]]) -> str:
        if not messages[-1]["content"].strip():
            raise InputError("messages: the last one is empty")
        return "\n".join(f"{one['role']}: {one['content']}" for one in messages) + "\nassistant:"

"""What a server streams of one completion, up to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from tide.core.http import MIB, ServerFailed
from tide.engines.base import FinishReason
from tide.engines.openai.protocol import ChatEvent, TextEvent
from tide.engines.openai.words import LONGEST_TOKEN
from tide.engines.remote.pool import Endpoint, EndpointPool, EndpointRefused

# Why a text ended, as servers call it: the last two are TGI's, "eos" is Together's.
_ENDS: dict[str, FinishReason] = {
    "length": "length",
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
}
# Ends that a server would tell again of the same request.
_REFUSALS = ("content_filter", "tool_calls", "function_call")


async def streamed(
    pool: EndpointPool, endpoint: Endpoint, body: dict[str, Any]
) -> AsyncGenerator[tuple[str, FinishReason | None], None]:
    """What a server streams, up to its end.

    Raises ServerFailed for what cannot be that, and EndpointRefused for an end by a filter or by a
    call of a tool.
    """
    chat = "messages" in body
    path = "/v1/chat/completions" if chat else "/v1/completions"
    kind: type[TextEvent | ChatEvent] = ChatEvent if chat else TextEvent
    most, read = LONGEST_TOKEN * body["max_tokens"], 0
    last: tuple[str, FinishReason] | None = None
    limit = MIB + 4096 * body["max_tokens"]
    async with aclosing(pool.stream(endpoint, path, kind, body, limit=limit)) as events:
        async for event in events:
            for part in event.choices:
                said, told = part.said, part.finish_reason
                if told == "eos_token":
                    said = ""  # TGI writes the token that ends the text, as "</s>"
                end = _ENDS.get(told) if told else None  # "" before the end: Ollama, LocalAI, TGI
                read += len(said)
                if read > most:
                    raise ServerFailed(f"wrote more than {body['max_tokens']} tokens")
                if told in _REFUSALS:
                    raise EndpointRefused(f"ended the text by {told}")
                if told and end is None:
                    raise ServerFailed(f"ended a text by {told!r}")
                if last is not None:
                    # Some tell an end twice, and Azure a filter's results after it.
                    if (said, end) not in (("", None), ("", last[1]), last):
                        raise ServerFailed("wrote on after the end that it told")
                elif end is not None:
                    last = said, end
                else:
                    yield said, None
    if last is None:
        raise ServerFailed("ended a completion without saying why (no finish_reason)")
    yield last

"""What a server streams of one completion, up to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from tide.core.errors import CompletionError
from tide.core.http import MIB, ServerFailed
from tide.engines.base import FinishReason
from tide.engines.openai.protocol import ChatEvent, TextEvent
from tide.engines.openai.words import LONGEST_TOKEN
from tide.engines.remote.pool import Endpoint, EndpointPool, EndpointRefused

# HTTP statuses of one request that a server does not take, where it takes others.
_NOT_THIS_ONE = (400, 413, 422)


async def streamed(
    pool: EndpointPool, endpoint: Endpoint, body: dict[str, Any]
) -> AsyncGenerator[tuple[str, FinishReason | None], None]:
    """What a server streams, up to its end. Raises ServerFailed for what cannot be that."""
    chat = "messages" in body
    path = "/v1/chat/completions" if chat else "/v1/completions"
    kind: type[TextEvent | ChatEvent] = ChatEvent if chat else TextEvent
    most, read = LONGEST_TOKEN * body["max_tokens"], 0
    last: tuple[str, FinishReason] | None = None
    limit = MIB + 4096 * body["max_tokens"]
    try:
        async with aclosing(pool.stream(endpoint, path, kind, body, limit=limit)) as events:
            async for event in events:
                for part in event.choices:
                    read += len(part.said)
                    if last is not None:
                        raise ServerFailed("wrote on after the end that it told")
                    if read > most:
                        raise ServerFailed(f"wrote more than {body['max_tokens']} tokens")
                    if part.finish_reason is None:
                        yield part.said, None
                    else:
                        last = part.said, part.finish_reason
    except EndpointRefused as error:
        if error.status in _NOT_THIS_ONE:
            raise CompletionError(f"{endpoint.url}: {error}") from None
        raise
    if last is None:
        raise ServerFailed("ended a completion without saying why (no finish_reason)")
    yield last

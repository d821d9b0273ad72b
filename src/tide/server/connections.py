"""Timeout for the headers of a request.

The gate limits bodies, but sees a request only after its headers. A client that sends its headers
slowly, or half of them, would hold its connection for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 30.0  # for the head of a request, from the connection or from the head's first byte

_Base: Any = AutoHTTPProtocol


class HeaderTimeoutProtocol(_Base):  # type: ignore[misc]
    """Uvicorn's installed HTTP protocol, with a timeout for headers."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # a head has ended
            self._stop()
        elif self._timer is None and before is not None and before.response_complete:
            # The next one has begun.
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.transport.close()

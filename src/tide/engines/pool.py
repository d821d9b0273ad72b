"""Base class of engines whose model runs on a pool of servers."""

from __future__ import annotations

import asyncio
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tide.core.http import read_key
from tide.core.pool import Endpoint, EndpointPool
from tide.engines.base import Engine


class PooledEngine(Engine):
    """Passes `_admit` and `_check` to an `EndpointPool` as `admit` and `check`."""

    in_process: ClassVar = False
    pool: EndpointPool

    def _connect(
        self, urls: str | Sequence[str], timeout: float, deadline: float, key_env: str
    ) -> None:
        """Make and start the pool; raises EngineError if no server can be used."""
        self._capacity = asyncio.Semaphore(self.max_batch)
        me = weakref.proxy(self)  # the pool's tasks run until the engine is collected
        gates = lambda one: me._admit(one), lambda one: me._check(one)  # noqa: PLW0108
        self.pool = EndpointPool(urls, *gates, timeout, deadline, api_key=read_key(key_env))
        try:
            self.portal.run(self.pool.start)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    async def _admit(self, endpoint: Endpoint) -> None: ...

    @abstractmethod
    async def _check(self, endpoint: Endpoint) -> None: ...

    @property
    def available(self) -> bool:
        return not self.closed and self.pool.available

    async def _free(self) -> None:
        await self.pool.close()

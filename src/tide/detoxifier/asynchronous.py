"""The asyncio API: concurrent calls share the engine's batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from tide.core.chat import Chat
from tide.core.concurrency import Mailbox
from tide.core.errors import EngineError
from tide.core.results import Result
from tide.detoxifier.base import CLOSED, DetoxifierBase, result_of

if TYPE_CHECKING:
    from tide.core.settings import Overrides

_Done = TypeVar("_Done")


class AsyncDetoxifier(DetoxifierBase):
    """`Detoxifier` for asyncio. Concurrent calls share batches of the engine and of the scorer.

        async with AsyncDetoxifier("my-model", scorer="hf:unitary/toxic-bert#toxic") as detox:
            results = await asyncio.gather(*(detox(prompt) for prompt in prompts))

    It takes the arguments of `Detoxifier`. The result of a call does not depend on other calls.
    Calls may come from several event loops, and each call may override settings. The model runs in
    another thread, so the caller's event loop stays free.
    """

    async def __call__(self, prompt: str | Chat, **overrides: Unpack[Overrides]) -> Result:
        """Complete one prompt, or answer a chat, as `Detoxifier` does.

        Cancelling the call frees its place in the batch at the next step; its text is not scored
        afterwards.
        """
        result = await self._awaited(self._start(prompt, *self._resolve(overrides)))
        return self._warn_if_not_accepted(result)

    async def chat(self, messages: Sequence[Any], **overrides: Unpack[Overrides]) -> Result:
        """Answer a conversation, like `Detoxifier.chat`."""
        return await self(Chat.of(messages), **overrides)

    def stream(self, prompt: str | Chat, **overrides: Unpack[Overrides]) -> AsyncTextStream:
        """Like `Detoxifier.stream`. Closing the stream, or cancelling its reader, ends the work."""
        texts: Mailbox[str] = Mailbox()
        future = self._start(prompt, *self._resolve(self._for_stream(overrides)), on_text=texts.put)
        future.add_done_callback(texts.end)
        return AsyncTextStream(texts, future)

    async def _awaited(self, future: Future[_Done]) -> _Done:
        """Return the result of started work; cancelling the call cancels the work."""
        done = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if done.cancelled() and not (task and task.cancelling()):  # by `close` alone
                raise EngineError(CLOSED) from None
            raise
        finally:
            future.cancel()

    async def aclose(self) -> None:
        """Like `close`, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


class AsyncTextStream:
    """Iterates over the accepted parts of a text. Closing the stream ends the work."""

    def __init__(self, texts: Mailbox[str], future: Future[Result]) -> None:
        self._texts, self._future = texts.__aiter__(), future

    @property
    def result(self) -> Result:
        """The result, available once all parts were read; its text joins the parts."""
        if not self._future.done():
            raise EngineError("the text is not complete yet; iterate over the stream first")
        return result_of(self._future)

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        try:
            return await anext(self._texts)
        except StopAsyncIteration:
            result_of(self._future)  # raises the error of the work
            raise
        except asyncio.CancelledError:
            self._future.cancel()
            raise

    async def aclose(self) -> None:
        """End the work, if the work is still running."""
        self._future.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._future.cancel()

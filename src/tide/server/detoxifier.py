"""A policy's detoxifier: it also lets the model write unscored drafts, and repairs texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tide.core.concurrency import Mailbox
from tide.detoxifier.asynchronous import AsyncDetoxifier, AsyncTextStream
from tide.detoxifier.base import NUMBERS
from tide.scorers.scoring import Scoring
from tide.scorers.wrappers.base import MaxScorer
from tide.server.monitor import Draft, Forecast, MonitoredAnswer, forecast
from tide.server.rewrite import rewrite

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tide.core.chat import Chat
    from tide.core.settings import Overrides
    from tide.scorers import Scorer


class ServedDetoxifier(AsyncDetoxifier):
    """Takes the arguments of `Detoxifier`."""

    def draft(
        self, prompt: str | Chat, *, in_pieces: bool = False, **overrides: Unpack[Overrides]
    ) -> AsyncTextStream[Draft]:
        """The model's own text, unscored, for `forecast`.

        in_pieces: yield pieces as the model writes them; otherwise only `result` has the text.
        """
        texts: Mailbox[str] = Mailbox()
        on_text = texts.put if in_pieces else None
        settings, strategy = self._resolve(overrides)
        priority = next(NUMBERS)

        async def work() -> Draft:
            async with self._capacity:
                (task,) = await self._tasks(prompt, settings, strategy, priority, [0], on_text)
                return await MonitoredAnswer(task, self.engine, self._scoring).write()

        future = self._begin(work)
        future.add_done_callback(texts.end)
        return AsyncTextStream(texts, future)

    async def forecast(self, prompt: str | Chat, draft: Draft) -> Forecast:
        """The outcome that enforcing would have had if the model had written this draft.

        Raises PromptRefusedError for a prompt that would have been refused, and ScorerError.
        """

        async def work() -> Forecast:
            await self._check_prompt(prompt, draft.task.settings)
            return await forecast(draft, self.engine, self._scoring)

        return await self._finished(work)

    async def rewrite(
        self, text: str, beside: Scorer, **overrides: Unpack[Overrides]
    ) -> str | None:
        """A finished text whose failing sentences are rewritten from the blamed word on.

        beside: a further scorer that the text must pass. Returns None if no repair is found. Raises
        TideError: CompletionError for a text that the model cannot read unchanged.
        """
        settings, strategy = self._resolve(overrides)
        priority = next(NUMBERS)

        async def work() -> str | None:
            scoring = Scoring(MaxScorer([self.scorer, beside]))
            try:
                async with self._capacity:
                    return await rewrite(text, settings, strategy, priority, self.engine, scoring)
            finally:
                scoring.close()

        return await self._finished(work)

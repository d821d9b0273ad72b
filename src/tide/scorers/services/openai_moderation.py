"""`openai-moderation`: the moderation endpoint, through the `openai` client.

OPENAI_API_KEY holds the key, OPENAI_BASE_URL another server's address, OPENAI_MODERATION_QPS the
requests a second (5).
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from typing import Any

from tide.errors import InputError, ScorerError, ScorerRefused
from tide.keys import need_key
from tide.registry import require
from tide.scorers.services.base import (
    RemoteScorer,
    TransientError,
    place_of,
    rate_from,
    retry_after,
)

URL = "https://api.openai.com/v1"
# What comes nearest to "rude or disrespectful": the other categories are about other harms.
CATEGORIES = ("harassment", "harassment/threatening", "hate", "hate/threatening")


class OpenAIModerationScorer(RemoteScorer):
    """The largest score among `categories`, in [0, 1].

    model: a dated one, so that scores stay comparable. These scores are not calibrated like
    Perspective's; `tide scorers calibrate` fits them to labels. Settings: see RemoteScorer.

    Raises InputError without a key or for a category that the model does not know.
    """

    batch_size = 32

    def __init__(
        self,
        model: str = "omni-moderation-2024-09-26",
        *,
        categories: tuple[str, ...] = CATEGORIES,
        key: str | None = None,
        url: str | None = None,
        queries_per_second: float | None = None,
        concurrency: int | None = None,
        timeout: float = 30.0,
        attempts: int = 6,
        backoff: float = 1.0,
    ) -> None:
        self._openai: Any = require("openai", extra="openai")
        self._key = need_key("OPENAI_API_KEY", key)
        self._url = (url or os.environ.get("OPENAI_BASE_URL") or URL).rstrip("/")
        place = place_of(self._url, "openai-moderation")
        self._model = model
        self._categories = categories
        self._timeout = timeout
        chosen = "" if categories == CATEGORIES else f"#{','.join(categories)}"
        where = "" if self._url == URL else f"@{place}"
        super().__init__(
            f"openai-moderation:{model}{chosen}{where}",
            place,
            queries_per_second=rate_from("OPENAI_MODERATION_QPS", queries_per_second, 5.0),
            concurrency=concurrency,
            attempts=attempts,
            backoff=backoff,
        )

    def _client(self) -> AbstractAsyncContextManager[Any]:
        client: AbstractAsyncContextManager[Any] = self._openai.AsyncOpenAI(
            api_key=self._key.get_secret_value(),
            base_url=self._url,
            timeout=self._timeout,
            max_retries=0,
        )
        return client

    async def _ask(self, client: Any, texts: list[str]) -> list[float]:
        openai = self._openai
        try:
            answer = await client.moderations.create(model=self._model, input=texts)
            rows = [result.category_scores.model_dump(by_alias=True) for result in answer.results]
        except openai.APITimeoutError:
            raise TransientError(f"no answer within {self._timeout:g} seconds") from None
        except openai.APIConnectionError as error:
            raise TransientError(f"no answer: {type(error.__cause__ or error).__name__}") from None
        except openai.APIStatusError as error:
            raise self._meaning(error, len(texts)) from None
        except (openai.APIError, ValueError, TypeError, AttributeError):
            raise TransientError("an answer without scores") from None
        if len(rows) != len(texts):
            raise TransientError(f"{len(rows)} scores for {len(texts)} texts")
        missing = [name for name in self._categories if rows[0].get(name) is None]
        if missing:
            raise InputError(
                f"scorer {self.name}: no category {missing[0]!r}; it has {', '.join(rows[0])}"
            )
        return [max(row[name] for name in self._categories) for row in rows]

    def _meaning(self, error: Any, texts: int) -> Exception:
        """What a status other than 200 means. Messages are not quoted: they may hold the key."""
        status, code = error.status_code, str(error.code or "")
        what = f"HTTP {status}{f' {code}' if code.replace('_', '').isalpha() else ''}"
        if code != "insufficient_quota" and (status in (408, 409, 429) or status >= 500):
            return TransientError(what, retry_after(error.response))
        if status == 400:
            return ScorerError(f"scorer {self.name}: {what} (a request of {texts} texts)")
        return ScorerRefused(
            f"scorer {self.name}: {what}; check OPENAI_API_KEY, its credit, and the model's name"
        )

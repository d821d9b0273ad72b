"""`openai-moderation`: OpenAI's moderation endpoint.

OPENAI_API_KEY holds the key, OPENAI_BASE_URL another server's address, OPENAI_MODERATION_QPS the
requests a second (5).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tide.core.credentials import need_key
from tide.core.errors import ScorerError, ScorerRefusedError
from tide.core.http import Client, Reply, Rows, ServerFailed
from tide.core.results import Score
from tide.plugins.options import checked
from tide.scorers.services.base import (
    Rate,
    RemoteScorer,
    Said,
    code_of,
    place_of,
    rate_from,
    url_from,
)

URL = "https://api.openai.com/v1"
# Categories nearest to "rude or disrespectful"; the others are about other harms.
CATEGORIES = ("harassment", "harassment/threatening", "hate", "hate/threatening")


class _Result(BaseModel):
    category_scores: dict[str, Score | None]


class _ModerationReply(BaseModel):
    results: Rows[_Result]


class OpenAIModerationScorer(RemoteScorer):
    """The largest score among `categories`, in [0, 1].

    `openai-moderation:MODEL#CATEGORY,CATEGORY` chooses others; each is an attribute. model: a dated
    one, so that scores stay comparable. These scores are not calibrated like
    Perspective's; `tide scorers calibrate` fits them to labels. Settings: see RemoteScorer.

    Raises InputError without a key, and ScorerError for a category that the model does not know.
    """

    batch_size = 32

    @checked
    def __init__(
        self,
        model: str = "omni-moderation-2024-09-26",
        *,
        categories: tuple[str, ...] = CATEGORIES,
        key: str | None = None,
        url: str | None = None,
        queries_per_second: Rate | None = None,
        **options: Any,
    ) -> None:
        self._key = need_key("OPENAI_API_KEY", key)
        url = url_from("OPENAI_BASE_URL", url, URL)
        self._model, _, named = model.partition("#")
        self.attributes = categories = tuple(named.split(",")) if named else categories
        chosen = "" if categories == CATEGORIES else f"#{','.join(categories)}"
        where = "" if url == URL else f"@{place_of(url)}"
        super().__init__(
            f"openai-moderation:{self._model}{chosen}{where}",
            url,
            queries_per_second=rate_from("OPENAI_MODERATION_QPS", queries_per_second, 5.0),
            **options,
        )

    def _client(self) -> Client:
        headers = {"Authorization": f"Bearer {self._key.get_secret_value()}"}
        return Client(self._timeout, headers=headers)

    async def _ask(self, client: Client, texts: list[str]) -> list[Said]:
        reply = await client.ask(
            "POST", f"{self._url}/moderations", {"model": self._model, "input": texts}
        )
        if reply.status != 200:
            raise self._meaning(reply, len(texts))
        rows = [result.category_scores for result in reply.parse(_ModerationReply).results]
        if len(rows) != len(texts):
            raise ServerFailed(f"{len(rows)} scores for {len(texts)} texts")
        return [self._read(row) for row in rows]

    def _read(self, row: dict[str, float | None]) -> Said:
        scores = {}
        for name in self.attributes:
            if (score := row.get(name)) is None:
                has = ", ".join(row)
                raise ScorerError(f"scorer {self.name}: no category {name!r}; it has {has}")
            scores[name] = score
        return Said(max(scores.values()), scores)

    def _meaning(self, reply: Reply, texts: int) -> Exception:
        """The error for a status other than 200."""
        code = code_of(reply)
        what = f"HTTP {reply.status}{f' {code}' if code else ''}"
        if reply.passing and code != "insufficient_quota":
            return ServerFailed(what, reply.pause(0.0))
        if reply.status == 400:
            return ScorerError(f"scorer {self.name}: {what} (a request of {texts} texts)")
        return ScorerRefusedError(
            f"scorer {self.name}: {what}; check OPENAI_API_KEY, its credit, and the model's name"
        )

"""`openai-moderation`: OpenAI's moderation endpoint.

OPENAI_API_KEY holds the key, OPENAI_BASE_URL another server's address, OPENAI_MODERATION_QPS the
requests per second (default 5).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tide.core.errors import ScorerError
from tide.core.http import Client, Rows, need_key
from tide.core.results import Score
from tide.plugins.options import checked
from tide.scorers.base import TextScore
from tide.scorers.services.base import RemoteScorer, place_of, url_from

URL = "https://api.openai.com/v1"
# Categories nearest to "rude or disrespectful"; the other categories concern other harms.
CATEGORIES = ("harassment", "harassment/threatening", "hate", "hate/threatening")


class _Result(BaseModel):
    category_scores: dict[str, Score | None]


class _ModerationReply(BaseModel):
    results: Rows[_Result]


class OpenAIModerationScorer(RemoteScorer):
    """The largest score among `categories`, in [0, 1].

    `openai-moderation:MODEL#CATEGORY,CATEGORY` chooses other categories. Each category is an
    attribute. model: by default a dated version, so that scores stay comparable. The scores are not
    calibrated like Perspective's. Settings: see RemoteScorer.

    Raises InputError without a key, and ScorerError for a category that the model does not know.
    """

    batch_size = 32
    rate_variable, usual_rate = "OPENAI_MODERATION_QPS", 5.0
    check = "OPENAI_API_KEY, its credit, and the model's name"

    @checked
    def __init__(
        self,
        model: str = "omni-moderation-2024-09-26",
        *,
        categories: tuple[str, ...] = CATEGORIES,
        key: str | None = None,
        url: str | None = None,
        **options: Any,
    ) -> None:
        self._key = need_key("OPENAI_API_KEY", key)
        url = url_from("OPENAI_BASE_URL", url, URL)
        self._model, _, named = model.partition("#")
        self.attributes = categories = tuple(named.split(",")) if named else categories
        self.highest_of = categories
        chosen = "" if categories == CATEGORIES else f"#{','.join(categories)}"
        where = "" if url == URL else f"@{place_of(url)}"
        super().__init__(f"openai-moderation:{self._model}{chosen}{where}", url, **options)

    async def _ask(self, client: Client, texts: list[str]) -> list[TextScore]:
        body = {"model": self._model, "input": texts}
        reply = await self._request(client, "/moderations", _ModerationReply, body, texts)
        return [self._read(result.category_scores) for result in reply.results]

    def _read(self, row: dict[str, float | None]) -> TextScore:
        scores = {}
        for name in self.attributes:
            if (score := row.get(name)) is None:
                has = ", ".join(category for category, value in row.items() if value is not None)
                raise ScorerError(f"scorer {self.name}: no category {name!r}; it has {has}")
            scores[name] = score
        return TextScore(max(scores.values()), scores)

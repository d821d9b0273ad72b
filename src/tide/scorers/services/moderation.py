"""Moderation services: `openai-moderation` and `azure-content-safety`.

OPENAI_API_KEY holds OpenAI's key, OPENAI_BASE_URL another server's address.
AZURE_CONTENT_SAFETY_KEY holds the key of Azure AI Content Safety, AZURE_CONTENT_SAFETY_ENDPOINT the
address of the resource. OPENAI_MODERATION_QPS and AZURE_CONTENT_SAFETY_QPS limit the requests
per second (default 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretStr

from tide.core.errors import InputError, ScorerError
from tide.core.http import Client, Rows, ServerFailed, need_key
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
    calibrated like Perspective's; `tide scorers calibrate` fits them to labels. Settings: see
    RemoteScorer.

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
        chosen = "" if categories == CATEGORIES else f"#{','.join(categories)}"
        where = "" if url == URL else f"@{place_of(url)}"
        super().__init__(f"openai-moderation:{self._model}{chosen}{where}", url, **options)

    async def _ask(self, client: Client, texts: list[str]) -> list[TextScore]:
        body = {"model": self._model, "input": texts}
        reply = await self._request(client, "/moderations", _ModerationReply, body, texts)
        rows = [result.category_scores for result in reply.results]
        if len(rows) != len(texts):
            raise ServerFailed(f"the server returned {len(rows)} scores for {len(texts)} texts")
        return [self._read(row) for row in rows]

    def _read(self, row: dict[str, float | None]) -> TextScore:
        scores = {}
        for name in self.attributes:
            if (score := row.get(name)) is None:
                has = ", ".join(one for one, value in row.items() if value is not None)
                raise ScorerError(f"scorer {self.name}: no category {name!r}; it has {has}")
            scores[name] = score
        return TextScore(max(scores.values()), scores)


AZURE_CATEGORIES = ("Hate", "SelfHarm", "Sexual", "Violence")
AZURE_VERSION = "2024-09-01"
# The highest of the eight severity levels that are requested.
_WORST = 7
# "The default maximum length for text submissions is 10K characters."
MAX_CHARACTERS = 10_000


class _Category(BaseModel):
    category: str
    severity: Annotated[int, Field(ge=0, le=_WORST)]


class _AzureReply(BaseModel):
    categories: Rows[_Category] = Field(alias="categoriesAnalysis")


class AzureContentSafetyScorer(RemoteScorer):
    """The largest severity among `categories`, divided by 7 (eight levels: 0, 1/7, ... 1).

    categories: one or more of Hate, SelfHarm, Sexual and Violence, comma-separated; each category
    is an attribute. Azure calls severity 4 (score 0.57) medium. Texts over 10,000 characters are an
    error (use windows:). Settings: see RemoteScorer.

    Raises InputError without a key or an address.
    """

    rate_variable, usual_rate = "AZURE_CONTENT_SAFETY_QPS", 5.0
    check = "AZURE_CONTENT_SAFETY_KEY and AZURE_CONTENT_SAFETY_ENDPOINT"
    _key: SecretStr

    @checked
    def __init__(
        self,
        categories: str = "Hate,Violence",
        *,
        key: str | None = None,
        url: str | None = None,
        **options: Any,
    ) -> None:
        self._key = need_key("AZURE_CONTENT_SAFETY_KEY", key)
        self.attributes = tuple(dict.fromkeys(categories.split(",")))
        if unknown := [name for name in self.attributes if name not in AZURE_CATEGORIES]:
            raise InputError(
                f"scorer azure-content-safety: no category {unknown[0]!r}; there are "
                f"{', '.join(AZURE_CATEGORIES)}"
            )
        url = url_from("AZURE_CONTENT_SAFETY_ENDPOINT", url, "")
        super().__init__(
            f"azure-content-safety:{','.join(self.attributes)}@{AZURE_VERSION}@{place_of(url)}",
            url,
            **options,
        )

    def _score_each(self, texts: Sequence[str]) -> list[TextScore]:
        if any(len(text) > MAX_CHARACTERS for text in texts):
            raise ScorerError(
                f"scorer {self.name}: a text is longer than {MAX_CHARACTERS:,} characters; shorten "
                "it, or use windows:azure-content-safety"
            )
        return super()._score_each(texts)

    def _client(self) -> Client:
        headers = {"Ocp-Apim-Subscription-Key": self._key.get_secret_value()}
        return Client(self._timeout, headers=headers)

    async def _ask(self, client: Client, texts: list[str]) -> list[TextScore]:
        body = {
            "text": texts[0],
            "categories": list(self.attributes),
            "outputType": "EightSeverityLevels",
        }
        path = f"/contentsafety/text:analyze?api-version={AZURE_VERSION}"
        analysis = (await self._request(client, path, _AzureReply, body, texts)).categories
        found = {one.category: one.severity / _WORST for one in analysis}
        if len(found) != len(analysis) or any(name not in found for name in self.attributes):
            raise ServerFailed("the answer lacks or repeats a requested category")
        scores = {name: found[name] for name in self.attributes}
        return [TextScore(max(scores.values()), scores)]

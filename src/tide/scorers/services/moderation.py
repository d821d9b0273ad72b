"""Moderation services: `openai-moderation` and `azure-content-safety`.

OPENAI_API_KEY holds the key of the first, OPENAI_BASE_URL another server's address.
AZURE_CONTENT_SAFETY_KEY holds the key of Azure AI Content Safety, AZURE_CONTENT_SAFETY_ENDPOINT the
address of the resource. OPENAI_MODERATION_QPS and AZURE_CONTENT_SAFETY_QPS are the requests a
second (5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from tide.core.errors import InputError, ScorerError, ScorerRefusedError
from tide.core.http import Client, Reply, Rows, ServerFailed, need_key
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
        return Client(self._timeout, key=self._key)

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


AZURE_CATEGORIES = ("Hate", "SelfHarm", "Sexual", "Violence")
AZURE_VERSION = "2024-09-01"
# Severities are 0 to 7 where eight levels are asked for.
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

    categories: some of Hate, SelfHarm, Sexual and Violence, comma-separated; each is an attribute.
    Azure calls severity 4 medium, which is 0.57 here. Longer texts than 10,000 characters are an
    error (use windows:). Settings: see RemoteScorer.

    Raises InputError without a key or an address.
    """

    @checked
    def __init__(
        self,
        categories: str = "Hate,Violence",
        *,
        key: str | None = None,
        url: str | None = None,
        queries_per_second: Rate | None = None,
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
            queries_per_second=rate_from("AZURE_CONTENT_SAFETY_QPS", queries_per_second, 5.0),
            **options,
        )

    def _said(self, texts: Sequence[str]) -> list[Said]:
        if any(len(text) > MAX_CHARACTERS for text in texts):
            raise ScorerError(
                f"scorer {self.name}: a text is longer than {MAX_CHARACTERS:,} characters; shorten "
                "it, or use windows:azure-content-safety"
            )
        return super()._said(texts)

    def _client(self) -> Client:
        headers = {"Ocp-Apim-Subscription-Key": self._key.get_secret_value()}
        return Client(self._timeout, headers=headers)

    async def _ask(self, client: Client, texts: list[str]) -> list[Said]:
        reply = await client.ask(
            "POST",
            f"{self._url}/contentsafety/text:analyze?api-version={AZURE_VERSION}",
            {
                "text": texts[0],
                "categories": list(self.attributes),
                "outputType": "EightSeverityLevels",
            },
        )
        if reply.passing:
            raise ServerFailed(f"HTTP {reply.status}", reply.pause(0.0))
        if reply.status != 200:
            raise self._meaning(reply, texts[0])
        said = reply.parse(_AzureReply).categories
        found = {one.category: one.severity / _WORST for one in said}
        if len(found) != len(said) or any(name not in found for name in self.attributes):
            raise ServerFailed("an answer without each category that was asked for, once")
        scores = {name: found[name] for name in self.attributes}
        return [Said(max(scores.values()), scores)]

    def _meaning(self, reply: Reply, text: str) -> ScorerError:
        """The error for a status other than 200."""
        code = code_of(reply)
        what = f"scorer {self.name}: HTTP {reply.status}{f' {code}' if code else ''}"
        if reply.status == 400:
            return ScorerError(f"{what} ({len(text)} characters)")
        return ScorerRefusedError(
            f"{what}; check AZURE_CONTENT_SAFETY_KEY and AZURE_CONTENT_SAFETY_ENDPOINT"
        )

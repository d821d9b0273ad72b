"""`azure-content-safety`: the text analysis of Azure AI Content Safety.

AZURE_CONTENT_SAFETY_ENDPOINT holds the address of the resource, AZURE_CONTENT_SAFETY_KEY its key,
AZURE_CONTENT_SAFETY_QPS the requests a second (5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from tide.core.credentials import need_key
from tide.core.errors import InputError, ScorerError, ScorerRefusedError
from tide.core.http import Client, Reply, Rows, ServerFailed
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

CATEGORIES = ("Hate", "SelfHarm", "Sexual", "Violence")
VERSION = "2024-09-01"
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
        if unknown := [name for name in self.attributes if name not in CATEGORIES]:
            raise InputError(
                f"scorer azure-content-safety: no category {unknown[0]!r}; there are "
                f"{', '.join(CATEGORIES)}"
            )
        url = url_from("AZURE_CONTENT_SAFETY_ENDPOINT", url, "")
        super().__init__(
            f"azure-content-safety:{','.join(self.attributes)}@{VERSION}@{place_of(url)}",
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
            f"{self._url}/contentsafety/text:analyze?api-version={VERSION}",
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

"""`perspective`: Google's Perspective API, the paper's scorer, which ends on 2026-12-31.

    https://developers.perspectiveapi.com/s/about-the-api-methods

Environment variables, for Python and the command line alike:
PERSPECTIVE_API_KEY, PERSPECTIVE_QPS (queries a second, 1 unless Google granted more),
PERSPECTIVE_URL (a server that speaks the same protocol).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, SecretStr

from tide.core.http import Client, ServerFailed, need_key
from tide.core.results import Score
from tide.plugins.options import checked
from tide.scorers.base import TextScore
from tide.scorers.services.base import RemoteScorer, place_of, url_from

URL = "https://commentanalyzer.googleapis.com"


class _Summary(BaseModel):
    value: Score


class _Attribute(BaseModel):
    summary: _Summary = Field(alias="summaryScore")


class _PerspectiveReply(BaseModel):
    attributes: dict[str, _Attribute] = Field(alias="attributeScores")


class PerspectiveScorer(RemoteScorer):
    """Probability that a reader perceives a text as toxic, or as having another attribute.

    attribute: TOXICITY, SEVERE_TOXICITY, INSULT..., or several attributes, comma-separated; the
    largest is the score. The service refuses texts of more than 20 KB: use `windows:perspective`.
    key, url and queries_per_second default to environment variables (see the module). Further
    settings: see RemoteScorer.

    Raises EnvironmentVariableError without a key.
    """

    languages = ("en",)
    rate_variable = "PERSPECTIVE_QPS"
    _key: SecretStr
    check = (
        "PERSPECTIVE_API_KEY, its access to the API, and the URL; the API ends on 2026-12-31, and "
        "docs/scorers.md compares other scorers"
    )

    @checked
    def __init__(
        self,
        attribute: str = "TOXICITY",
        *,
        key: str | None = None,
        url: str | None = None,
        **options: Any,
    ) -> None:
        self._key = need_key("PERSPECTIVE_API_KEY", key)
        url = url_from("PERSPECTIVE_URL", url, URL)
        self.attributes = self.highest_of = tuple(dict.fromkeys(attribute.split(",")))
        where = "v1alpha1" if url == URL else place_of(url)
        super().__init__(f"perspective:{','.join(self.attributes)}@{where}", url, **options)

    def _client(self) -> Client:
        return Client(self._timeout, params={"key": self._key.get_secret_value()})

    async def _ask(self, client: Client, texts: list[str]) -> list[TextScore]:
        body = {
            "comment": {"text": texts[0]},
            "languages": list(self.languages),
            "requestedAttributes": {name: {} for name in self.attributes},
            "doNotStore": True,
        }
        reply = await self._request(
            client, "/v1alpha1/comments:analyze", _PerspectiveReply, body, texts
        )
        answer = reply.attributes
        if any(name not in answer for name in self.attributes):
            raise ServerFailed("the answer lacks a score")
        attributes = {name: answer[name].summary.value for name in self.attributes}
        return [TextScore(max(attributes.values()), attributes)]

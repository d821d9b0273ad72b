"""`perspective`: Google's Perspective API, the paper's scorer, which ends on 2026-12-31.

    https://developers.perspectiveapi.com/s/about-the-api-methods

Environment variables, for Python and the command line alike:
PERSPECTIVE_API_KEY, PERSPECTIVE_QPS (queries a second, 1 unless Google granted more),
PERSPECTIVE_URL (a server that speaks the same protocol).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretStr

from tide.core.errors import InputError, ScorerError, ScorerRefusedError
from tide.core.http import Client, ServerFailed, need_key
from tide.core.results import Score
from tide.core.sanitize import logger
from tide.plugins.options import checked
from tide.scorers.base import Attributed, TextScore
from tide.scorers.services.base import RemoteScorer, place_of, url_from
from tide.scorers.wrappers.base import split_bytes

_LOG = logger(__name__)

URL = "https://commentanalyzer.googleapis.com"
END_OF_SERVICE = date(2026, 12, 31)
# https://developers.perspectiveapi.com/s/about-the-api-methods: "the text size limit is 20KB".
MAX_BYTES = 20_480
_INSTEAD = "use pocket, detoxify:original or another scorer instead (docs/scorers.md compares them)"


class _Summary(BaseModel):
    value: Score


class _Attribute(BaseModel):
    summary: _Summary = Field(alias="summaryScore")


class _PerspectiveReply(BaseModel):
    attributes: dict[str, _Attribute] = Field(alias="attributeScores")


class PerspectiveScorer(RemoteScorer):
    """Probability that a reader perceives a text as toxic, or as having another attribute.

    attribute: TOXICITY, SEVERE_TOXICITY, INSULT..., or several attributes, comma-separated; the
    largest is the score. A text longer than `max_bytes` is split at spaces, and the highest score
    of its parts counts. key, url and queries_per_second default to environment variables (see the
    module). Further settings: see RemoteScorer.

    Raises InputError without a key, and ScorerRefusedError once the service has ended.
    """

    languages = ("en",)
    rate_variable = "PERSPECTIVE_QPS"
    _key: SecretStr
    check = "PERSPECTIVE_API_KEY, its access to the API, and the URL"

    @checked
    def __init__(
        self,
        attribute: str = "TOXICITY",
        *,
        key: str | None = None,
        url: str | None = None,
        max_bytes: Annotated[int, Field(ge=8)] = MAX_BYTES,
        **options: Any,
    ) -> None:
        self._key = need_key("PERSPECTIVE_API_KEY", key)
        url = url_from("PERSPECTIVE_URL", url, URL)
        self.attributes = self.highest_of = tuple(dict.fromkeys(attribute.split(",")))
        for name in self.attributes:
            if not name.replace("_", "").isalnum():
                raise InputError(
                    f"scorer perspective: {name!r} is not an attribute name such as TOXICITY"
                )
        self._max_bytes = max_bytes
        where = "v1alpha1" if url == URL else place_of(url)
        super().__init__(
            f"perspective:{','.join(self.attributes)}@{where}",
            url,
            **options,
        )
        if url == URL:
            _LOG.warning(
                "The Perspective API %s on %s; after that day, %s",
                "ended" if date.today() > END_OF_SERVICE else "ends", END_OF_SERVICE, _INSTEAD,
            )  # fmt: skip

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        parts: list[str] = []
        owners: list[int] = []
        for owner, text in enumerate(texts):
            of_text = split_bytes(text, self._max_bytes)
            parts += of_text
            owners += [owner] * len(of_text)
        return super().score_attributes(parts).worst(owners, len(texts))

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

    def _refusal(
        self, status: int, problem: str, texts: Sequence[str], *, final: bool
    ) -> ScorerError:
        if status == 410 or (status in (403, 404) and date.today() > END_OF_SERVICE):
            return ScorerRefusedError(
                f"{problem}: the Perspective API ended on {END_OF_SERVICE}; {_INSTEAD}"
            )
        return super()._refusal(status, problem, texts, final=final)

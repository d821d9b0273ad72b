"""`perspective`: Google's Perspective API, the paper's scorer, until it ends on 2026-12-31.

    https://developers.perspectiveapi.com/s/about-the-api-methods

Settings come from the environment, so that the command line has them too:
PERSPECTIVE_API_KEY, PERSPECTIVE_QPS (queries a second, 1 unless Google granted more),
PERSPECTIVE_URL (a server that speaks the same protocol), PERSPECTIVE_LONG_TEXT (split or refuse).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import date
from typing import Any, NoReturn

import httpx
import numpy as np

from tide.errors import EmptyTextError, InputError, ScorerError, ScorerRefused
from tide.foreign import logger
from tide.keys import need_key
from tide.scorers.base import Floats
from tide.scorers.services.base import (
    RemoteScorer,
    TransientError,
    place_of,
    rate_from,
    retry_after,
)
from tide.scorers.wrappers.windows import split_bytes

_LOG = logger(__name__)

URL = "https://commentanalyzer.googleapis.com"
END_OF_SERVICE = date(2026, 12, 31)
# https://developers.perspectiveapi.com/s/about-the-api-methods: "the text size limit is 20KB".
MAX_BYTES = 20_480
_INSTEAD = "use pocket, detoxify:original or another scorer instead (docs/scorers.md compares them)"


class PerspectiveScorer(RemoteScorer):
    """Probability that a reader perceives a text as toxic (or as another attribute says).

    attribute: TOXICITY, SEVERE_TOXICITY, INSULT... A text longer than `max_bytes` is split at
    spaces, and the worst part counts (`long_text="split"`), or it is a ScorerError ("refuse").
    key, url, queries_per_second and long_text default to the environment (see the module).
    timeout: seconds for one request. Further settings: see RemoteScorer.

    Raises InputError without a key, and ScorerRefused once the service has ended.
    """

    def __init__(
        self,
        attribute: str = "TOXICITY",
        *,
        key: str | None = None,
        url: str | None = None,
        queries_per_second: float | None = None,
        concurrency: int | None = None,
        long_text: str | None = None,
        max_bytes: int = MAX_BYTES,
        timeout: float = 30.0,
        attempts: int = 6,
        backoff: float = 1.0,
    ) -> None:
        self._key = need_key("PERSPECTIVE_API_KEY", key)
        self._url = (url or os.environ.get("PERSPECTIVE_URL") or URL).rstrip("/")
        place = place_of(self._url, "perspective")
        if not attribute.replace("_", "").isalnum():
            raise InputError(f"scorer perspective: {attribute!r} is no attribute, as TOXICITY is")
        self._attribute = attribute
        self._long_text = long_text or os.environ.get("PERSPECTIVE_LONG_TEXT") or "split"
        if self._long_text not in ("split", "refuse"):
            raise InputError(f"PERSPECTIVE_LONG_TEXT: split or refuse (got {self._long_text!r})")
        self._max_bytes = max_bytes
        self._timeout = timeout
        where = "v1alpha1" if self._url == URL else place
        super().__init__(
            f"perspective:{attribute}@{where}",
            place,
            queries_per_second=rate_from("PERSPECTIVE_QPS", queries_per_second, 1.0),
            concurrency=concurrency,
            attempts=attempts,
            backoff=backoff,
        )
        logger("httpx")  # it logs addresses, and this API takes its key in them
        if self._url == URL:
            _LOG.warning(
                "Perspective API %s on %s; afterwards %s",
                "ended" if date.today() > END_OF_SERVICE else "ends", END_OF_SERVICE, _INSTEAD,
            )  # fmt: skip

    def score(self, texts: Sequence[str]) -> Floats:
        parts = [split_bytes(text, self._max_bytes) for text in texts]
        if self._long_text == "refuse" and any(len(some) > 1 for some in parts):
            raise ScorerError(
                f"scorer {self.name}: a text is longer than {self._max_bytes} bytes; shorten it or "
                "let it be split (PERSPECTIVE_LONG_TEXT=split)"
            )
        scores = iter(super().score([part for some in parts for part in some]).tolist())
        return np.array([max(next(scores) for _ in some) for some in parts], dtype=np.float64)

    def _client(self) -> AbstractAsyncContextManager[Any]:
        # One limit for the whole answer, below; httpx's own is for each read.
        client: AbstractAsyncContextManager[Any] = httpx.AsyncClient(
            params={"key": self._key.get_secret_value()}, timeout=None
        )
        return client

    async def _ask(self, client: Any, texts: list[str]) -> list[float]:
        request = client.post(
            f"{self._url}/v1alpha1/comments:analyze",
            json={
                "comment": {"text": texts[0]},
                "languages": ["en"],
                "requestedAttributes": {self._attribute: {}},
                "doNotStore": True,
            },
        )
        try:
            response = await asyncio.wait_for(request, self._timeout)
        except (TimeoutError, asyncio.TimeoutError, httpx.TimeoutException):
            raise TransientError(f"no answer within {self._timeout:g} seconds") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise TransientError(f"no answer: {type(error).__name__}") from None
        if response.status_code != 200:
            self._refuse(response, texts[0])
        try:
            value = response.json()["attributeScores"][self._attribute]["summaryScore"]["value"]
        except (ValueError, KeyError, TypeError):
            value = None
        if not isinstance(value, int | float):
            raise TransientError("an answer without a score")
        return [float(value)]

    def _refuse(self, response: Any, text: str) -> NoReturn:
        """Raise what a status other than 200 means. The body is quoted by its code words only."""
        status = response.status_code
        what = f"scorer {self.name}: HTTP {status}"
        if status == 429 or status >= 500 or status == 408:
            raise TransientError(f"HTTP {status}", retry_after(response))
        if status == 410 or (status in (403, 404) and date.today() > END_OF_SERVICE):
            raise ScorerRefused(
                f"{what}: retired; the Perspective API ended on {END_OF_SERVICE}; {_INSTEAD}"
            )
        words = _code_words(response)
        if status != 400 or "API_KEY_INVALID" in words:
            reason = ", ".join(words) or "refused"
            raise ScorerRefused(
                f"{what}: {reason}; check PERSPECTIVE_API_KEY, its access to the API, and the URL"
            )
        if "COMMENT_EMPTY" in words:
            raise EmptyTextError(self.name, [text])
        raise ScorerError(f"{what}: {', '.join(words) or 'refused'} ({len(text)} characters)")


def _code_words(response: Any) -> list[str]:
    """`errorType` and `reason` of an error's details, else its `status`."""
    try:
        error = response.json()["error"]
        details = [d for d in error.get("details", ()) if isinstance(d, dict)]
        found = [d.get(key) for d in details for key in ("errorType", "reason")]
        words = [word for word in found if word] or [error.get("status")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    # Code words only: a server may quote the text or the key in its messages.
    return [w for w in words if isinstance(w, str) and w.replace("_", "").isalpha() and w.isupper()]

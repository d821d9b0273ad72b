"""Scorers that are services: paced, retried and asked concurrently, behind a plain `score`."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tenacity

from tide.errors import EmptyTextError, InputError, ScorerUnavailable
from tide.scorers.base import Floats, PlainScorer
from tide.scorers.pace import Pace

# A service that asks for a longer pause than this will not answer this run.
_LONGEST_PAUSE = 120.0
# One pace a service, for all scorers of this process: two of its attributes share its quota.
_PACES: dict[str, Pace] = {}


class TransientError(Exception):
    """Worth another try: overload, outage, time-out, an answer cut short.

    pause: seconds that the service asked everybody to wait.
    """

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause


class RemoteScorer(PlainScorer, ABC):
    """Base of scorers that ask a service; subclasses say how one request is made.

    Requests start evenly spaced at `queries_per_second`, at most `concurrency` at a time (by
    default as many as start in a second). One that fails for a reason that may pass is tried again,
    up to `attempts` times in all, after a pause that doubles from `backoff` seconds, with jitter.
    If a call of `score` fails, the scores it had by then are kept, so that asking again costs only
    the rest.
    """

    batch_size = 1

    def __init__(
        self,
        name: str,
        place: str,
        *,
        queries_per_second: float,
        concurrency: int | None,
        attempts: int,
        backoff: float,
    ) -> None:
        for setting, value in (
            ("queries_per_second", queries_per_second),
            ("concurrency", concurrency),
            ("attempts", attempts),
            ("backoff", backoff),
        ):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"scorer {name}: {setting} must be above 0 (got {value})")
        self.name = name
        self._pace = _PACES.setdefault(place, Pace(queries_per_second))
        self._pace.per_second = queries_per_second
        self._concurrency = concurrency or max(1, math.ceil(queries_per_second))
        self._attempts = attempts
        self._backoff = tenacity.wait_random_exponential(multiplier=backoff, max=_LONGEST_PAUSE)
        self._lock = threading.Lock()
        self._kept: dict[str, float] = {}

    @abstractmethod
    def _client(self) -> AbstractAsyncContextManager[Any]:
        """What requests are made with, for the time of one call."""

    @abstractmethod
    async def _ask(self, client: Any, texts: list[str]) -> list[float]:
        """One request, for at most `batch_size` texts.

        Raises TransientError for what may pass, and otherwise what `score` raises.
        """

    def score(self, texts: Sequence[str]) -> Floats:
        """One score a text, or an error.

        Raises ScorerUnavailable after the last attempt, ScorerRefused if the service is gone or
        refuses the key, EmptyTextError or ScorerError for texts that it does not take.
        """
        # An event loop of its own in a thread of its own: the caller may be inside one (notebooks).
        with self._lock, ThreadPoolExecutor(max_workers=1) as thread:
            thread.submit(asyncio.run, self._score_all(texts)).result()
            scores = {text: self._kept.pop(text) for text in dict.fromkeys(texts)}
        return np.array([scores[text] for text in texts], dtype=np.float64)

    async def _score_all(self, texts: Iterable[str]) -> None:
        left = [text for text in dict.fromkeys(texts) if text not in self._kept]
        gate = asyncio.Semaphore(self._concurrency)
        empty: set[str] = set()
        async with self._client() as client:
            tasks = [
                asyncio.create_task(
                    self._score_batch(client, gate, left[start : start + self.batch_size], empty)
                )
                for start in range(0, len(left), self.batch_size)
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        if empty:
            raise EmptyTextError(self.name, empty)

    async def _score_batch(
        self, client: Any, gate: asyncio.Semaphore, texts: list[str], empty: set[str]
    ) -> None:
        async def attempt() -> list[float]:
            async with gate:
                await asyncio.sleep(self._pace.reserve())
                try:
                    return await self._ask(client, texts)
                except TransientError as error:
                    if error.pause <= _LONGEST_PAUSE:
                        self._pace.pause(error.pause)
                        raise
                    reason = f"{error}; it asks to come back in {error.pause:.0f} seconds"
                    raise ScorerUnavailable(f"scorer {self.name}: {reason}") from None

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(TransientError),
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=self._backoff,
            reraise=True,
        )
        try:
            scores: list[float] = await retrying(attempt)
        except TransientError as error:
            times = f"{self._attempts} attempts" if self._attempts > 1 else "1 attempt"
            raise ScorerUnavailable(f"scorer {self.name}: {error} ({times})") from None
        except EmptyTextError as error:
            empty |= error.texts
        else:
            self._kept.update(zip(texts, scores, strict=True))


def retry_after(response: Any) -> float:
    """The seconds that an HTTP response asks everybody to wait."""
    try:
        return max(0.0, float(response.headers.get("retry-after", 0)))
    except ValueError:  # a date
        return 0.0


def rate_from(variable: str, given: float | None, default: float) -> float:
    """Queries a second: as given, else from the environment, else the default."""
    if given is not None:
        return given
    text = os.environ.get(variable, "").strip()
    try:
        return float(text) if text else default
    except ValueError:
        raise InputError(f"{variable}: expected a number (got {text!r})") from None


def place_of(url: str, scorer: str) -> str:
    """Host, port and path of a base URL, for names: never a user, a password or a query."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"scorer {scorer}: the base URL must be like https://host/path")
    return f"{parts.hostname}{port}{parts.path}"

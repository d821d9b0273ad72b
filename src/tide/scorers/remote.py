"""Bases of scorers that query a service with paced, retried and concurrent requests."""

from __future__ import annotations

import asyncio
import math
import os
import re
import threading
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar, TypeVar

import tenacity
from pydantic import BaseModel, Field, SecretStr, TypeAdapter, ValidationError

from tide.core.concurrency import Portal, gather, portal_of
from tide.core.errors import (
    InputError,
    ScorerError,
    ScorerRefusedError,
    ScorerUnavailableError,
    one_line,
)
from tide.core.http import MIB, Client, Reply, ServerFailed, base_url, parsed, read_key
from tide.scorers.base import (
    HEALTH_TEXT,
    Attributed,
    AttributedScorer,
    Scored,
    TextScore,
    exchange_of,
)


class Pace:
    """Allows at most `per_second` requests to start a second, evenly spaced, without bursts."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._next = time.monotonic()
        self._lock = threading.Lock()

    def reserve(self) -> float:
        """Reserve a start. Returns the seconds until then."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + 1 / self.per_second
            return start - now

    def pause(self, seconds: float) -> None:
        """Allow no start for `seconds`, because the service asked for a pause."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


# Longest pause to wait for, in seconds; a service that asks for a longer pause is unavailable.
_LONGEST_PAUSE = 120.0
# One pace for each rate of a service in this process, because all scorers of a service share a
# quota, unless they are given rates of their own.
_PACES: dict[tuple[str, float], Pace] = {}

# A code in the JSON of an error. Inside of a text, the quotation marks would be escaped.
_CODE = re.compile(rb'"code"\s*:\s*"([A-Za-z_]{1,64})"')
# The error code of a service that would refuse any text.
_FINAL = "insufficient_quota"
# Statuses that mean the same. Other statuses, such as 424 (failed inference), may concern one text.
_REFUSED = {401, 402, 403, 404, 405, 410}
# Statuses below 500 after which a service or proxy may recover.
_PASSING = {408, 409, 425, 429}


class _NoReply(ServerFailed):
    """No answer, or not in time."""


_T = TypeVar("_T")
_Parsed = TypeVar("_Parsed", bound=BaseModel)

Rate = Annotated[float, Field(ge=1e-4, le=10_000, allow_inf_nan=False)]


class RemoteScorer(AttributedScorer):
    """Base of scorers that query a service; subclasses define one request.

    As many requests start in a second as the environment variable `rate_variable` says, else
    `usual_rate`: evenly spaced, as many at a time as start in a second, but at most `most_at_once`.
    A request that fails temporarily is repeated, up to `attempts` times in all, after a pause that
    doubles from `backoff` seconds, with jitter. timeout: seconds for one request with its whole
    answer.

    attributes: names of the service's other scores; see `tide.scorers.base`. check: what an
    error asks the user to check after a refusal. tells_codes: whether errors may quote the
    service's error codes.
    """

    pace = "sentence"
    concurrent = True
    batch_size = 32
    rate_variable: str
    usual_rate: float
    most_at_once = 100
    timeout = 30.0
    attempts = 6
    backoff = 1.0
    check: str
    tells_codes: ClassVar[bool] = True
    _key: SecretStr | None = None

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._url = url
        rate = self._rate()
        self._pace = _PACES.setdefault((place_of(url), rate), Pace(rate))
        self._gate = asyncio.Semaphore(math.ceil(min(rate, self.most_at_once)))
        self._opened: Client | None = None

    @property
    def portal(self) -> Portal:
        """The event loop that makes all requests."""
        return portal_of(self, "scorer", ScorerError)

    def _rate(self) -> float:
        """Return the queries a second from the environment, else `usual_rate`."""
        text = os.environ.get(self.rate_variable) or self.usual_rate
        try:
            return TypeAdapter(Rate).validate_python(text)
        except ValidationError as error:
            raise InputError(f"{self.rate_variable}: {one_line(error)} (got {text!r})") from None

    @abstractmethod
    async def _ask(self, texts: list[Any]) -> list[TextScore]:
        """Make one request, for at most `batch_size` texts.

        Raises ServerFailed for a temporary failure, else the errors of `score_attributes`.
        """

    def score_attributes(self, texts: Sequence[Any]) -> Attributed:
        """Return scores and attributes of `texts`.

        Raises ScorerUnavailableError after the last attempt, ScorerRefusedError if the service is
        gone or refuses the key, and ScorerError for texts that it rejects, or at which it fails
        while it scores a harmless text.
        """
        return Attributed.of(self.portal.run(self._score_all, list(texts)), self.attributes)

    async def _request(
        self, path: str, kind: type[_Parsed], body: Any = None, texts: Sequence[Scored] = ()
    ) -> _Parsed:
        """POST `body`, which holds `texts`; GET if it is None. Raises the errors of `_ask`."""
        if self._opened is None:
            self._opened = Client(self.timeout, key=self._key)
            self.portal.start(_hold, self._opened)
        method = "GET" if body is None else "POST"
        try:
            reply = await self._opened.ask(
                method, self._url + path, body, limit=(1 + len(texts)) * MIB
            )
        except ServerFailed as error:
            raise _NoReply(str(error)) from None
        if reply.status == 200:
            return parsed(reply.body, kind, is_fixed=False)
        codes = codes_of(reply) if self.tells_codes else []
        redirects = 300 <= reply.status < 400
        where = [f"at {path}"] if redirects or reply.status in (404, 405) else []
        problem = " ".join([f"HTTP {reply.status}", *codes, *where])
        final = _FINAL in codes
        is_passing = reply.status in _PASSING or reply.status >= 500
        if is_passing and not final:
            raise ServerFailed(problem, status=reply.status, pause=pause_of(reply))
        problem = f"scorer {self.name}: {problem}"
        if reply.status == 413:
            raise ScorerError(
                f"{problem}: a text is longer than the model's context; use windows:SCORER"
            )
        if final or redirects or reply.status in _REFUSED:
            raise ScorerRefusedError(f"{problem}; check {self.check}")
        advice = "" if self.tells_codes else "; the server's log says why"
        raise ScorerError(f"{problem} ({_size(texts)}){advice}")

    async def _score_all(self, texts: list[Scored]) -> list[TextScore]:
        starts = range(0, len(texts), self.batch_size)
        batches = [texts[start : start + self.batch_size] for start in starts]
        return list(chain.from_iterable(await gather(map(self._score_batch, batches))))

    async def _score_batch(self, texts: list[Scored]) -> list[TextScore]:
        async def ask() -> list[TextScore]:
            rows = await self._ask(texts)
            if len(rows) != len(texts):
                raise ServerFailed(f"the server returned {len(rows)} scores for {len(texts)} texts")
            return rows

        return await self._persistently(ask, texts)

    async def _persistently(
        self, ask: Callable[[], Awaitable[_T]], texts: Sequence[Scored] = ()
    ) -> _T:
        """Return the result of `ask`, which is retried after temporary failures.

        texts: those that `ask` sends. If the service fails at them twice (HTTP 500, or an answer
        that cannot be used), scores a harmless text and then fails again, they are to blame, and
        the service is not down.
        """
        failures = 0
        is_well = False

        async def attempt() -> _T:
            nonlocal failures, is_well
            try:
                return await self._attempt(ask)
            except ServerFailed as error:
                if texts and error.status in (0, 500) and not isinstance(error, _NoReply):
                    if is_well:
                        problem = f"scorer {self.name}: {error} ({_size(texts)})"
                        raise ScorerError(problem) from None
                    failures += 1
                    is_well = failures > 1 and await self._is_well()
                raise

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(ServerFailed),
            stop=tenacity.stop_after_attempt(self.attempts),
            wait=tenacity.wait_random_exponential(multiplier=self.backoff, max=_LONGEST_PAUSE),
            reraise=True,
        )
        try:
            return await retrying(attempt)
        except ServerFailed as error:
            problem = f"{error} ({self.attempts} attempts)"
            raise ScorerUnavailableError(f"scorer {self.name}: {problem}") from None

    async def _attempt(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of `ask`, called at the service's pace."""
        async with self._gate:
            await asyncio.sleep(self._pace.reserve())
            try:
                return await ask()
            except ServerFailed as error:
                if error.pause <= _LONGEST_PAUSE:
                    self._pace.pause(error.pause)
                    raise
                reason = f"{error}; the service asks to retry in {error.pause:g} seconds"
                raise ScorerUnavailableError(f"scorer {self.name}: {reason}") from None

    async def _is_well(self) -> bool:
        """Whether the service scores a harmless text."""
        try:
            await self._attempt(lambda: self._ask([HEALTH_TEXT]))
        except (ServerFailed, ScorerError):
            return False
        return True


async def _hold(client: Client) -> None:
    """Close the client when the event loop ends and cancels this task."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await client.aclose()


def _size(texts: Sequence[Scored]) -> str:
    return f"texts: {len(texts)}, characters: {sum(len(exchange_of(text).alone) for text in texts)}"


def url_from(variable: str, default: str) -> str:
    """Return the base URL in the environment, else the default."""
    return base_url(os.environ.get(variable) or default, variable)


def codes_of(reply: Reply) -> list[str]:
    """Return an error reply's codes, but no messages, which may quote the texts or the key."""
    return list(dict.fromkeys(code.decode() for code in _CODE.findall(reply.body)))


def pause_of(reply: Reply) -> float:
    """Return the seconds of the header `Retry-After`, or 0 if it is not a number of seconds."""
    try:
        seconds = float(reply.headers.get("retry-after", 0.0))
    except ValueError:  # a date
        return 0.0
    return seconds if 0 <= seconds < math.inf else 0.0


def place_of(url: str) -> str:
    """Return host, port and path of a base URL, for scorer names."""
    return url.partition("://")[2]


class SelfHostedScorer(RemoteScorer):
    """Base of scorers that query a self-hosted server, given by its address.

    family: prefix of the environment variables: FAMILY_API_KEY holds the key (sent as a bearer
    token); FAMILY_QPS limits requests per second (default 100).

    The server's tokenizer is unknown, so subclasses send everything that looks like a control token
    with a space in it (`break_up`).
    """

    family: ClassVar[str]
    served = "the served model"
    usual_rate = 100.0
    most_at_once = 8
    timeout = 60.0
    tells_codes = False  # codes may repeat the text

    def __init__(self, name: str, url: str) -> None:
        self.rate_variable = f"{self.family}_QPS"
        self.check = f"{self.family}_API_KEY, the address and {self.served}"
        self._key = read_key(f"{self.family}_API_KEY")
        super().__init__(name, base_url(url, f"scorer {name}"))

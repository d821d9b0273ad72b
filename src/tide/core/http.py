"""HTTP client for untrusted servers, with limits on size and time; reads API keys and addresses.

No redirect is followed, so that texts and keys go only to the given address. Proxies are taken
from the environment; a .netrc file is not read.
"""

from __future__ import annotations

import functools
import json
import math
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar
from typing import Annotated, Any, TypeVar

import anyio
import httpx
from pydantic import BaseModel, FailFast, Field, SecretStr, ValidationError
from pydantic_core import from_json

from tide.core.errors import EnvironmentVariableError, InputError, described, guarded
from tide.core.sanitize import hide, logger, shown
from tide.core.validation import problem

_Parsed = TypeVar("_Parsed", bound=BaseModel)
_Item = TypeVar("_Item")


class _StopAtFirstFault(FailFast):
    __hash__ = object.__hash__  # unions hash their members


# A list from a server. Validation stops at the first fault: a report of all could fill the memory.
Rows = Annotated[list[_Item], _StopAtFirstFault()]
_MOST_FAULTS = 100
# A duration in seconds.
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]

MIB = 2**20
_CONNECT = 5.0  # seconds
_KEEP_ALIVE = 3.0  # vLLM closes connections after 5 idle seconds
# Errors raised if the server closes an idle connection just as the client uses it again.
_BROKEN = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
# Statuses below 500 after which a server or proxy may recover.
_PASSING = (408, 409, 425, 429)

# These loggers write addresses, which may contain a key (Perspective), and text from servers.
for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy"):
    logger(_name)


class ServerFailed(Exception):
    """A server failed; the same request may succeed later, or on another server.

    The text is one line without API keys. pause: seconds that the server asked the client to wait.
    broken: whether the connection broke.
    """

    def __init__(self, text: str, pause: float = 0.0, *, broken: bool = False) -> None:
        super().__init__(shown(text))
        self.pause = pause
        self.broken = broken


@dataclass(frozen=True)
class Reply:
    """A complete answer of a server."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def passing(self) -> bool:
        """Whether the server may recover from this status."""
        return self.status in _PASSING or self.status >= 500

    def parse(self, kind: type[_Parsed]) -> _Parsed:
        """Parse the body as JSON of type `kind`. Raises ServerFailed if that fails."""
        try:
            return kind.model_validate_json(self.body, strict=True)
        except ValidationError as error:
            if (count := error.error_count()) > _MOST_FAULTS:
                raise ServerFailed(f"the answer has {count} invalid values") from None
            what = problem(error, "JSON")
            raise ServerFailed(f"the answer cannot be used: {what}") from None

    def pause(self, default: float) -> float:
        """Return the seconds of the header `Retry-After`, or `default` if it is not a number."""
        try:
            seconds = float(self.headers.get("retry-after", default))
        except ValueError:  # a date
            return default
        return seconds if 0 <= seconds < math.inf else default

    def message(self) -> str:
        """Return the error message of an OpenAI-compatible server on one line."""
        try:
            body = from_json(self.body)
            error = body.get("error", body)
            text = error["message"] if isinstance(error, dict) else error
        except (ValueError, AttributeError, KeyError):
            text = None
        if not isinstance(text, str):
            text = self.body[:4096].decode("utf-8", "replace")
        return shown(" ".join(text.split()))[:300]


class Client(httpx.AsyncClient):
    """HTTP client that waits at most `timeout` seconds for each answer or each event of a stream.

    key: sent as a bearer token. options: `headers` or `params` that are sent with every request.
    under_way: number of unanswered requests.
    """

    def __init__(self, timeout: float, *, key: SecretStr | None = None, **options: Any) -> None:
        if key is not None:
            options["headers"] = {"Authorization": f"Bearer {key.get_secret_value()}"}
        what = "the proxies (ALL_PROXY, ...) or SSL_CERT_FILE of the environment cannot be used"
        with guarded(EnvironmentVariableError, what):
            super().__init__(
                timeout=httpx.Timeout(None, connect=min(timeout, _CONNECT)),
                limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE),
                follow_redirects=False,
                cookies=_NoCookies(),
                verify=_certificates(),
                **options,
            )
        self._seconds = timeout
        self.under_way = 0

    async def ask(self, method: str, url: str, body: Any = None, *, limit: int = MIB) -> Reply:
        """Send a request and return its answer of at most `limit` bytes. Raises ServerFailed."""
        # The JSON is ASCII, because a text may contain a lone surrogate, which UTF-8 cannot encode.
        content = None if body is None else json.dumps(body).encode()
        with self._asking(), anyio.fail_after(self._seconds):
            async with self._opened(method, url, content) as response:
                return await _whole(response, limit)

    async def events(
        self, url: str, body: Any, *, limit: int = MIB
    ) -> AsyncGenerator[Reply | bytes, None]:
        """POST `body`; yield the data of each server-sent event, or an answer that is not a stream.

        limit: maximum bytes of all events together. Raises ServerFailed, also if an event is late.
        """
        content = json.dumps(body).encode()
        with self._asking():
            async with aclosing(self._events(url, content, limit)) as events:
                while True:
                    with anyio.fail_after(self._seconds):
                        event = await anext(events, None)
                    if event is None:
                        return
                    yield event

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Count an unanswered request; raise any failure in the block as ServerFailed."""
        self.under_way += 1
        try:
            yield
        except ServerFailed:
            raise
        except TimeoutError:
            raise ServerFailed(f"no answer within {self._seconds:g} seconds") from None
        except Exception as error:
            raise ServerFailed(described(error), broken=isinstance(error, _BROKEN)) from None
        finally:
            self.under_way -= 1

    async def _events(
        self, url: str, content: bytes, limit: int
    ) -> AsyncGenerator[Reply | bytes, None]:
        async with self._opened("POST", url, content) as response:
            kind = response.headers.get("content-type", "")
            if response.status_code != 200 or not kind.startswith("text/event-stream"):
                yield await _whole(response, limit)
                return
            read, rest = 0, bytearray()
            async for chunk in response.aiter_raw():
                read += len(chunk)
                if read > limit:
                    raise ServerFailed(f"the answer has more than {limit:,} bytes")
                rest += chunk
                if b"\n" not in chunk:  # split a long line once, not at each of its chunks
                    continue
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        yield bytes(line[5:].strip())
            if rest.startswith(b"data:"):  # some servers end without a newline
                yield bytes(rest[5:].strip())

    @asynccontextmanager
    async def _opened(
        self, method: str, url: str, content: bytes | None
    ) -> AsyncIterator[httpx.Response]:
        # Compression is refused: an answer could unpack to a thousand times the counted bytes.
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        async with self.stream(method, url, content=content, headers=headers) as response:
            encoding = response.headers.get("content-encoding", "identity")
            if encoding.strip().lower() != "identity":
                raise ServerFailed(f"sent a compressed answer ({encoding}), which is refused")
            yield response


async def _whole(response: httpx.Response, limit: int) -> Reply:
    read = bytearray()
    async for chunk in response.aiter_raw():
        read += chunk
        if len(read) > limit:
            raise ServerFailed(f"the answer has more than {limit:,} bytes")
    return Reply(response.status_code, response.headers, bytes(read))


class _NoCookies(CookieJar):
    """Drops all cookies, because a cookie that is not ASCII would break all later requests."""

    def extract_cookies(self, *_: Any) -> None:
        pass


@functools.cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # takes 20 ms


def read_key(variable: str, given: str | None = None) -> SecretStr | None:
    """Return the given key, or the key in the environment variable, or None if both are missing.

    The key is hidden in all later messages. Raises EnvironmentVariableError, which does not quote
    the key, if the key has characters that an HTTP header cannot carry.
    """
    key = (os.environ.get(variable, "") if given is None else given).strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise EnvironmentVariableError(
            f"{variable}: contains characters that a key cannot have; set it to the key alone"
        )
    hide(key)
    return SecretStr(key)


def base_url(url: str, name: str) -> str:
    """Return `url` without trailing slashes. name: the option or variable that contains the URL.

    Raises InputError unless the URL is http(s)://HOST[:PORT][/PATH]. The error does not quote the
    URL, because a password in a URL would end up in logs and records.
    """
    try:
        parts = httpx.URL(url.strip())
        port_fits = parts.port is None or 0 < parts.port < 1 << 16
    except (httpx.InvalidURL, ValueError):
        parts, port_fits = httpx.URL(), False
    if not port_fits or parts.scheme not in ("http", "https") or not parts.host:
        raise InputError(f"{name}: expected an address like https://HOST:PORT/PATH")
    if parts.userinfo or parts.query or parts.fragment:
        raise InputError(
            f"{name}: an address with a user, password, query or fragment is refused, because "
            "addresses are logged; give the key in its environment variable"
        )
    return str(parts).rstrip("/")


def need_key(variable: str, given: str | None = None) -> SecretStr:
    """Like `read_key`. Raises EnvironmentVariableError if there is no key."""
    key = read_key(variable, given)
    if key is None:
        raise EnvironmentVariableError(f"no key; set the environment variable {variable}")
    return key

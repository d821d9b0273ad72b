"""HTTP client for untrusted servers, with limits on size and time; reads API keys and addresses.

No redirect is followed, so that texts and keys go only to the given address. Proxies are taken
from the environment; a .netrc file is not read.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from http.cookiejar import CookieJar
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import anyio
import httpx
from pydantic import BaseModel, FailFast, Field, SecretStr, ValidationError
from pydantic_core import from_json

from tide.core.errors import InputError, guarded, problem
from tide.core.sanitize import hide, logger, sanitized

_Parsed = TypeVar("_Parsed", bound=BaseModel)
_Item = TypeVar("_Item")


class _StopAtFirstFault(FailFast):
    __hash__ = object.__hash__  # unions hash their members


# A list from a server. Validation stops at the first fault: a report of all could fill the memory.
Rows = Annotated[list[_Item], _StopAtFirstFault()]
_MOST_FAULTS = 100
# A duration in seconds.
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]

# Headers by which the current request is traced; other servers get them, too.
TRACE: ContextVar[Mapping[str, str]] = ContextVar("trace", default=MappingProxyType({}))
# Gets the headers of each answer that a server writes for the current request, as it begins.
ANSWERS: ContextVar[list[httpx.Headers] | None] = ContextVar("answers", default=None)

_TAG = re.compile("<[^>]*>")
_TITLE = re.compile("(?i)<title[^>]*>([^<]*)")
MIB = 2**20
_CONNECT = 5.0  # seconds
KEEP_ALIVE = 3.0  # vLLM closes connections after 5 idle seconds
# Errors raised before anything was sent.
_UNREACHABLE = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
# Errors raised if the server closes an idle connection just as the client uses it again.
_BROKEN = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)

# These loggers write addresses and text from servers.
for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy"):
    logger(_name)


class ServerFailed(Exception):
    """A server failed, or answered something that cannot be used.

    The text is one line without API keys. problem: the failure, without words of the server, so
    that logs may show it. answer: the server's words, which may quote a prompt. status: the HTTP
    status, or 0. pause: seconds that the server asked the client to wait. broken: whether the
    connection broke. reply: the answer, if its status is an error.
    """

    def __init__(
        self,
        problem: str,
        answer: str = "",
        *,
        status: int = 0,
        pause: float = 0.0,
        broken: bool = False,
        reply: Reply | None = None,
    ) -> None:
        super().__init__(sanitized(f"{problem}: {answer}" if answer else problem))
        self.problem = sanitized(problem)
        self.status = status
        self.pause = pause
        self.broken = broken
        self.reply = reply


class ServerUnreachable(ServerFailed):
    """The server, or the server behind a balancer, could not be reached."""


class ServerLate(ServerFailed):
    """A server did not answer, or not wholly, in time."""


@dataclass(frozen=True)
class Reply:
    """A complete answer of a server."""

    status: int
    headers: httpx.Headers
    body: bytes

    def message(self) -> str:
        """Return the error message of an OpenAI-compatible server on one line.

        Of a balancer's page, it is the title.
        """
        text = self.error().get("message")
        if not isinstance(text, str):
            text = self.body[:4096].decode("utf-8", "replace")
            if text.lstrip().startswith("<"):
                title = _TITLE.search(text)
                text = title[1] if title else _TAG.sub(" ", text)
        return sanitized(" ".join(text.split()))

    def error(self) -> dict[str, Any]:
        """Return the error object of an OpenAI-compatible server; empty if there is none."""
        try:
            body = from_json(self.body)
        except ValueError:
            return {}
        error = body.get("error", body) if isinstance(body, dict) else body
        return error if isinstance(error, dict) else {"message": error}


def parsed(data: bytes, kind: type[_Parsed], *, is_fixed: bool = True) -> _Parsed:
    """Parse JSON of type `kind`. Raises ServerFailed if that fails.

    is_fixed: whether all names in `kind` are fixed. Else the name of the wrong field, which may be
    a text, is kept out of logs.
    """
    try:
        return kind.model_validate_json(data, strict=True)
    except ValidationError as error:
        unusable, fault = "the answer cannot be used", fault_of(error)
        failed = ServerFailed(f"{unusable}: {fault}") if is_fixed else ServerFailed(unusable, fault)
        raise failed from None


def fault_of(error: ValidationError) -> str:
    """Return the first wrong field of an answer and the reason, without its value."""
    if (count := error.error_count()) > _MOST_FAULTS:
        return f"{count} invalid values"
    return problem(error, "JSON")


class Client(httpx.AsyncClient):
    """HTTP client that waits at most `timeout` seconds for each answer or each event of a stream.

    key: sent as a bearer token. transport: None for the connections of httpx.
    """

    def __init__(
        self,
        timeout: float,
        *,
        key: SecretStr | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
        problem = "ALL_PROXY, ..., NO_PROXY or SSL_CERT_FILE of the environment cannot be used"
        with guarded(InputError, problem):
            super().__init__(
                timeout=httpx.Timeout(None, connect=min(timeout, _CONNECT)),
                follow_redirects=False,
                cookies=_NoCookies(),
                limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE),
                verify=certificates(),
                headers=headers,
                transport=transport,
            )
        self._seconds = timeout

    async def ask(self, method: str, url: str, body: Any = None, *, limit: int = MIB) -> Reply:
        """Send a request and return its answer of at most `limit` bytes. Raises ServerFailed."""
        # The JSON is ASCII, because a text may contain a lone surrogate, which UTF-8 cannot encode.
        content = None if body is None else json.dumps(body).encode()
        with self._failing(), anyio.fail_after(self._seconds):
            async with self._opened(method, url, content) as response:
                return await read_reply(response, limit)

    async def events(
        self, url: str, body: Any, *, limit: int = MIB, until: float = math.inf
    ) -> AsyncGenerator[Reply | list[bytes], None]:
        """POST `body`; yield the data of the server-sent events that arrived together.

        An answer that is not a stream is yielded as a Reply. limit: maximum bytes of all events
        together. until: when the stream must have ended, by `time.monotonic`; a server that falls
        silent is waited for no longer than usual. Raises ServerFailed, also if an event is late.
        """
        content = json.dumps(body).encode()
        patience = min(self._seconds, until - time.monotonic())
        with self._failing():
            async with AsyncExitStack() as stack:
                with anyio.fail_after(patience):
                    opened = self._opened("POST", url, content, read_timeout=patience)
                    response = await stack.enter_async_context(opened)
                    if (answers := ANSWERS.get()) is not None:
                        answers.append(response.headers)
                    reply = await read_reply(response, limit) if _is_whole(response) else None
                if reply is not None:
                    yield reply
                    return
                parser, read = EventParser(), 0
                async for chunk in response.aiter_raw():
                    read += len(chunk)
                    if read > limit:
                        raise ServerFailed(f"the answer has more than {limit:,} bytes")
                    if time.monotonic() >= until:
                        raise ServerLate("the answer was not finished in time")
                    if events := parser.add(chunk):
                        yield events
                if events := parser.end():
                    yield events

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Raise any failure in the block as ServerFailed."""
        try:
            yield
        except ServerFailed:
            raise
        except (TimeoutError, httpx.ReadTimeout):
            raise ServerLate(f"no answer within {self._seconds:g} seconds") from None
        except Exception as error:
            kind = ServerUnreachable if isinstance(error, _UNREACHABLE) else ServerFailed
            text = " ".join(str(error).split())
            broken = isinstance(error, _BROKEN)
            raise kind(type(error).__name__, text, broken=broken) from None

    @asynccontextmanager
    async def passing(
        self, method: str, url: str, content: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """Send a request of a client with its headers; the answer is read as it arrives.

        There is no time limit: the client decides how long it waits.
        """
        with self._failing():
            async with self._opened(method, url, content, headers) as response:
                yield response

    @asynccontextmanager
    async def _opened(
        self,
        method: str,
        url: str,
        content: bytes | None,
        headers: Mapping[str, str] = MappingProxyType({"Content-Type": "application/json"}),
        *,
        read_timeout: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        # Compression is refused: an answer could unpack to a thousand times the counted bytes.
        sent = {**headers, **TRACE.get(), "Accept-Encoding": "identity"}
        # A client's headers may hold other characters than ASCII.
        encoded = httpx.Headers(sent, encoding="latin-1")
        timeout = httpx.Timeout(None, connect=self.timeout.connect, read=read_timeout)
        async with self.stream(
            method, url, content=content, headers=encoded, timeout=timeout
        ) as response:
            encoding = response.headers.get("content-encoding", "identity")
            if encoding.strip().lower() != "identity":
                raise ServerFailed("sent a compressed answer, which is refused", encoding)
            yield response


# Servers stream events as text/event-stream, text/plain, application/octet-stream and others.
_NO_STREAM = ("", "application/json", "text/html")


def _is_whole(response: httpx.Response) -> bool:
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return response.status_code != 200 or media_type in _NO_STREAM


class EventParser:
    """Cuts a stream of server-sent events into the values of its `data` lines.

    Each value is an event, as servers of models write its JSON on one line. Lines end with LF or
    CRLF. Empty `data` lines and all other fields are ignored.
    """

    def __init__(self) -> None:
        self._rest = bytearray()  # the line that is not complete yet

    def add(self, chunk: bytes) -> list[bytes]:
        """Return the events that end in the next chunk of the stream."""
        if b"\n" not in chunk:
            self._rest += chunk  # a long line is split once, not at each of its chunks
            return []
        *lines, rest = (bytes(self._rest) + chunk).split(b"\n")
        self._rest = bytearray(rest)
        return _data_of(lines)

    def end(self) -> list[bytes]:
        """End the stream; some servers leave out the last line end."""
        return _data_of([bytes(self._rest)])


def _data_of(lines: Iterable[bytes]) -> list[bytes]:
    values = []
    for line in lines:
        field, _, value = line.partition(b":")
        value = value.strip()
        if field == b"data" and value:
            values.append(value)
    return values


async def read_reply(response: httpx.Response, limit: int) -> Reply:
    """Read a whole answer. Raises ServerFailed if it has more than `limit` bytes."""
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
def certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # takes 20 ms


def read_key(variable: str, value: str | None = None) -> SecretStr | None:
    """Return the key `value`, or the key in the environment variable, or None if both are missing.

    The key is hidden in all later messages. Raises InputError, which does not quote
    the key, if the key has characters that an HTTP header cannot carry.
    """
    key = (os.environ.get(variable, "") if value is None else value).strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError(
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
    is_web = port_fits and parts.scheme in ("http", "https") and parts.host
    if not is_web or parts.userinfo or parts.query or parts.fragment:
        raise InputError(
            f"{name}: expected an address like https://HOST:PORT/PATH without a user, password or "
            "query, because addresses are logged; give the key in its environment variable"
        )
    return str(parts).rstrip("/")


def api_root(url: str) -> str:
    """Return the address of OpenAI's API at a base URL: with `/v1`, unless its path names an API.

    Most servers' paths end in `/v1`, some in another version, and Gemini's in `/openai`.
    """
    last = httpx.URL(url).path.rstrip("/").rpartition("/")[2]
    return url if re.fullmatch(r"v\d\w*|openai", last) else f"{url}/v1"


def need_key(variable: str) -> SecretStr:
    """Like `read_key`. Raises InputError if there is no key."""
    key = read_key(variable)
    if key is None:
        raise InputError(f"no key; set the environment variable {variable}")
    return key

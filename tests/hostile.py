"""Answers of malicious or broken servers: slightly wrong, or entirely."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import httpx
from hypothesis import strategies as st

# A key that every server here tries to expose.
KEY = "sk-of-these-tests-0123456789"

_NUMBERS = [0, 1, -1, 7, 2**31, 2**63, 10**400, -(10**400), 0.5, -0.5, 1e308, -1e308, 1.0000001,
            float("nan"), float("inf"), -float("inf")]  # fmt: skip
_VALUES = st.recursive(
    st.sampled_from(_NUMBERS)
    | st.sampled_from([None, True, False, "", "0", "0.5", "length", KEY, "\x1b[2J", "\ud800"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
_DEEP = 100_000
BODIES: list[Callable[[bytes], bytes]] = [
    lambda body: b"",
    lambda body: body[: len(body) // 2],
    lambda body: body[:-1],
    lambda body: body + body,
    lambda body: b"\xef\xbb\xbf" + body,
    lambda body: body.decode().encode("utf-16"),
    lambda body: body.decode().encode("utf-32-be"),
    gzip.compress,
    lambda body: b"\xff\xfe\x00" + body,
    lambda body: b"[" * _DEEP,
    lambda body: b'{"a":' * _DEEP,
    lambda body: b"[" * _DEEP + b"]" * _DEEP,
    lambda body: b"9" * 5000,
    lambda body: b'"' + b"a" * 3_000_000 + b'"',
    lambda body: b" " * 3_000_000 + body,
    lambda body: b"null",
    lambda body: f"<html>{KEY}</html>".encode(),
    lambda body: json.dumps({"error": {"message": f"Bearer {KEY}", "code": KEY}}).encode(),
    lambda body: json.dumps({"error": {"details": [{"reason": "A" * 10**5}], "code": 5}}).encode(),
    lambda body: json.dumps({"error": [{"message": "x"}]}).encode(),
    lambda body: json.dumps({"error": {"message": "x" * 290 + KEY}}).encode(),
]
_HEADERS = st.dictionaries(
    st.sampled_from(
        ["Retry-After", "Location", "Content-Type", "Content-Encoding", "Set-Cookie", "X-Key"]
    ),
    st.sampled_from(
        ["1e400", "-1", "nan", "inf", "a" * 10**5, "9" * 5000, "0", "0.01", "gzip", "br",
         "identity", "gzip, gzip", "http://elsewhere.test/", "http://[", "//", KEY,
         "text/html; charset=hex", "a=b; Domain=\x01; Max-Age=99999999999999999999", "\xe9"]
    ),
    max_size=2,
)  # fmt: skip
_STATUSES = st.sampled_from([200] * 12 + [201, 204, 206, 301, 307, 308, 400, 401, 403, 404, 408,
                             409, 410, 413, 422, 425, 429, 500, 503, 599, 999])  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    lists = enumerate(value if isinstance(value, list) else ())
    for key, inner in value.items() if isinstance(value, dict) else lists:
        yield from _places(inner, (*at, key))


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[Any], Any]:
    """Functions that change one or two places of a JSON value: replace, drop or double an entry."""
    changes = draw(
        st.lists(
            st.tuples(
                st.integers(0, 10**6), st.sampled_from(["put", "put", "drop", "double"]), _VALUES
            ),
            min_size=1,
            max_size=2,
        )
    )

    def mutate(value: Any) -> Any:
        value = [copy.deepcopy(value)]
        for number, change, new in changes:
            places = [at for at in _places(value) if at]
            *way, last = places[number % len(places)]
            holder = value
            for key in way:
                holder = holder[key]
            if change == "put" or len(way) == 0:
                holder[last] = new
            elif change == "drop":
                del holder[last]
            elif isinstance(holder, list):
                holder.append(holder[last])
            else:
                holder[f"{last}x"] = holder[last]
        return value[0]

    return mutate


@st.composite
def answers(draw: st.DrawFn) -> Callable[[Any], httpx.Response]:
    """Functions that make a response, mostly a faulty one, from the right answer (JSON)."""
    mutate = draw(st.none() | mutations() | mutations())
    change = draw(st.none() | st.none() | st.none() | st.sampled_from(BODIES))
    headers, status = draw(st.just({}) | _HEADERS), draw(_STATUSES)
    reason = draw(st.sampled_from([b"OK", KEY.encode(), b"\x1b[2J", b""]))

    def make(right: Any) -> httpx.Response:
        body = json.dumps(mutate(right) if mutate else right).encode()
        return httpx.Response(
            status,
            headers=[(k.encode(), v.encode("latin-1")) for k, v in headers.items()],
            stream=httpx.ByteStream(change(body) if change else body),
            extensions={"reason_phrase": reason},
        )

    return make


def said(response: httpx.Response) -> Any:
    """The JSON of a response that is successful as to HTTP; None otherwise."""
    body = b"".join(response.stream)  # type: ignore[arg-type]
    encoding = response.headers.get("content-encoding", "identity")
    if not 200 <= response.status_code < 300 or encoding.strip().lower() != "identity":
        return None
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        return None


@contextmanager
def network(answer: Callable[[httpx.Request], httpx.Response]) -> Iterator[None]:
    """Inside, `answer` replies to all requests instead of the network."""

    async def handle(self: object, request: httpx.Request) -> httpx.Response:
        response = answer(request)
        response.request = request
        return response

    with patch.object(httpx.AsyncHTTPTransport, "handle_async_request", handle):
        yield


# Control tokens of models of several makers.
CONTROL_TOKENS = (
    "<s>", "</s>", "<bos>", "<eos>", "<unk>", "<pad>", "<mask>", "<|user|>", "<|guard|>",
    "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|turn>",
    "<unused99>", "<think>", "</think>", "<tool_call>", "[INST]", "[/INST]", "<<SYS>>", "[CLS]",
    "[gMASK]", "[|assistant|]", "]~b]", "[e~[", "<\uff5cUser\uff5c>", "<seed:bos>", ">>ANSWER<<",
)  # fmt: skip


def texts_with(tokens: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts that contain these tokens, parts of them, and combinations of parts."""
    part = st.sampled_from(tokens).flatmap(
        lambda token: (
            st.integers(1, len(token)).map(lambda n: token[:n])
            | st.integers(0, len(token) - 1).map(lambda n: token[n:])
        )
    )
    ordinary = st.sampled_from(["people are rude", " ", "\n\n", "<", ">", "[1]", "\u4eba", ""])
    pieces = st.sampled_from(tokens) | part | ordinary | st.text(max_size=3)
    return st.lists(pieces, max_size=8).map("".join)

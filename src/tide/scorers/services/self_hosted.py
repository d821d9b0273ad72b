"""Servers that users run themselves, asked by their address and, if they want one, with a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from tide.core.credentials import base_url, read_key
from tide.core.errors import InputError, ScorerError, ScorerRefusedError
from tide.core.http import MIB, Client, Reply, ServerFailed
from tide.scorers.control_tokens import break_up
from tide.scorers.services.base import Rate, RemoteScorer, Said, rate_from

_Parsed = TypeVar("_Parsed", bound=BaseModel)
_USUAL = {"concurrency": 8, "timeout": 60.0}


class SelfHostedScorer(RemoteScorer):
    """Base of scorers that ask a self-hosted server, given by its address.

    family: the name that environment variables begin with: FAMILY_API_KEY holds the key (sent as a
    bearer token), FAMILY_QPS the requests a second (100). Further settings: see RemoteScorer.

    The server's tokenizer is not known: whatever looks like a control token is sent with a space in
    it.
    """

    family: ClassVar[str]
    batch_size = 32

    def __init__(
        self,
        name: str,
        url: str,
        *,
        key: str | None = None,
        queries_per_second: Rate | None = None,
        **options: Any,
    ) -> None:
        if not url:
            raise InputError(f"scorer {name}: give the server's address, as in {name}:http://HOST")
        self._key = read_key(f"{self.family}_API_KEY", key)
        super().__init__(
            name,
            base_url(url, f"scorer {name}"),
            queries_per_second=rate_from(f"{self.family}_QPS", queries_per_second, 100.0),
            **{**_USUAL, **options},
        )

    def _said(self, texts: Sequence[str]) -> list[Said]:
        return super()._said([break_up(text) for text in texts])

    def _client(self) -> Client:
        headers = {}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.get_secret_value()}"
        return Client(self._timeout, headers=headers)

    async def _get(self, client: Client, path: str, kind: type[_Parsed]) -> _Parsed:
        return self._read(await client.ask("GET", self._url + path), path, 0, kind)

    async def _post(
        self, client: Client, path: str, body: Any, texts: int, kind: type[_Parsed]
    ) -> _Parsed:
        """What the server answers to `body`, which holds so many texts. Raises as `_ask`."""
        reply = await client.ask("POST", self._url + path, body, limit=(1 + texts) * MIB)
        return self._read(reply, path, texts, kind)

    def _read(self, reply: Reply, path: str, texts: int, kind: type[_Parsed]) -> _Parsed:
        if reply.status == 200:
            return reply.parse(kind)
        # What servers say of a refusal is not quoted: it may hold the text or the key.
        what = f"scorer {self.name}: HTTP {reply.status}"
        if reply.passing:
            raise ServerFailed(f"HTTP {reply.status}", reply.pause(0.0))
        if 300 <= reply.status < 400:
            raise ScorerRefusedError(
                f"{what}: it sends on to another address, which is not followed; give the address "
                "where it ends"
            )
        if reply.status in (401, 403):
            raise ScorerRefusedError(f"{what}: check {self.family}_API_KEY")
        if reply.status in (404, 405):
            raise ScorerRefusedError(
                f"{what}: there is no {path}; check the address, and what model it serves"
            )
        if reply.status == 413:
            raise ScorerError(f"{what}: a text is longer than its model reads; use windows:SCORER")
        raise ScorerError(f"{what} to a request of {texts} texts")

"""An engine for one or several vLLM servers, used over the OpenAI completions API.

    vllm serve MODEL --enable-prompt-embeds

The servers run the model; this process reads the tokenizer and embeddings of the same checkpoint.
Each completion is written by one server, and any server writes the same text. If a server fails,
another server continues its streamed completions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tide.core.concurrency import gather, items_of
from tide.core.errors import CompletionError, EngineError, guarded
from tide.core.http import MIB, Seconds, ServerFailed
from tide.core.pool import Endpoint, EndpointRefused
from tide.core.pretrained import read_config
from tide.core.sanitize import logger
from tide.engines.base import Dtype, Likelihood, MaxBatch, Piece, Request, TokenPair
from tide.engines.checkpoint import read_vocabulary, source_of
from tide.engines.embedding_table import EmbeddingEngine
from tide.engines.pool import PooledEngine
from tide.engines.remote import protocol
from tide.engines.remote.protocol import Choice, FirstToken, ServedModel, sampling_fields
from tide.plugins.options import checked

_log = logger(__name__)
_T = TypeVar("_T")
_Asked = TypeVar("_Asked")
_Waiting = tuple[Request, asyncio.Future[Piece]]

_MAX_BATCH = 256
# Maximum number of sequences per request (a few MB). All are repeated if the server fails.
_REQUEST_SIZE = 64
# Minimum number of tokens per stream event. Fewer cost throughput; more delay the first text.
_STREAM_INTERVAL = 2


class RemoteEngine(PooledEngine, EmbeddingEngine):
    """vLLM servers at `base_urls`, which all serve `model`.

    model: folder or hub id of the model that the servers run, or "pocket". base_urls: one address
    or several, `http://HOST:PORT`, with or without `/v1`. dtype: the servers' compute dtype; "auto"
    is the checkpoint's dtype, as for vLLM. max_batch: maximum number of running sequences.
    deadline: seconds that a completion or likelihood may take, including retries. timeout: seconds
    after which a server that does not answer counts as failed. api_key_env: the environment
    variable with the servers' API key, if any.

    Sequences with equal sampling and seed share requests, and so do greedy sequences with equal
    sampling; every other sequence needs a request. If a server fails on a request, the request goes
    to the other servers. If the server also fails a check, it leaves the pool until it works again;
    otherwise only the request fails (CompletionError).

    Raises InputError for options that cannot be used, and EngineError if no server answers, if the
    servers run a vLLM before 0.32, or if the embeddings cannot be read. Warns if a server writes
    different text from embeddings than from token ids.
    """

    @checked
    def __init__(
        self,
        model: str | Path = "pocket",
        *,
        base_urls: str | Sequence[str] = (),
        dtype: Dtype = "auto",
        max_batch: MaxBatch = None,
        deadline: Seconds = 120.0,
        timeout: Seconds = 60.0,
        api_key_env: str = "VLLM_API_KEY",
        trust_remote_code: bool = False,
    ) -> None:
        self.name = str(model)
        self.max_batch = max_batch or _MAX_BATCH
        self._source = source_of(model)
        code: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        with guarded(EngineError, f"model {self.name}: cannot be loaded"):
            config = read_config(self._source, **code)
            named = getattr(config.get_text_config(), "dtype", None)
            own = named if isinstance(named, torch.dtype) else torch.float32
            self.dtype = own if dtype == "auto" else getattr(torch, dtype)
            vocabulary = read_vocabulary(self._source, config, self.dtype, **code)
            super().__init__(*vocabulary, config)
        self.context_length = None
        self._waiting: dict[Any, list[_Waiting]] = {}  # requests that may share an HTTP request
        self._served: dict[str, ServedModel] = {}  # key: address of the server
        self._differences: dict[str, str] = {}
        self._connect(base_urls, timeout, deadline, api_key_env)
        usable = [endpoint.url for endpoint in self.pool.endpoints if endpoint.available]
        # For a likelihood a server also writes one token, so the limit is one token less.
        self.context_length = min(self._served[url].max_model_len for url in usable) - 1

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        async with self._capacity:
            if request.piece_tokens is None:
                yield await self._whole_piece(request)
                return
            async with aclosing(items_of(partial(self._stream, request))) as pieces:
                async for piece in pieces:
                    yield piece

    def _whole_piece(self, request: Request) -> asyncio.Future[Piece]:
        future: asyncio.Future[Piece] = asyncio.get_running_loop().create_future()
        if not self._waiting:  # sequences of one turn of the loop share requests
            asyncio.get_running_loop().call_soon(self._send)
        # An HTTP request has one value for each setting. Greedy sequences need no seed.
        seed = request.seed if request.sampling.temperature > 0 else None
        of_ids = isinstance(request.prompt, Sequence)
        key = request.sampling, seed, request.banned_token_ids, of_ids
        self._waiting.setdefault(key, []).append((request, future))
        return future

    async def _stream(self, request: Request, put: Callable[[Piece], None]) -> None:
        given: list[int] = []

        async def ask(endpoint: Endpoint) -> None:
            if len(given) == request.sampling.max_new_tokens:  # broke off before its reason
                put(Piece((), "length"))
                return
            # A server that takes over continues after the tokens that were already sent on.
            rest = request if not given else self.after(request, given)
            async with aclosing(self._parts(endpoint, rest)) as parts:
                async for piece in parts:
                    given.extend(piece.token_ids)
                    put(piece)

        await self.pool.run(1, ask)

    async def _parts(self, endpoint: Endpoint, request: Request) -> AsyncGenerator[Piece, None]:
        body = sampling_fields(request) | self._prompts([request.prompt])
        assert request.piece_tokens is not None
        body |= {"stream": True, "stream_interval": max(_STREAM_INTERVAL, request.piece_tokens)}
        full = self._full(endpoint, body)
        limit = MIB + 1024 * (request.sampling.max_new_tokens + len(request.prompt))
        events = endpoint.stream("/v1/completions", protocol.Event, full, limit=limit)
        count = 0
        async with aclosing(events):
            async for event in events:
                for part in event.choices:
                    ids = tuple(part.token_ids or ())
                    count += len(ids)
                    self._check_ids(ids, count, request.sampling.max_new_tokens)
                    piece = Piece(*protocol.without_end(ids, part.finish_reason, part.stop_reason))
                    yield piece
                    if piece.finish_reason is not None:
                        return
        raise ServerFailed("ended a stream without a finish reason")

    def _send(self) -> None:
        """Send the waiting requests to the servers."""
        waiting, self._waiting = self._waiting, {}
        for rows in waiting.values():
            for some in self._split([row for row in rows if not row[1].done()]):
                self.pool.begin(self._complete(some))

    async def _complete(self, asked: Sequence[_Waiting]) -> None:
        requests, futures = [one for one, _ in asked], [future for _, future in asked]
        task = asyncio.current_task()
        assert task is not None

        def cancel_if_unwanted(_: object) -> None:
            if all(future.cancelled() for future in futures):
                task.cancel()

        for future in futures:
            future.add_done_callback(cancel_if_unwanted)
        try:
            body = sampling_fields(requests[0]) | self._prompts([one.prompt for one in requests])
            found = await self._choices(body, requests, self._piece)
        except Exception as error:
            if isinstance(error, CompletionError) and len(asked) > 1:
                for row in asked:  # each on its own, to find the one that the servers fail at
                    self.pool.begin(self._complete([row]))
                return
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        else:
            for future, piece in zip(futures, found, strict=True):
                if not future.done():
                    future.set_result(piece)

    async def _log_likelihoods(
        self, pairs: Sequence[TokenPair], prefix_cache: object
    ) -> list[Likelihood]:
        async def some(rows: Sequence[TokenPair]) -> list[Likelihood]:
            whole = [[*prompt, *completion] for prompt, completion in rows]
            body = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "prompt": whole}
            means = await self._choices(body, [row[1] for row in rows], protocol.mean_log_prob)
            return [Likelihood(*one) for one in zip(means, map(len, whole), strict=True)]

        parts = await gather(map(some, self._split(pairs)))
        return [one for part in parts for one in part]

    def _full(self, endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
        own = {"model": self._served[endpoint.url].id, "return_token_ids": True}
        return protocol.NEUTRAL | body | own

    def _prompts(self, prompts: Sequence[Sequence[int] | Tensor]) -> dict[str, Any]:
        """Return the request's field for prompts, which are all token ids or all embeddings."""
        ids = [list(prompt) for prompt in prompts if isinstance(prompt, Sequence)]
        rows = [protocol.encode(x.to(self.dtype)) for x in prompts if not isinstance(x, Sequence)]
        return {"prompt": ids} if ids else {"prompt_embeds": rows}

    def _verify(self) -> None:
        """Raise EngineError if a server wrote different text from embeddings than from token ids.

        When a server enters the pool, its check only warns.
        """
        for url, problem in self._differences.items():
            raise EngineError(f"{url}: {problem}")

    def _split(self, rows: Sequence[_T]) -> list[Sequence[_T]]:
        """Split `rows` into parts that spread over the servers."""
        servers = sum(endpoint.available for endpoint in self.pool.endpoints)
        size = max(1, min(_REQUEST_SIZE, math.ceil(len(rows) / max(servers, 1))))
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    async def _choices(
        self, body: dict[str, Any], asked: Sequence[_Asked], read: Callable[[Choice, _Asked], _T]
    ) -> list[_T]:
        """Return `read(choice, one)` for each server's choice and its `one` of `asked`.

        A ServerFailed from `read` counts as a failure of the server.
        """

        async def work(endpoint: Endpoint) -> list[_T]:
            return list(map(read, await self._ask(endpoint, body, len(asked)), asked))

        return await self.pool.run(len(asked), work)

    async def _ask(self, endpoint: Endpoint, body: dict[str, Any], count: int) -> list[Choice]:
        """Send one request; returns the choices of `endpoint` for its `count` prompts."""
        # The limit is 1 KiB per token that is written or read, and a share of the embeddings' size.
        tokens = count * body["max_tokens"] + sum(map(len, body.get("prompt", ())))
        limit = MIB + 1024 * tokens + sum(map(len, body.get("prompt_embeds", ()))) // 64
        full = self._full(endpoint, body)
        answer = await endpoint.request(
            "/v1/completions", protocol.CompletionResponse, full, limit=limit
        )
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        if [choice.index for choice in choices] != list(range(count)):
            raise ServerFailed(f"answered {len(choices)} completions to {count} prompts")
        for choice in choices:
            self._check_ids(choice.token_ids, len(choice.token_ids), body["max_tokens"])
        return choices

    def _check_ids(self, ids: Sequence[int], count: int, most: int) -> None:
        if count > most:
            raise ServerFailed(f"wrote more than the {most} requested tokens")
        if max(ids, default=0) >= self._size:
            raise ServerFailed(f"wrote a token outside the vocabulary of {self._size}")

    def _piece(self, choice: Choice, request: Request) -> Piece:
        ids, reason = protocol.without_end(
            tuple(choice.token_ids), choice.finish_reason, choice.stop_reason
        )
        assert reason is not None
        try:
            self.completions([(ids, reason)], [request.sampling])
        except EngineError as error:  # ids that the tokenizer does not know
            raise ServerFailed(str(error)) from None
        return Piece(ids, reason)

    async def _admit(self, endpoint: Endpoint) -> None:
        """Check a server before it is used: its version, its model and its output."""
        version = (await endpoint.request("/version", protocol.ServerVersion)).version
        if protocol.is_older(version):
            raise EndpointRefused(
                f"runs vLLM {version}, which has known security holes in loading embeddings; "
                f"update it to {protocol.OLDEST} or later"
            )
        models = (await endpoint.request("/v1/models", protocol.ServedModels)).data
        ours = (self.name, self._source)
        model = next((m for m in models if m.id in ours or m.root in ours), models[0])
        if self.context_length is not None and model.max_model_len <= self.context_length:
            raise ServerFailed(
                f"has a context of {model.max_model_len} tokens, but this run began with a context "
                f"of {self.context_length + 1}"
            )
        self._served[endpoint.url] = model
        problem = await protocol.difference(self, partial(self._first_tokens, endpoint))
        self._differences.pop(endpoint.url, None)
        if problem is not None:
            self._differences[endpoint.url] = problem
            _log.warning("%s: %s", endpoint.url, problem)

    async def _check(self, endpoint: Endpoint) -> None:
        """Raise ServerFailed unless a server writes a token after embeddings."""
        await self._first_tokens(endpoint, self.embed(protocol.PROBES[:1]))

    async def _first_tokens(self, endpoint: Endpoint, prompts: Sequence[Any]) -> list[FirstToken]:
        body = {"max_tokens": 1, "temperature": 0.0, "logprobs": 0, **self._prompts(prompts)}
        choices = await self._ask(endpoint, body, len(prompts))
        if any(choice.logprobs is None for choice in choices):
            raise ServerFailed("answered without log-probabilities")
        return [(c.token_ids[0], c.logprobs.token_logprobs[0]) for c in choices if c.logprobs]

"""One or several vLLM servers, asked over the OpenAI completions API.

    vllm serve MODEL --enable-prompt-embeds

The servers hold the model; tokenizer and embeddings are read here, from the same checkpoint. A
sequence is written by one server as a whole, so which one it was changes nothing.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tide.core.credentials import read_key
from tide.core.errors import EngineError
from tide.core.http import MIB, Seconds, ServerFailed
from tide.core.pretrained import read_config
from tide.core.sanitize import logger
from tide.core.settings import Sampling
from tide.engines.base import (
    Completion,
    MaxBatch,
    Samplings,
    check_rows,
    check_tokens,
    float_dtype,
)
from tide.engines.checkpoint import read_vocabulary, source_of
from tide.engines.embedding_table import Vocabulary, reason_of
from tide.engines.equivalence import PROBES, FirstToken, difference, scaled_probes
from tide.engines.remote.pool import Endpoint, EndpointPool, EndpointRefused
from tide.engines.remote.protocol import (
    NEUTRAL,
    OLDEST,
    Answer,
    Choice,
    ServedModel,
    ServedModels,
    ServerVersion,
    encode,
    is_older,
    mean_log_prob,
)
from tide.plugins.options import checked

_log = logger(__name__)
_T = TypeVar("_T")

_MAX_BATCH = 256
# Sequences in one request: some MB at most, and what is done again if the server fails.
_REQUEST_SIZE = 64


class RemoteEngine(Vocabulary):
    """vLLM servers at `base_urls`, which all serve `model`.

    model: the folder or hub id that the servers run, for its tokenizer and embeddings, or "pocket".
    base_urls: one address or several, `http://HOST:PORT`, with or without `/v1`. dtype: what the
    servers compute in; "auto" is the checkpoint's own, as for vLLM. max_batch: sequences under way
    at once. deadline: seconds that a call of `complete` or `likelihood` may take, whatever
    fails meanwhile. timeout: seconds after which a server that does not answer counts as failed.
    api_key_env: the environment variable that holds the servers' API key, if they want one.

    Sequences that share sampling and seed, and all greedy ones that share sampling, share requests;
    others need one each. A server that fails leaves the pool, its work goes to the others, and it
    is taken back when it is well again.

    Raises InputError for options that cannot be used, and EngineError if no server answers, if they
    run a vLLM older than 0.32, or if the embeddings cannot be read. Warns if a server does not
    write the same from embeddings as from their token ids.
    """

    @checked
    def __init__(
        self,
        model: str | Path = "pocket",
        *,
        base_urls: str | Sequence[str] = (),
        dtype: str = "auto",
        max_batch: MaxBatch = None,
        deadline: Seconds = 120.0,
        timeout: Seconds = 60.0,
        api_key_env: str = "VLLM_API_KEY",
        trust_remote_code: bool = False,
    ) -> None:
        self.name = str(model)
        self.max_batch = max_batch or _MAX_BATCH
        self._deadline = deadline
        self._source = source_of(model)
        config = read_config(self._source, trust_remote_code=trust_remote_code)
        self.dtype = _dtype(dtype, config)
        super().__init__(
            *read_vocabulary(self._source, config, self.dtype, trust_remote_code=trust_remote_code),
            config,
        )
        self.context_length = None
        self._served: dict[str, ServedModel] = {}  # by address
        self._differences: dict[str, str] = {}
        self.pool = EndpointPool(
            [base_urls] if isinstance(base_urls, str) else base_urls,
            self._admit,
            timeout=min(timeout, deadline),
            api_key=read_key(api_key_env),
        )
        # A thread of its own, because the caller may be inside an event loop (notebooks are).
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._wait(self.pool.start())
        except BaseException:
            self.close()
            raise
        usable = [endpoint.url for endpoint in self.pool.endpoints if endpoint.available]
        # One less than the servers take: to read the last token of a likelihood they write another.
        self.context_length = min(self._served[url].max_model_len for url in usable) - 1

    def complete(
        self, embeddings: Sequence[Tensor], sampling: Samplings, seeds: Sequence[int]
    ) -> list[Completion]:
        samplings = check_rows(self, embeddings, sampling)
        encoded = [encode(x.to(self.dtype)) for x in embeddings]
        requests: list[tuple[Sequence[int], dict[str, Any]]] = []
        for (shared, seed), alike in _alike(samplings, seeds).items():
            body = {
                "max_tokens": shared.max_new_tokens,
                "temperature": shared.temperature,
                "top_p": shared.top_p,
                "top_k": shared.top_k,
                "min_tokens": shared.min_new_tokens,
                "stop": list(shared.stop),
                "seed": seed,
            }
            for rows in self._split(alike):
                requests.append((rows, body | {"prompt_embeds": [encoded[i] for i in rows]}))
        return self._wait(
            self._ask_all(requests, lambda i, choice: self._completion(choice, samplings[i]))
        )

    def likelihood(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        check_tokens(prompts, completions)
        self.check_ids([*prompts, *completions])
        sequences = [[*a, *b] for a, b in zip(prompts, completions, strict=True)]
        body = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        requests = [
            (rows, body | {"prompt": [sequences[i] for i in rows]})
            for rows in self._split(range(len(sequences)))
        ]
        return np.array(
            self._wait(
                self._ask_all(requests, lambda i, choice: mean_log_prob(choice, completions[i]))
            )
        )

    def verify(self) -> None:
        """Raise EngineError if a server did not write the same from embeddings as from their ids.

        That is looked at when a server enters the pool; there, it is a warning.
        """
        for url, problem in self._differences.items():
            raise EngineError(f"{url}: {problem}")

    @property
    def available(self) -> bool:
        return any(endpoint.available for endpoint in self.pool.endpoints)

    def _free(self) -> None:
        self._wait(self.pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # Ctrl-C stops the requests, too

    def _split(self, rows: Sequence[int]) -> list[Sequence[int]]:
        """`rows` in parts that spread over the servers."""
        servers = sum(endpoint.available for endpoint in self.pool.endpoints)
        size = max(1, min(_REQUEST_SIZE, math.ceil(len(rows) / max(servers, 1))))
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    async def _ask_all(
        self,
        requests: Sequence[tuple[Sequence[int], dict[str, Any]]],
        read: Callable[[int, Choice], _T],
    ) -> list[_T]:
        """What `read` makes of each row's choice, in the order of the rows of `requests`.

        requests: rows and body of each. A server for whose choice `read` raises ServerFailed fails.
        """
        by_row: dict[int, _T] = {}

        async def ask(rows: Sequence[int], body: dict[str, Any]) -> None:
            async def work(endpoint: Endpoint) -> None:
                choices = await self._ask(endpoint, body, len(rows))
                by_row.update({i: read(i, one) for i, one in zip(rows, choices, strict=True)})

            await self.pool.run(len(rows), work)

        tasks = [asyncio.create_task(ask(rows, body)) for rows, body in requests]
        try:
            await asyncio.wait_for(asyncio.gather(*tasks), self._deadline)
        except asyncio.TimeoutError:
            raise EngineError(
                f"the servers did not finish within {self._deadline:g} s (deadline): "
                f"{self.pool.reasons()}"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
        return [by_row[row] for row in range(len(by_row))]

    async def _ask(self, endpoint: Endpoint, body: dict[str, Any], count: int) -> list[Choice]:
        """One request: what `endpoint` wrote after each of its `count` prompts."""
        full = NEUTRAL | body | {"model": self._served[endpoint.url].id, "return_token_ids": True}
        # Some hundred bytes for each token that is written or read, and a few for each embedding.
        tokens = count * body["max_tokens"] + sum(map(len, body.get("prompt", ())))
        limit = MIB + 1024 * tokens + sum(map(len, body.get("prompt_embeds", ()))) // 64
        answer = await self.pool.request(endpoint, "/v1/completions", Answer, full, limit=limit)
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        if [choice.index for choice in choices] != list(range(count)):
            raise ServerFailed(f"answered {len(choices)} completions to {count} prompts")
        if any(len(choice.token_ids) > body["max_tokens"] for choice in choices):
            raise ServerFailed(f"wrote more than the {body['max_tokens']} tokens asked for")
        tokens_known = len(self._layer.weight)
        if any(max(choice.token_ids) >= tokens_known for choice in choices):
            raise ServerFailed(f"wrote a token outside the vocabulary of {tokens_known}")
        return choices

    def _completion(self, choice: Choice, sampling: Sampling) -> Completion:
        try:
            return self.completions([(choice.token_ids, reason_of(choice))], [sampling])[0]
        except EngineError as error:  # ids that cannot be read
            raise ServerFailed(str(error)) from None

    async def _admit(self, endpoint: Endpoint) -> None:
        """Look at a server before it is used: its version, its model, and what it writes."""
        version = (await self.pool.request(endpoint, "/version", ServerVersion)).version
        if is_older(version):
            raise EndpointRefused(
                f"runs vLLM {version}, which has known security holes in loading embeddings; "
                f"update it to {OLDEST} or later"
            )
        models = (await self.pool.request(endpoint, "/v1/models", ServedModels)).data
        ours = (self.name, self._source)
        model = next((m for m in models if m.id in ours or m.root in ours), models[0])
        if self.context_length is not None and model.max_model_len <= self.context_length:
            raise ServerFailed(
                f"context of {model.max_model_len} tokens; this run began with "
                f"{self.context_length + 1}"
            )
        self._served[endpoint.url] = model
        ids = self.tokenize(PROBES)
        embeddings = scaled_probes([self._embed_ids(row) for row in ids])
        by_ids = await self._first_tokens(endpoint, {"prompt": ids}, len(ids))
        by_embeddings = await self._first_tokens(
            endpoint, {"prompt_embeds": [encode(x) for x in embeddings]}, len(embeddings)
        )
        problem = difference(by_ids, by_embeddings, self.dim)
        self._differences.pop(endpoint.url, None)
        if problem is not None:
            self._differences[endpoint.url] = problem
            _log.warning("%s: %s", endpoint.url, problem)

    async def _first_tokens(
        self, endpoint: Endpoint, prompts: dict[str, Any], count: int
    ) -> list[FirstToken]:
        body = {"max_tokens": 1, "temperature": 0.0, "logprobs": 0}
        choices = await self._ask(endpoint, body | prompts, count)
        if any(choice.logprobs is None for choice in choices):
            raise ServerFailed("answered without log-probabilities")
        return [(c.token_ids[0], c.logprobs.token_logprobs[0]) for c in choices if c.logprobs]


def _dtype(name: str, config: Any) -> torch.dtype:
    if name != "auto":
        return float_dtype(name)
    dtype = getattr(config.get_text_config(), "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _alike(
    samplings: Sequence[Sampling], seeds: Sequence[int]
) -> dict[tuple[Sampling, int | None], list[int]]:
    """Numbers of the rows that can share a request, by their sampling and seed; greedy needs none.

    A request has one of each for all its sequences.
    """
    rows: dict[tuple[Sampling, int | None], list[int]] = {}
    for i, (sampling, seed) in enumerate(zip(samplings, seeds, strict=True)):
        rows.setdefault((sampling, seed if sampling.temperature > 0 else None), []).append(i)
    return rows

"""Any server of completions, asked as OpenAI's are: text in and text out, no embeddings.

    tide serve --engine openai --base-url http://HOST:PORT

What a server can do besides is found out when it is looked at first: whether it goes on with a last
message of the assistant's, and whether a bias keeps it from drawing a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

import torch

from tide.core.chat import Chat, Rendered, render
from tide.core.concurrency import told
from tide.core.credentials import read_key
from tide.core.errors import InputError, guarded
from tide.core.http import Seconds
from tide.core.sanitize import logger
from tide.core.settings import Sampling, Settings
from tide.engines.base import Engine, MaxBatch, Piece, Prompt, Request
from tide.engines.openai.abilities import Abilities, complete_probe, look_at
from tide.engines.openai.answer import Held, StreamedAnswer
from tide.engines.openai.held import HeldWords, ask_tokenizer
from tide.engines.openai.stream import streamed
from tide.engines.openai.words import (
    ChatText,
    Words,
    id_of,
    text_of,
    word_of,
    words_of,
)
from tide.engines.remote.pool import Endpoint, EndpointPool
from tide.engines.remote.protocol import NEVER
from tide.plugins.options import checked

_log = logger(__name__)

_MAX_BATCH = 64


class OpenAIEngine(Engine):
    """Servers at `base_urls`, which all serve `model` over OpenAI's completions API, streamed.

    model: the name by which the servers have it; with one that serves a single model, any.
    base_urls: one address or several, with or without `/v1`. max_batch: requests under way at once;
    1 for a server that takes one at a time. deadline: seconds that a completion may take, whatever
    fails meanwhile. timeout: seconds after which a server that sends nothing counts as failed.
    api_key_env: the environment variable with the servers' API key. tokenizer: folder or hub id of
    the model's tokenizer, where the server has no `/tokenize`; words are then banned by
    `logit_bias`. Without either they are drawn again, hotter, where they come.

    Its tokens are words (see `words`). It has no embeddings and tells no likelihoods. Raises
    InputError for options that cannot be used, and EngineError if no server can be.
    """

    honours: ClassVar = frozenset({"min_new_tokens", "stop"})

    @checked
    def __init__(
        self,
        model: str | Path = "pocket",
        *,
        base_urls: str | Sequence[str] = (),
        max_batch: MaxBatch = None,
        deadline: Seconds = 120.0,
        timeout: Seconds = 60.0,
        api_key_env: str = "OPENAI_API_KEY",
        tokenizer: str | Path | None = None,
    ) -> None:
        self.name = str(model)
        self.dim, self.dtype, self.context_length = 0, torch.float32, None
        self.max_batch = max_batch or _MAX_BATCH
        self._room = asyncio.Semaphore(self.max_batch)
        self._named = None if tokenizer is None else _read_tokenizer(tokenizer)
        self._abilities: dict[str, Abilities] = {}  # by address
        self.pool = EndpointPool(
            base_urls, self._admit, self._check, timeout, deadline, api_key=read_key(api_key_env)
        )
        try:
            self.portal.run(self.pool.start)
        except BaseException:
            self.close()
            raise
        self.name = next(iter(self._abilities.values())).model

    # Text and words.

    def _tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        return [
            [id_of(prompt.chat)]
            if isinstance(prompt, ChatText)
            else [id_of(word) for word in words_of(prompt)]
            for prompt in prompts
        ]

    def _encode(self, text: str) -> Prompt:
        prompt = super()._encode(text)
        is_chat = isinstance(text, ChatText)
        fixed = (is_chat,) * len(prompt.token_ids)
        return Prompt(prompt.text, prompt.token_ids, fixed, fixed if is_chat else None)

    def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [text_of(tuple(row)) for row in rows]

    def token_texts(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        with self._calling("texts"):
            return [[text_of((one,)) for one in row] for row in rows]

    def _begins_many(self, text: str) -> bool:
        return False  # a token is a whole word

    def _render(self, chat: Chat) -> Rendered:
        def template(messages: list[dict[str, str]]) -> str:
            lines = [f"{message['role']}: {message['content']}" for message in messages]
            return "\n".join([*lines, "assistant:"])

        read = render(chat, template, self.name)
        text = ChatText(str(read), read.spans)
        text.chat = chat
        return text

    def goes_on(self, prompt: Sequence[int]) -> bool:
        """Not in a chat, where one of the servers begins a new message."""
        chat = bool(prompt) and isinstance(word_of(prompt[0]), Chat)
        return not chat or all(one.continued is not None for one in self._abilities.values())

    # Writing.

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        if request.scored:
            raise InputError(f"engine {type(self).__name__}: tells no likelihoods")

        async def work(put: Callable[[Piece], None]) -> None:
            answer = StreamedAnswer(request, put)
            async with self._room:
                await self.pool.run(1, lambda server: self._ask(server, answer))

        async with aclosing(told(work)) as pieces:
            async for piece in pieces:
                yield piece

    async def _ask(self, endpoint: Endpoint, answer: StreamedAnswer) -> None:
        """Let a server write on until the answer has its end. Another may take over from there."""
        abilities = self._abilities[endpoint.url]
        while answer.reason is None:
            body = answer.body(abilities)
            if answer.held and abilities.held is not None:
                ids = await abilities.held.ids(answer.held)
                body["logit_bias"] = {str(token): NEVER for token in ids}
            before = len(answer.words)
            try:
                await self._read(endpoint, answer, body)
            except Held as held:
                answer.draw_again(len(answer.words) > before, held.reason)

    async def _read(self, endpoint: Endpoint, answer: StreamedAnswer, body: dict[str, Any]) -> None:
        words = Words(answer.left)
        async with aclosing(streamed(self.pool, endpoint, body)) as parts:
            async for text, reason in parts:
                answer.take(words.add(text))
                if reason is not None:
                    answer.end(words.end(), reason)

    def check_sampling(self, sampling: Sampling) -> None:
        super().check_sampling(sampling)
        if isinstance(sampling, Settings) and sampling.max_perplexity is not None:
            raise InputError(
                f"max_perplexity: {type(self).__name__} tells no likelihoods; leave it out, as the "
                "preset 'relative' does"
            )
        if sampling.top_k and not all(one.off for one in self._abilities.values()):
            raise InputError("top_k: not taken by the server; leave it at 0")

    # Servers.

    @property
    def available(self) -> bool:
        return not self.closed and self.pool.available

    @property
    def abilities(self) -> str:
        """One line on what was found out."""
        (first, *_) = self._abilities.values()
        held = f"logit_bias ({first.held.name})" if first.held else "drawing again where they come"
        goes_on = "go on in blocks" if first.continued is not None else "are one block"
        return f"serves {first.model}; words are banned by {held}; answers to chats {goes_on}"

    async def _free(self) -> None:
        await self.pool.close()

    async def _admit(self, endpoint: Endpoint) -> None:
        """Look at a server before it is used."""
        found = await look_at(self.pool, endpoint, self.name, self._named)
        self._abilities[endpoint.url] = found
        if found.context is not None:
            self.context_length = min(found.context, self.context_length or found.context)

    async def _check(self, endpoint: Endpoint) -> None:
        await complete_probe(self.pool, endpoint, self._abilities[endpoint.url])


def _read_tokenizer(source: str | Path) -> HeldWords:
    from transformers import AutoTokenizer  # noqa: PLC0415  (slow import)

    from tide.engines.checkpoint import source_of  # noqa: PLC0415  (slow import)

    with guarded(InputError, f"tokenizer {source}: cannot be read"):
        return ask_tokenizer(str(source), AutoTokenizer.from_pretrained(source_of(source)))

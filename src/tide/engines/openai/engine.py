"""Any server of completions, asked as OpenAI's are: text in and text out, no embeddings.

    tide serve --engine openai --base-url http://HOST:PORT

What a server can do besides is found out when it is looked at first: whether it goes on with a last
message of the assistant's, and whether a bias keeps it from drawing a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from tide.core.chat import Chat, Rendered, render
from tide.core.credentials import read_key
from tide.core.errors import CompletionError, EngineError, InputError, guarded
from tide.core.http import MIB, Seconds, ServerFailed
from tide.core.sanitize import logger
from tide.core.seeds import derive_seed
from tide.core.settings import Sampling, Settings
from tide.engines.base import Engine, FinishReason, MaxBatch, Piece, Prompt, Request
from tide.engines.openai.held import HeldWords, ask_server, ask_tokenizer, same_word
from tide.engines.openai.protocol import OFF, ChatEvent, ServedModels, TextEvent
from tide.engines.openai.words import (
    LONGEST_TOKEN,
    ChatText,
    Words,
    id_of,
    text_of,
    word_of,
    words_of,
)
from tide.engines.remote.pool import Endpoint, EndpointPool, EndpointRefused
from tide.engines.remote.protocol import NEVER
from tide.plugins.options import checked

_log = logger(__name__)
_T = TypeVar("_T")

_MAX_BATCH = 64
# HTTP statuses of one request that a server does not take, where it takes others.
_NOT_THIS_ONE = (400, 413, 422)
# Where a held word comes nevertheless, so many tokens are drawn in its place, each time hotter.
_DRAWN, _WARMER, _HOTTEST, _REDRAWS = 6, 0.3, 2.0, 8
# What is asked of a server to see how it goes on. All of them answer something.
_ASKED = ("What do you do in the morning?", "Tell me about the town where you live.")
_PROBES = (
    "The people of the town were kind, and in the morning",
    "She opened the window and said that",
    "The weather today is fine, and I think",
)
_PROBED = 16
_CONTINUED: tuple[dict[str, Any], ...] = (
    {"continue_final_message": True, "add_generation_prompt": False},
    {},
)


@dataclass
class Abilities:
    """What was found out about a server. model: its name there. off: what it is sent in any case.

    continued: what it is sent to go on with an assistant's message; None if it cannot.
    held: tells the tokens of held words; None where a bias does not work.
    """

    model: str
    off: dict[str, Any]
    continued: dict[str, Any] | None = None
    held: HeldWords | None = None


class _Held(Exception):
    """The server writes a word that is held back."""


class OpenAIEngine(Engine):
    """Servers at `base_urls`, which all serve `model` over OpenAI's completions API, streamed.

    model: the name by which the servers have it; with one that serves a single model, any.
    base_urls: one address or several, with or without `/v1`. max_batch: requests under way at once;
    1 for a server that takes one at a time. deadline: seconds that a completion may take, whatever
    fails meanwhile. timeout: seconds after which a server that sends nothing counts as failed.
    api_key_env: the environment variable with the servers' API key. tokenizer: folder or hub id of
    the model's tokenizer, where the server has no `/tokenize`; words are then held back by
    `logit_bias`. Without either they are drawn again, hotter, where they come.

    Its tokens are words (see `words`). It has no embeddings and tells no likelihoods. Raises
    InputError for options that cannot be used, and EngineError if no server can be.
    """

    honours: ClassVar = frozenset({"stop"})

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
        self._deadline = deadline
        self._room = asyncio.Semaphore(self.max_batch)
        self._named = None if tokenizer is None else _read_tokenizer(tokenizer)
        self._abilities: dict[str, Abilities] = {}  # by address
        self.pool = EndpointPool(
            [base_urls] if isinstance(base_urls, str) else base_urls,
            self._admit,
            timeout=min(timeout, deadline),
            api_key=read_key(api_key_env),
        )
        try:
            self.home.run(self.pool.start)
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
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        answer = _Answer(request, pieces.put_nowait)

        async def run() -> None:
            try:
                async with self._room:
                    await self._in_time(self.pool.run(1, lambda server: self._ask(server, answer)))
            finally:
                pieces.put_nowait(None)

        task = asyncio.create_task(run())
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            await task
        finally:
            task.cancel()

    async def _in_time(self, work: Awaitable[_T]) -> _T:
        try:
            return await asyncio.wait_for(work, self._deadline)
        except (TimeoutError, asyncio.TimeoutError):
            raise EngineError(
                f"the servers did not finish within {self._deadline:g} s (deadline): "
                f"{self.pool.reasons()}"
            ) from None

    async def _ask(self, endpoint: Endpoint, answer: _Answer) -> None:
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
            except _Held:
                answer.draw_again(len(answer.words) > before)

    async def _read(self, endpoint: Endpoint, answer: _Answer, body: dict[str, Any]) -> None:
        words = Words(answer.left)
        async with aclosing(self._said(endpoint, body)) as parts:
            async for text, reason in parts:
                answer.take(words.add(text))
                if reason is not None:
                    answer.end(words.end(), reason)

    async def _said(
        self, endpoint: Endpoint, body: dict[str, Any]
    ) -> AsyncGenerator[tuple[str, FinishReason | None], None]:
        """What a server streams, up to its end. Raises ServerFailed for what cannot be that."""
        chat = "messages" in body
        path = "/v1/chat/completions" if chat else "/v1/completions"
        kind: type[TextEvent | ChatEvent] = ChatEvent if chat else TextEvent
        most, read = LONGEST_TOKEN * body["max_tokens"], 0
        last: tuple[str, FinishReason] | None = None
        limit = MIB + 4096 * body["max_tokens"]
        try:
            async with aclosing(
                self.pool.stream(endpoint, path, kind, body, limit=limit)
            ) as events:
                async for event in events:
                    for part in event.choices:
                        read += len(part.said)
                        if last is not None:
                            raise ServerFailed("wrote on after the end that it told")
                        if read > most:
                            raise ServerFailed(f"wrote more than {body['max_tokens']} tokens")
                        if part.finish_reason is None:
                            yield part.said, None
                        else:
                            last = part.said, part.finish_reason
        except EndpointRefused as error:
            if error.status in _NOT_THIS_ONE:
                raise CompletionError(f"{endpoint.url}: {error}") from None
            raise
        if last is None:
            raise ServerFailed("ended a completion without saying why (no finish_reason)")
        yield last

    def check_sampling(self, sampling: Sampling) -> None:
        super().check_sampling(sampling)
        if isinstance(sampling, Settings) and sampling.max_perplexity is not None:
            raise InputError(
                f"max_perplexity: {type(self).__name__} tells no likelihoods; set it to none"
            )
        if sampling.top_k and not all(one.off for one in self._abilities.values()):
            raise InputError("top_k: not taken by the server; leave it at 0")

    # Servers.

    @property
    def available(self) -> bool:
        return not self.closed and any(one.available for one in self.pool.endpoints)

    @property
    def abilities(self) -> str:
        """One line on what was found out."""
        (first, *_) = self._abilities.values()
        held = f"logit_bias ({first.held.name})" if first.held else "drawing again where they come"
        goes_on = "go on in blocks" if first.continued is not None else "are one block"
        return f"serves {first.model}; words are held back by {held}; answers to chats {goes_on}"

    async def _free(self) -> None:
        await self.pool.close()

    async def _admit(self, endpoint: Endpoint) -> None:
        """Look at a server before it is used."""
        try:
            await self._look_at(endpoint)
        except CompletionError as error:  # it does not take what every such server takes
            raise EndpointRefused(str(error)) from None

    async def _look_at(self, endpoint: Endpoint) -> None:
        model, most = await self._find_model(endpoint)
        found = Abilities(model, dict(OFF))
        try:
            await self._complete(endpoint, found, {"prompt": _PROBES[0]})
        except CompletionError:  # it takes nothing that OpenAI's has not
            found.off = {}
        found.held = await self._find_held(endpoint, found)
        found.continued = await self._find_continued(endpoint, found)
        self._abilities[endpoint.url] = found
        if most is not None:
            self.context_length = min(most, self.context_length or most)

    async def _find_model(self, endpoint: Endpoint) -> tuple[str, int | None]:
        try:
            models = (await self.pool.request(endpoint, "/v1/models", ServedModels)).data
        except EndpointRefused as error:
            if error.status != 404:
                raise
            return self.name, None
        ours = [one for one in models if one.id == self.name]
        if not ours and len(models) > 1:
            some = ", ".join(one.id for one in models[:5])
            raise EndpointRefused(f"has no model {self.name!r}; --model is one of: {some}")
        (model, *_) = ours or models
        return model.id, model.max_model_len

    async def _find_held(self, endpoint: Endpoint, found: Abilities) -> HeldWords | None:
        """Who tells token ids, if a bias keeps the first word that was written from being drawn."""
        held = self._named or await ask_server(self.pool, endpoint, found.model)
        for prompt in _PROBES:
            written = await self._complete(endpoint, found, {"prompt": prompt})
            if written.lstrip().startswith(prompt):
                raise EndpointRefused("repeats the prompt before what it writes (echo)")
            first = next((word for word in words_of(written) if word.strip()), None)
            if first is not None:
                break
        if held is None or first is None:
            return None
        bias = {str(token): NEVER for token in await held.ids([first])}
        try:
            more = {"prompt": prompt, "logit_bias": bias}
            other = words_of(await self._complete(endpoint, found, more))
        except CompletionError:
            other = [first]
        if bias and same_word(first) != same_word((other or [""])[0]):
            return held
        _log.warning("%s: logit_bias with ids of %s does not work", endpoint.url, held.name)
        return None

    async def _find_continued(self, endpoint: Endpoint, found: Abilities) -> dict[str, Any] | None:
        """What lets a server go on with an assistant's message.

        It is given the first half of what it answered: it goes on if it writes the second.
        """
        for asked in _ASKED:
            messages = [{"role": "user", "content": asked}]
            body = {"messages": messages, "max_tokens": _PROBED}
            try:
                whole = words_of(await self._complete(endpoint, found, body))
            except (CompletionError, EndpointRefused, ServerFailed):
                return None  # it has no chats
            half = len(whole) // 2
            begun, rest = "".join(whole[:half]), "".join(whole[half:])
            # Of what is repeated, it cannot be seen where it goes on.
            if half < 2 or "".join(whole).startswith(rest[:8]) or not rest.strip():
                continue
            said = {"role": "assistant", "content": begun}
            for more in _CONTINUED:
                own = body | {"messages": [*messages, said], **more}
                try:
                    other = await self._complete(endpoint, found, own)
                except (CompletionError, EndpointRefused, ServerFailed):
                    continue
                if other and (other.startswith(rest) or rest.startswith(other)):
                    return dict(more)
        return None

    async def _complete(self, endpoint: Endpoint, found: Abilities, more: dict[str, Any]) -> str:
        """What a server writes, greedily, when it is looked at."""
        body = {"model": found.model, "max_tokens": _PROBED, "temperature": 0.0, "stream": True}
        text = ""
        async with aclosing(self._said(endpoint, found.off | body | more)) as parts:
            async for said, _ in parts:
                text += said
        return text


class _Answer:
    """What is written for one request, by one server or by several after each other.

    words: what was written, and given out, but for a chat that the server cannot go on with: that
    is given out as a whole. held: words that are not to be. left: tokens that may still be written.
    reason: why it has ended.
    """

    def __init__(self, request: Request, put: Callable[[Piece], None]) -> None:
        self.words: list[str] = []
        self.held = [text_of((one,)) for one in request.never]
        self.reason: FinishReason | None = None
        self._never = {same_word(word) for word in self.held}
        self._request, self._put = request, put
        self._redraws = self._drawn = 0
        self._whole = False

    @property
    def left(self) -> int:
        most = self._request.max_new_tokens - len(self.words)
        return min(most, _DRAWN) if self._drawn and not self._whole else most

    def body(self, abilities: Abilities) -> dict[str, Any]:
        """What a server is sent to write on."""
        assert isinstance(self._request.prompt, Sequence)
        first, *rest = (word_of(one) for one in self._request.prompt)
        if not isinstance(first, Chat):
            text = "".join(map(str, (first, *rest, *self.words)))
            return self._sampling(abilities) | {"prompt": text}
        if self._whole:
            self.words.clear()
        messages, written = first.dump(), "".join(map(str, (*rest, *self.words)))
        if not written:
            self._whole = abilities.continued is None
            return self._sampling(abilities) | {"messages": messages}
        if abilities.continued is None:
            raise CompletionError("the server does not go on with an answer to a chat")
        messages.append({"role": "assistant", "content": written})
        return self._sampling(abilities) | {"messages": messages, **abilities.continued}

    def _sampling(self, abilities: Abilities) -> dict[str, Any]:
        sampling, seed = self._request.sampling, self._request.seed
        place = len(self.words), self._redraws
        heat = max(0.5, sampling.temperature) + _WARMER * self._drawn
        body = {
            **abilities.off,
            "model": abilities.model,
            "max_tokens": self.left,
            "temperature": min(_HOTTEST, heat) if self._drawn else sampling.temperature,
            "top_p": sampling.top_p,
            # By the place, so that it does not matter which servers failed. Few take more bits.
            "seed": (derive_seed(seed, *place) if any(place) else seed) % 2**31,
            "stream": True,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        return body

    def take(self, words: Sequence[str]) -> None:
        """Give out words. Raises _Held before one that is held back."""
        for word in words:
            if same_word(word) in self._never:
                raise _Held
            self.words.append(word)
            if not self._whole:
                self._put(Piece((id_of(word),)))

    def end(self, words: Sequence[str], reason: FinishReason) -> None:
        """The server wrote these last."""
        drawn = bool(self._drawn) and reason == "length" and not self._whole
        if drawn and len(self.words) + len(words) < self._request.max_new_tokens:
            # The last word may be half a word, and is written again; but something stays.
            self.take(words if len(words) == 1 else words[:-1])
            self._drawn = 0
            return
        self.take(words)
        self._finish(reason)

    def draw_again(self, wrote: bool) -> None:
        """A held word came: the next tokens are drawn hotter. wrote: something stood before it."""
        self._redraws = 1 if wrote and not self._whole else self._redraws + 1
        if self._redraws > _REDRAWS:
            self._finish("length")  # it breaks off before the word
            return
        self._drawn = self._redraws

    def _finish(self, reason: FinishReason) -> None:
        self.reason = reason
        self._put(Piece(tuple(map(id_of, self.words)) if self._whole else (), reason))


def _read_tokenizer(source: str | Path) -> HeldWords:
    from transformers import AutoTokenizer  # noqa: PLC0415  (slow import)

    from tide.engines.checkpoint import source_of  # noqa: PLC0415  (slow import)

    with guarded(InputError, f"tokenizer {source}: cannot be read"):
        return ask_tokenizer(str(source), AutoTokenizer.from_pretrained(source_of(source)))

"""An engine for any server with OpenAI's completions API, which takes text and no embeddings.

    tide serve --engine openai --base-url http://HOST:PORT

Chats with tools or a response format are answered as a whole, and their fields are passed on to the
server. At the start, probes find out whether the server continues an assistant message, and whether
`logit_bias` bans a token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, ClassVar

import anyio

from tide.core.chat import Chat, Rendered, as_lines
from tide.core.errors import CompletionError, CompletionLateError, EngineError, InputError
from tide.core.http import Seconds, ServerFailed, ServerLate, read_key
from tide.core.results import FinishReason
from tide.core.sanitize import logger
from tide.core.settings import Sampling, derive_seed
from tide.engines.base import NEVER, Engine, MaxBatch, Piece, Request, Token
from tide.engines.openai.capabilities import Capabilities, look_at
from tide.engines.openai.streams import Aside, streamed
from tide.engines.openai.upstream import PATIENCE, Upstream, may_pass
from tide.engines.openai.words import ChatText, TokenSource, Words, ask_server, same_word, words_of
from tide.plugins.options import checked

_log = logger(__name__)
_MAX_BATCH = 64
_MOST_MODELS = 64
_SECONDS_TO_COUNT = 3.0  # for the tokens of an answer
_PROBE_PAUSE = 30.0  # seconds between two probes of a server, each of several completions


class OpenAIEngine(Engine):
    """Streams completions from the server at `base_url`.

    model: name of the model on the server; any name if it serves a single model. base_url: its
    address, with or without `/v1`. max_batch: maximum number of running requests; 1 for a server
    that takes one request at a time. deadline: seconds that a completion may take. timeout: seconds
    after which a server that sends nothing counts as failed. api_key_env: the environment variable
    with the server's API key. required: whether the server must answer at the start; otherwise it
    is probed later, and requests fail until then.

    Words are banned by `logit_bias` with the ids of `/tokenize`, or else redrawn at a higher
    temperature.

    The engine's tokens are the words themselves (see `words`), and a chat is one token. It has no
    embeddings and gives no likelihoods.
    Raises InputError for options that cannot be used, and EngineError if the server cannot be used.
    While the server cannot be reached, requests fail with EngineError; a request that the server
    refuses or fails at fails with CompletionError.
    """

    capabilities: ClassVar = frozenset({"min_new_tokens", "stop", "parts", "server_fields"})
    in_process: ClassVar = False

    @checked
    def __init__(
        self,
        model: str | Path = "pocket",
        *,
        base_url: str | None = None,
        max_batch: MaxBatch = None,
        deadline: Seconds = 120.0,
        timeout: Seconds = 60.0,
        api_key_env: str = "OPENAI_API_KEY",
        required: bool = True,
    ) -> None:
        self.name = str(model)
        self.max_batch = max_batch or _MAX_BATCH
        if not base_url:
            raise InputError("base_url: give the address of a server (--base-url http://HOST:PORT)")
        self._deadline = deadline
        self._capacity = asyncio.Semaphore(self.max_batch)
        key, patience = read_key(api_key_env), min(PATIENCE, deadline)
        self.upstream = Upstream(base_url, timeout, key=key, patience=patience)
        self._probed: Capabilities | None = None
        self._losses = -1  # those of the server before it was probed
        self._probe_at = 0.0  # the earliest time of the next probe
        self._sources: dict[str, TokenSource | None] = {}
        self._looking: Future[None] | None = None
        self._problem = ""  # why the server could not be probed
        try:
            self.portal.run(self._look)
        except BaseException as error:
            if not required and _is_for_now(error.__cause__):
                self._problem = str(error)
                _log.warning("%s; it is probed once it is reached", error)
            else:
                self.close()
                raise

    async def _look(self) -> None:
        """Probe the server, or find out whether a probed server can be reached.

        A server that was lost is probed again: it may have started with another model.
        """
        if not self._is_due:
            await self.upstream.look()
            return
        losses = self.upstream.losses
        self._probe_at = time.monotonic() + _PROBE_PAUSE
        try:
            self._probed = await look_at(self.upstream, self.name)
        except ServerFailed as error:
            raise EngineError(f"{self.upstream.url}: cannot be used: {error}") from error
        self.name, self._losses = self._probed.model, losses
        self._sources.clear()

    def _look_soon(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = self.portal.start(self._look)
            self._looking.add_done_callback(self._log_problem)

    def _log_problem(self, looking: Future[None]) -> None:
        """Log why the server cannot be probed, once."""
        if self.closed or looking.cancelled():
            return
        error = looking.exception()
        if error is not None and str(error) != self._problem:
            self._problem = str(error)
            _log.warning("%s", error)

    @property
    def _is_due(self) -> bool:
        """Whether the server is to be probed. A busy one, often "lost", is not probed each time."""
        if self._probed is None:
            return True
        return self._losses != self.upstream.losses and time.monotonic() >= self._probe_at

    @property
    def _server(self) -> Capabilities:
        if self._is_due:
            self._look_soon()
        if self._probed is None:
            raise EngineError(self._problem)
        return self._probed

    # Text and words.

    def _tokenize(self, prompts: Sequence[str]) -> list[list[Token]]:
        return [
            [prompt] if isinstance(prompt, ChatText) else words_of(prompt) for prompt in prompts
        ]

    def _texts(self, rows: Sequence[Sequence[Token]]) -> list[str]:
        return ["".join(words) for words in rows]

    async def count_tokens(self, text: str) -> int:
        source = self._server.token_source
        if source is not None and text:
            # No answer is lost, or kept back for long, because it cannot be counted.
            with suppress(ServerFailed), anyio.move_on_after(_SECONDS_TO_COUNT):
                return len(await source.tokenize(text))
        return len(words_of(text))

    def token_texts(self, rows: Sequence[Sequence[Token]]) -> list[list[str]]:
        return [list(words) for words in rows]

    def _begins_many(self, text: str) -> bool:
        return False  # a token is a whole word

    def _render(self, chat: Chat) -> Rendered:
        if chat.begun and self._server.continued is None:
            raise InputError("messages: this server does not continue a message of the assistant")
        text = ChatText(as_lines(chat.dump()))
        text.chat = chat
        return text

    def supports_continuation(self, prompt: Sequence[Token]) -> bool:
        """Return False for a chat `in_parts`, and for any chat if a server begins a new message."""
        text = prompt[0] if prompt else ""
        if not isinstance(text, ChatText):
            return True
        return self._server.continued is not None and not text.chat.in_parts

    # Writing.

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Request text until the answer ends.

        Raises EngineError if the server cannot be reached, CompletionError for other failures.
        """
        upstream = self.upstream
        async with self._capacity:
            until = time.monotonic() + self._deadline
            try:
                async with aclosing(self._request(StreamedAnswer(request), until)) as pieces:
                    async for piece in pieces:
                        yield piece
            except (ServerFailed, TimeoutError) as error:
                if time.monotonic() >= until:
                    late = f"not finished within {self._deadline:g} s (deadline)"
                    raise CompletionLateError(f"{upstream.url}: {late}") from error
                if isinstance(error, ServerLate):
                    raise CompletionLateError(f"{upstream.url}: {error}") from error
                if isinstance(error, ServerFailed) and error.broken:
                    await upstream.look()  # is the server gone, or does it fail at this request?
                kind = CompletionError if upstream.is_reached else EngineError
                raise kind(f"{upstream.url}: {error}") from error

    async def _request(self, answer: StreamedAnswer, until: float) -> AsyncGenerator[Piece, None]:
        server = self._server
        while answer.reason is None:
            body = answer.body(server)
            if answer.banned:
                with anyio.fail_after(until - time.monotonic()):
                    await self._ban(body, answer.banned)
            before, words, thoughts = len(answer.words), Words(answer.left), answer.aside.thoughts
            parts = streamed(self.upstream, body, answer.left, answer.aside, until)
            async with aclosing(parts):
                try:
                    async for text, reason in parts:
                        answer.take(words.add(thoughts.add(text)))
                        if reason is not None:
                            answer.take(words.add(thoughts.end()))
                            answer.end(words.end(), reason)
                        elif (piece := answer.piece(words.ends_word)) is not None:
                            yield piece
                except Banned as banned:
                    answer.draw_again(len(answer.words) > before, banned.reason)
            if (piece := answer.piece()) is not None:
                yield piece

    async def _ban(self, body: dict[str, Any], words: Sequence[str]) -> None:
        """Add a bias against the first tokens of `words` to a request's body."""
        source = await self._source_of_tokens(body["model"])
        if source is not None:
            ids = await source.ids(words)
            bias = body.get("logit_bias") or {}
            if isinstance(bias, list):  # llama.cpp also takes pairs
                body["logit_bias"] = bias + [[token, NEVER] for token in ids]
            else:
                body["logit_bias"] = bias | {str(token): NEVER for token in ids}

    # The server.

    async def _source_of_tokens(self, model: str) -> TokenSource | None:
        """Return the source of a model's token ids; other models of the server have others."""
        server = self._server
        if server.token_source is None or model == server.model:
            return server.token_source
        if model not in self._sources:
            if len(self._sources) == _MOST_MODELS:
                self._sources.clear()
            self._sources[model] = await ask_server(self.upstream, model)
        return self._sources[model]

    @property
    def capability_notes(self) -> str:
        if self._probed is None:
            return "the server could not be probed yet; the log says why"
        server = self._probed
        banned = (
            f"logit_bias ({server.token_source.name})" if server.token_source else "redrawing text"
        )
        redrawn = "the end" if server.continued is not None else "all"
        return (
            f"serves {server.model}; bans words by {banned}; "
            f"redraws {redrawn} of a failing answer to a chat"
        )

    @property
    def available(self) -> bool:
        """Whether the last request reached the server; another one is sent now."""
        if self.closed:
            return False
        self._look_soon()
        return self._probed is not None and self.upstream.is_reached

    async def _free(self) -> None:
        await self.upstream.close()


def _is_for_now(error: BaseException | None) -> bool:
    """Whether a server that cannot be probed may be probed later."""
    if not isinstance(error, ServerFailed):
        return False
    return may_pass(error) or isinstance(error, ServerLate) or error.broken


# Redraws of banned text: tokens per redraw, temperature step and maximum, redraws at one place.
_DRAWN, _WARMER, _HOTTEST, _REDRAWS = 6, 0.3, 2.0, 8
# Requests for one answer. A server may write one new word, and then a banned one, each time.
_REQUESTS = 200


class Banned(Exception):
    """The server wrote a banned word, or ended the text before `min_new_tokens`.

    reason: finish reason of the answer if all redraws fail.
    """

    def __init__(self, reason: FinishReason) -> None:
        super().__init__(reason)
        self.reason = reason


class StreamedAnswer:
    """The text of one request.

    words: words written so far. Words are sent on at once, or all at the end if the answer may have
    to be redrawn as a whole. aside: the answer's reasoning and tool calls. banned: words that
    must not be written. left: number of tokens that may still be written. reason: finish reason.
    """

    def __init__(self, request: Request) -> None:
        self.words: list[str] = []
        self.banned: list[str] = list(request.banned_token_ids)
        self.reason: FinishReason | None = None
        self._banned_spellings = {same_word(word) for word in self.banned}
        self._request = request
        self._unsent: list[str] = []
        # The fields of a client's request, or none for a caller in Python.
        self._fields: dict[str, Any] = request.sampling.server_fields or {}
        self._redraws = self._drawn = self._requests = 0
        self._whole, self._continues = False, True
        self.aside = Aside(inline=False)

    @property
    def min_left(self) -> int:
        """Number of tokens that must still be written before the text may end."""
        written = 0 if self._whole else len(self.words)
        return max(0, self._request.sampling.min_new_tokens - written)

    @property
    def left(self) -> int:
        left = self._request.sampling.max_new_tokens - len(self.words)
        return min(left, _DRAWN) if self._drawn and not self._whole else left

    def body(self, server: Capabilities) -> dict[str, Any]:
        """Return the body of an HTTP request for the rest of the answer."""
        assert isinstance(self._request.prompt, Sequence)
        self._requests += 1
        first, *rest = self._request.prompt
        if not isinstance(first, ChatText):
            return self._sampling(server) | {"prompt": "".join((first, *rest, *self.words))}
        chat = first.chat
        if self._whole:
            self.words.clear()
        messages = self._fields.get("messages") or chat.dump()
        written = "".join((*rest, *self.words))
        if not written:
            self._continues = server.continued is not None or chat.in_parts
            is_redrawn = self._redraws > 0 or (bool(self.banned) and server.token_source is None)
            self._whole = chat.in_parts or (not self._continues and is_redrawn)
            self.aside = Aside(inline=not chat.begun)
            if not chat.begun:
                return chat.asked | self._sampling(server) | {"messages": messages}
        if server.continued is None:
            raise CompletionError("the server cannot continue an answer to a chat")
        answer = {"role": "assistant"}
        if chat.begun:
            *messages, answer = messages
        messages = [*messages, {**answer, "content": chat.begun + written}]
        return self._sampling(server) | {"messages": messages, **server.continued}

    def _sampling(self, server: Capabilities) -> dict[str, Any]:
        """Return the fields of an HTTP request besides the prompt.

        Of a client's request, all fields are sent, and no others unless a policy sets them.
        """
        sampling = self._request.sampling
        if sampling.server_fields is not None:
            body, chosen = dict(self._fields), sampling.model_fields_set
        else:
            body, chosen = dict(server.off), set(Sampling.model_fields)
        body |= {"model": body.get("model", server.model), "stream": True}
        if server.counts:
            body["stream_options"] = {"include_usage": True}
        if self._drawn:
            heat = max(0.5, sampling.temperature) + _WARMER * self._drawn
            body["temperature"] = min(_HOTTEST, heat)
        elif "temperature" in chosen:
            body["temperature"] = sampling.temperature
        if self._drawn or "max_new_tokens" in chosen:
            newer = "max_completion_tokens"
            body["max_tokens" if body.get(newer) is None else newer] = self.left
        self._set_seed(body)
        # Some servers refuse a `top_p` of 1; `off` holds 1 for all other servers.
        if "top_p" in chosen and sampling.top_p < 1:
            body.setdefault("top_p", sampling.top_p)
        if "top_k" in chosen and sampling.top_k:
            body["top_k"] = sampling.top_k
        if self.min_left:
            # No stop strings are sent, since an answer does not say whether a stop string or the
            # model ended it. The text is cut later.
            if "min_tokens" in server.off:
                body["min_tokens"] = min(self.min_left, self.left)
        elif sampling.stop:
            body["stop"] = list(sampling.stop)
        return body

    def _set_seed(self, body: dict[str, Any]) -> None:
        """Send a client's own seed at first, later others derived from it, or none without it.

        An answer that cannot be continued always has a seed: written anew, it begins as before.
        """
        is_client = self._request.sampling.server_fields is not None
        draw = len(self.words), self._redraws
        is_own = self._request.is_first and not any(draw)
        if is_client and body.get("seed") is None and self._continues:
            return
        if is_client and body.get("seed") is not None and is_own:
            return
        seed = derive_seed(self._request.seed, *draw) if any(draw) else self._request.seed
        body["seed"] = seed % 2**31  # few servers take more bits

    def take(self, words: Sequence[str]) -> None:
        """Add words and send them on. Raises Banned before a banned word."""
        for word in words:
            if same_word(word) in self._banned_spellings:
                raise Banned("content_filter")
            self.words.append(word)
            if not self._whole:
                self._unsent.append(word)

    def end(self, words: Sequence[str], reason: FinishReason) -> None:
        """Take the server's last words. Raises Banned if the text ends too early."""
        drawn = bool(self._drawn) and reason == "length" and not self._whole
        if drawn and len(self.words) + len(words) < self._request.sampling.max_new_tokens:
            # The last word may be incomplete, so it is drawn again, unless it is the only word.
            self.take(words if len(words) == 1 else words[:-1])
            self._drawn = 0
            return
        self.take(words)
        short = len(self.words) < self._request.sampling.min_new_tokens
        if reason == "stop" and short and not self.aside.parts.tool_calls:
            raise Banned("stop")
        self._finish(reason)

    def draw_again(self, wrote: bool, reason: FinishReason) -> None:
        """Redraw at a higher temperature. wrote: whether words came before the banned word."""
        if self.words and not self._whole and not self._continues:
            self._finish(reason)
            return
        self._drawn = self._redraws = 1 if wrote and not self._whole else self._redraws + 1
        if self._requests >= _REQUESTS:
            self._finish("content_filter")  # not "stop", or the answer would look whole
        elif self._redraws > _REDRAWS:
            self._finish(reason)  # the answer ends here

    def _finish(self, reason: FinishReason) -> None:
        self.reason = reason
        if self._whole:
            self._unsent = list(self.words)

    def piece(self, ends_word: bool = False) -> Piece | None:
        """Return what was not sent on yet, if anything, and the end of an answer that has ended."""
        words = tuple(self._unsent)
        self._unsent.clear()
        if self.reason is None:
            return Piece(words, ends_word=ends_word) if words else None
        # A server has not counted what came before a redraw.
        usage = self.aside.usage if self._requests == 1 else None
        return Piece(words, self.reason, parts=self.aside.parts, usage=usage)

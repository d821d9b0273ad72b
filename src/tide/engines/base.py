"""The base class of engines, which stream completions of prompts and know nothing of toxicity.

A new engine derives from `Engine`, sets `name`, and implements `_tokenize`, `_texts` and `_write`.
For searches that perturb prompts it sets `dim` and `dtype`, and implements `_embed_tokens`.
`tests/scripted_engine.py` is an example. The public methods check input and output, and raise only
TideErrors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    get_args,
)

from anyio.to_thread import run_sync as in_thread
from pydantic import Field

from tide.core.chat import Chat, Parts, Rendered
from tide.core.concurrency import Portal, gather, portal_of
from tide.core.errors import CompletionError, EngineError, InputError, TideError, guarded
from tide.core.results import FinishReason, Usage
from tide.core.sanitize import half_character
from tide.core.settings import Sampling, derive_seed
from tide.core.text import HALF, is_letter

if TYPE_CHECKING:  # the command line imports this module, and torch takes seconds
    from torch import Tensor

# No machine has memory for more rows than the limit. None means the engine's default.
MaxBatch = Annotated[int, Field(ge=1, le=65_536)] | None
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
_GREEDY = Sampling(max_new_tokens=1, temperature=0.0)
# Maximum number of spellings banned with a word; some punctuation marks have dozens of spellings.
MOST_SPELLINGS = 8
# The strongest bias on a token's logit that servers take. At usual temperatures a token with this
# bias is never drawn.
NEVER = -100.0

# Settings, and the capability that an engine needs for them.
_NEEDS = {
    "min_new_tokens": "min_new_tokens",
    "stop": "stop",
    "repetition_penalty": "repetition_penalty",
    "server_fields": "server_fields",
    "tool_calls": "parts",
    "reasoning": "parts",
}
# The parts of an answer without reasoning and tool calls.
_NO_PARTS = Parts()

# An id of the model's vocabulary; a word as text, for an engine that does not know the vocabulary.
Token: TypeAlias = Any


@dataclass(frozen=True)
class Prompt:
    """A tokenized prompt.

    fixed_mask: marks tokens that searches do not perturb by default, which are BOS, role markers
        and, in a chat, all but the last user message.
    """

    text: str
    token_ids: tuple[Token, ...]
    fixed_mask: tuple[bool, ...]


@dataclass(frozen=True)
class Completion:
    """The text that a model wrote after a prompt, without the token that ended the text.

    read_tokens: the sum of `read_tokens` over all pieces of the completion.
    """

    text: str
    token_ids: tuple[Token, ...]
    finish_reason: FinishReason
    read_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, eq=False)
class Request:
    """A request for a completion.

    prompt: token ids, or input embeddings (T, d) of any float dtype. penalized_ids: ids to which a
    repetition penalty applies in place of such embeddings. seed: equal seeds draw equal noise
    (common random numbers). banned_token_ids: ids that are never drawn. banned_first_ids: further
    ids that are not drawn as the first token. priority: requests with the lowest number are
    served first. prefix_cache: see `Engine.prefix_cache`. piece_tokens: number of tokens that a
    piece may wait for; None asks for one piece at the end. is_first: whether nothing
    was rejected yet; a server then gets the client's own seed.
    """

    prompt: Sequence[Token] | Tensor
    sampling: Sampling = _GREEDY
    seed: int = 0
    banned_token_ids: tuple[Token, ...] = ()
    banned_first_ids: tuple[Token, ...] = ()
    priority: int = 0
    prefix_cache: object = None
    piece_tokens: int | None = None
    is_first: bool = True
    penalized_ids: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Piece:
    """The next part of a completion, without the token that ended the text.

    finish_reason: reason why the completion ended; None if more pieces follow. read_tokens: number
    of prompt tokens that the model read for this piece, without cached tokens. An engine without a
    prefix cache leaves the field None, and the first piece then counts the whole prompt. parts: the
    reasoning and tool calls of the whole answer; only the last piece has parts. usage: the server's
    count of the prompt's tokens and of the answer's, in the last piece. ends_word: whether the next
    token is known to begin another word, so that the text up to here can be scored.
    """

    token_ids: tuple[Token, ...]
    finish_reason: FinishReason | None = None
    read_tokens: int | None = field(default=None, compare=False)
    parts: Parts = _NO_PARTS
    usage: Usage | None = field(default=None, compare=False)
    ends_word: bool = field(default=False, compare=False)


class Ban(NamedTuple):
    """A ban that keeps a text from being written again; see `Engine.ban`.

    position: index of the first visible token; the ban applies after the tokens before it.
    token_ids: ids to ban, at most `MOST_SPELLINGS`. everywhere: whether the ban holds for the rest
    of the text; otherwise it holds for the next token only (`Request.banned_first_ids`).
    """

    position: int
    token_ids: tuple[Token, ...]
    everywhere: bool


def name_of(model: Any) -> str:
    """Return the name of a model: a name, a path, an engine, or a model of transformers.

    Raises InputError for anything else.
    """
    if isinstance(model, str | Path):
        return str(model)
    if isinstance(model, Engine):
        return str(model.name)
    if not hasattr(model, "name_or_path"):
        kind = type(model).__name__
        raise InputError(f"model: expected a name, a path, an engine or a model, got {kind}")
    return str(model.name_or_path)


class Engine(ABC):
    """One causal language model.

    Attributes:
        name: Name of the model, for records.
        dim: Width d of the model's input embeddings; 0 without embeddings.
        dtype: Compute dtype of the model; None if unknown.
        context_length: Maximum number of tokens of prompt plus completion; None if unlimited.
        max_batch: Maximum number of sequences run at once.
        in_process: Whether the model runs in this process and not on a server.
        capabilities: Names of the optional sampling options that this engine supports. "parts" says
            that it takes chats with tools, and separates tool calls and reasoning from the text.
    """

    name: str
    dim: int = 0
    dtype: Any = None
    context_length: int | None = None
    max_batch: int = 16
    in_process: ClassVar[bool] = True
    capabilities: ClassVar[frozenset[str]] = frozenset()
    closed = False

    # Every engine implements the next three methods, which the public methods below document.
    # `_write` and `_free` run in the engine's event loop.

    @abstractmethod
    def _tokenize(self, prompts: Sequence[str]) -> list[list[Token]]: ...

    @abstractmethod
    def _texts(self, rows: Sequence[Sequence[Token]]) -> list[str]: ...

    @abstractmethod
    def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Complete a request that was checked. Closing the generator aborts the request."""

    # Some engines implement these methods.

    def _encode(self, text: str) -> Prompt:
        (ids,) = self._tokenize([text])
        return Prompt(str(text), tuple(ids), (False,) * len(ids))

    def _embed_tokens(self, token_ids: Sequence[Token]) -> Tensor:
        raise InputError(f"engine {type(self).__name__}: has no embeddings")

    def _render(self, chat: Chat) -> Rendered:
        raise InputError(f"messages: {type(self).__name__} has no chat template; give a text")

    def _vocabulary(self) -> Sequence[str]:
        """Return the text of each token id, or "" for an unknown text; see `ban`."""
        return ()

    async def _free(self) -> None:  # noqa: B027
        """Free memory, processes and connections; running work ends with EngineError."""

    # Texts and tokens.

    def tokenize(self, prompts: Sequence[str]) -> list[list[Token]]:
        """Return token ids, with the special tokens that the model expects around a prompt.

        Raises InputError for a prompt with a token that the model has no embedding for, and
        CompletionError if the tokenizer fails.
        """
        with self._calling("tokenize", CompletionError):
            return self._tokenize(prompts)

    async def count_tokens(self, text: str) -> int:
        """Return the number of the model's tokens in a text."""
        return len(self.tokenize([text])[0]) if text else 0

    def encode(self, text: str) -> Prompt:
        """Tokenize a prompt, and mark the tokens that searches keep. Raises like `tokenize`."""
        with self._calling("encode", CompletionError):
            return self._encode(text)

    def texts(self, rows: Sequence[Sequence[Token]]) -> list[str]:
        """Return the text that each row of completion ids adds to a prompt, with control tokens."""
        with self._calling("texts", CompletionError):
            return self._texts(rows)

    def token_texts(self, rows: Sequence[Sequence[Token]]) -> list[list[str]]:
        """Return the text that each token of each row adds; joined, the texts are the row's text.

        A token that ends inside a code point adds nothing; the token that completes the code point
        adds it. So a text may be cut after any token that adds text, unless that text ends with an
        incomplete code point. The texts of single tokens are cached.
        """
        known = self._texts_alone
        unknown = list({token for ids in rows for token in ids if token not in known})
        texts = self.texts([*rows, *([token] for token in unknown)])
        known.update(zip(unknown, texts[len(rows) :], strict=True))
        return [self._parted(ids, text) for ids, text in zip(rows, texts, strict=False)]

    def _parted(self, ids: Sequence[Token], whole: str) -> list[str]:
        texts = [self._texts_alone[token] for token in ids]
        if "".join(texts) == whole:
            return texts
        # Some tokens are parts of characters, or their text depends on the tokens before them.
        ends = [0]
        for text in self.texts([ids[:count] for count in range(1, len(ids))]):
            whole_so_far = whole.startswith(text) and not text.endswith(HALF)
            ends.append(max(ends[-1], len(text) if whole_so_far else 0))
        ends.append(len(whole))
        return [whole[start:end] for start, end in pairwise(ends)]

    async def ban(self, token_ids: Sequence[Token]) -> Ban:
        """Return the ids to ban so that the text of these tokens is not written again.

        The first visible token is banned for the rest of the text, and so are the tokens that
        differ from it only in case or surrounding spaces. A token that is a part of a character or
        a single non-ASCII letter begins many words. It is banned only as the next token, because
        a longer ban would make its language impossible to write.
        """
        texts = [text for (text,) in self.token_texts([[token_id] for token_id in token_ids])]
        position = next((index for index, text in enumerate(texts) if text.strip()), None)
        if position is None:
            return Ban(0, tuple(token_ids[:1]), True)
        token_id = token_ids[position]
        if self._begins_many(texts[position]):
            return Ban(position, (token_id,), False)
        if "_spellings" not in vars(self):
            # Reading a large vocabulary takes seconds, and other prompts share this loop.
            await in_thread(getattr, self, "_spellings", abandon_on_cancel=True)
        spellings = self._spellings.get(texts[position].strip().casefold(), ())
        alike = dict.fromkeys((token_id, *spellings))
        return Ban(position, tuple(alike)[:MOST_SPELLINGS], True)

    def render(self, chat: Chat) -> Rendered:
        """Return the text of a chat, to be passed to `tokenize` or `encode`.

        Raises InputError if the model has no chat template, or the template refuses the chat.
        """
        if chat.in_parts and "parts" not in self.capabilities:
            field = next(iter(chat.asked), "messages")
            raise InputError(f"{field}: only the engine 'openai' takes it; leave it out")
        with self._calling("render", CompletionError):
            return self._render(chat)

    def text_of(self, prompt: str | Chat) -> str:
        """Return the text to complete for a prompt. Raises InputError for an invalid prompt."""
        if isinstance(prompt, Chat):
            return self.render(prompt)
        value: Any = prompt  # callers may not check types
        if not isinstance(value, str):
            kind, ways = type(prompt).__name__, "Detoxifier.map takes several, detox.chat messages"
            raise InputError(f"expected a text, got {kind}; {ways}")
        if (index := half_character(prompt)) is not None:
            raise InputError(f"invalid Unicode: lone surrogate at index {index}")
        if not prompt.strip():
            raise InputError("empty; a prompt needs at least one character")
        return prompt

    # Embeddings.

    def embed(self, prompts: Sequence[str]) -> list[Tensor]:
        """Return the token embeddings (T_i, d) of each prompt; see `embed_tokens`."""
        return [self.embed_tokens(ids) for ids in self.tokenize(prompts)]

    def embed_tokens(self, token_ids: Sequence[Token]) -> Tensor:
        """Return the scaled input embeddings (n, d) of token ids, float32 on the CPU.

        The model completes the embeddings as it completes the ids.
        """
        with self._calling("embed_tokens"):
            return self._embed_tokens(token_ids)

    def prefix_cache(self) -> object:
        """Return a handle for requests that continue each other's texts.

        While it exists, the model reads only the last token id of a request whose other ids were
        all read or written for the previous request with this handle. Caching changes completions
        only by rounding. Returns None if nothing can be cached.
        """
        return None

    # Writing.

    async def write(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Write a completion piece by piece. The text does not depend on the rest of the batch.

        Closing the generator aborts the request at the next step. Raises CompletionError for a
        prompt that the engine cannot complete, InputError for an option that it does not support,
        and EngineError if the engine fails for all prompts.
        """
        if not self.portal.is_current:
            async with aclosing(self.portal.iterate(self.write, request)) as elsewhere:
                async for piece in elsewhere:
                    yield piece
            return
        reread = 0  # tokens at the end of the prompt that this call has written
        if request.banned_first_ids:
            # These bans hold for one token, so that token is a request of its own.
            sampling = request.sampling
            first = replace(
                request,
                sampling=sampling.limited(1, min(1, sampling.min_new_tokens)),
                banned_token_ids=request.banned_token_ids + request.banned_first_ids,
                banned_first_ids=(),
            )
            ids, reason, read = await self._whole(first)
            over = reason == "stop" or len(ids) == sampling.max_new_tokens
            yield Piece(tuple(ids), reason if over else None, read)
            if over:
                return
            reread = len(ids)
            request = replace(
                request,
                prompt=(*request.prompt, *ids),
                sampling=sampling.limited(
                    sampling.max_new_tokens - reread, max(0, sampling.min_new_tokens - reread)
                ),
                seed=derive_seed(request.seed, reread),
                banned_first_ids=(),
            )
        written = 0
        unread = len(request.prompt) - reread
        with self._calling("write", awaits=True):
            self.check(request)
            async with aclosing(self._write(request)) as pieces:
                async for piece in pieces:
                    written += len(piece.token_ids)
                    self._check_piece(piece, written, request)
                    read = unread
                    unread = 0
                    if piece.read_tokens is not None:
                        read = max(0, piece.read_tokens - reread)
                    is_read = read == (piece.read_tokens or 0)
                    yield piece if is_read else replace(piece, read_tokens=read)
                    if piece.finish_reason is not None:
                        return
        raise EngineError(f"engine {self.name}: a completion ended without a finish reason")

    async def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Return the whole completion of each request. A failure aborts the other requests."""
        if not self.portal.is_current:
            return await self.portal.call(self.complete, requests)
        rows = await gather(map(self._whole, requests))
        return [
            self.completion(*row, request.sampling)
            for row, request in zip(rows, requests, strict=True)
        ]

    def completion(
        self, ids: Sequence[Token], reason: FinishReason, read_tokens: int, sampling: Sampling
    ) -> Completion:
        """Return the completion of token ids, which exclude the token that ended the text.

        The text is cut before its first stop string, and the ids to the shortest prefix whose text
        begins with the cut text.
        """
        (text,) = self.texts([ids])
        end = sampling.stop_in(text)
        if end is None:
            return Completion(text, tuple(ids), reason, read_tokens)
        text = text[:end]
        count = bisect_left(
            range(len(ids)), True, key=lambda count: self.texts([ids[:count]])[0].startswith(text)
        )
        return Completion(text, tuple(ids[:count]), "stop", read_tokens)

    def has_stopped(self, ids: Sequence[Token], sampling: Sampling) -> bool:
        """Return whether the text of these ids contains a stop string."""
        return sampling.stop_in(self.texts([ids])[0]) is not None

    # Checks and properties.

    def check(self, request: Request) -> None:
        """Raise CompletionError for an invalid prompt, InputError for an unsupported option."""
        self.check_sampling(request.sampling)
        self.check_prompt(request.prompt, request.sampling.max_new_tokens)
        knows_ids = isinstance(request.prompt, Sequence) or request.penalized_ids
        if request.sampling.repetition_penalty != 1 and not knows_ids:
            raise InputError("repetition_penalty: embeddings also need their `penalized_ids`")

    def check_prompt(self, prompt: Sequence[Token] | Tensor, new_tokens: int) -> None:
        """Raise CompletionError for a prompt that is invalid, or too long for the new tokens."""
        if isinstance(prompt, Sequence):
            if not prompt:
                raise CompletionError("the prompt has no tokens")
        elif prompt.ndim != 2 or prompt.shape[0] == 0 or prompt.shape[1] != self.dim:
            expected = f"expected (tokens >= 1, {self.dim})"
            raise CompletionError(f"embeddings: shape {tuple(prompt.shape)}, {expected}")
        # NaN makes minimum and maximum NaN. Checking each number takes ten times as long.
        elif not all(end.isfinite() for end in prompt.to(self.dtype).aminmax()):
            raise CompletionError(f"embeddings: NaN or infinite values (as {self.dtype})")
        limit = self.context_length
        if limit is not None and len(prompt) + new_tokens > limit:
            raise CompletionError(
                f"{len(prompt)} tokens + {new_tokens} new ones exceed the context of {limit}"
            )

    def check_ids(self, token_ids: Sequence[Token]) -> None:
        """Raise EngineError for an object that is not a token of the model's vocabulary."""
        for token in token_ids:
            if type(token) is not str and (type(token) is not int or token < 0):
                raise EngineError(f"engine {self.name}: {token!r} is not a token")

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise InputError for a sampling option that the engine does not support."""
        fields, kind = type(sampling).model_fields, type(self).__name__
        for name, capability in _NEEDS.items():
            if capability in self.capabilities or name not in fields:
                continue
            default = fields[name].default
            if getattr(sampling, name) != default:
                raise InputError(f"{name}: not supported by {kind}; leave it at {default!r}")

    @property
    def has_embeddings(self) -> bool:
        """Whether prompts may be embeddings, which searches can perturb."""
        return type(self)._embed_tokens is not Engine._embed_tokens

    def supports_continuation(self, prompt: Sequence[Token]) -> bool:
        """Return whether the engine can continue a partial answer to this prompt.

        Every engine can continue a plain text. Some engines can only write whole answers in a chat.
        """
        return True

    @property
    def capability_notes(self) -> str:
        """One readable line about the detected capabilities; may be empty."""
        return ""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model is known to have been trained on chats."""
        return False

    @property
    def chat_sampling(self) -> Mapping[str, Any]:
        """The sampling that the model's makers advise for chats; may be empty."""
        return {}

    @property
    def available(self) -> bool:
        """Whether the engine can complete prompts now."""
        return not self.closed

    def close(self) -> None:
        """Free the engine's resources; every other method raises EngineError from then on."""
        if not self.closed:
            self.closed = True
            if not self.portal.is_forked:  # a fork's resources belong to its parent
                self.portal.run(self._free)
                self.portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def portal(self) -> Portal:
        """The engine's event loop; code that uses the engine should run in this loop, too."""
        return portal_of(self)

    @cached_property
    def _texts_alone(self) -> dict[Token, str]:
        return {}

    @cached_property
    def _spellings(self) -> dict[str, tuple[int, ...]]:
        """A text without case and surrounding spaces -> its token ids, shortest text first.

        Of the ids of a text, only the first `MOST_SPELLINGS` are kept, since no more are banned.
        """
        spellings: dict[str, tuple[int, ...]] = {}  # as many lists would delay garbage collection
        with self._calling("vocabulary"):
            vocabulary = self._vocabulary()
        for token_id in sorted(range(len(vocabulary)), key=lambda index: len(vocabulary[index])):
            text = vocabulary[token_id].strip().casefold()
            known = spellings.get(text, ())
            if len(known) < MOST_SPELLINGS:
                spellings[text] = (*known, token_id)
        return spellings

    def _begins_many(self, text: str) -> bool:
        """Return whether many characters or many words begin with a token of this text."""
        return HALF in text or is_letter(text.strip())

    @contextmanager
    def _calling(
        self, doing: str, kind: type[TideError] = EngineError, *, awaits: bool = False
    ) -> Iterator[None]:
        """Raise errors of libraries as `kind` (CompletionError: only one text is affected)."""
        if self.closed:
            raise EngineError(f"engine with {self.name}: closed; make a new one")
        self.portal.check_fork()
        with guarded(kind, f"model {self.name}: {doing} failed", awaits=awaits):
            yield

    async def _whole(self, request: Request) -> tuple[list[Token], FinishReason, int]:
        """Complete a request; returns the ids, the finish reason and the number of tokens read."""
        ids: list[Token] = []
        reason: FinishReason | None = None
        read = 0
        async with aclosing(self.write(replace(request, piece_tokens=None))) as pieces:
            async for piece in pieces:
                ids += piece.token_ids
                reason, read = piece.finish_reason, read + (piece.read_tokens or 0)
        assert reason is not None  # `write` raises otherwise
        return ids, reason, read

    def _check_piece(self, piece: Piece, written: int, request: Request) -> None:
        """Raise EngineError for an invalid piece. written: number of tokens, with the piece."""
        self.check_ids(piece.token_ids)
        if written > request.sampling.max_new_tokens:
            raise EngineError(f"engine {self.name}: wrote too many tokens")
        if piece.finish_reason is not None and piece.finish_reason not in get_args(FinishReason):
            raise EngineError(f"engine {self.name}: unknown finish reason {piece.finish_reason!r}")

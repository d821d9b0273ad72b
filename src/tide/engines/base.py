"""Base class of engines: prompts in, streamed completions out. It knows nothing of toxicity.

A new engine derives from `Engine` and implements `_tokenize`, `_texts` and `_write`, and
`_embed_tokens` for searches that move prompts; see `tide.engines.scripted`. The public methods
check input and output, and raise only TideErrors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from tide.core.chat import Chat, Parts, Rendered
from tide.core.concurrency import Portal, gather, portal_of
from tide.core.errors import CompletionError, EngineError, InputError, TideError, guarded
from tide.core.sanitize import half_character
from tide.core.seeds import derive_seed
from tide.core.settings import Sampling, Settings
from tide.core.text import HALF, is_letter

if TYPE_CHECKING:  # the command line imports this module, and torch takes seconds
    import torch
    from torch import Tensor
    from typing_extensions import Self

FinishReason = Literal["length", "stop"]
# No machine's memory holds more rows than the limit. None: the engine's default.
MaxBatch = Annotated[int, Field(ge=1, le=65_536)] | None
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
_GREEDY = Sampling(max_new_tokens=1, temperature=0.0)
# Maximum spellings banned with one word; a vocabulary has dozens of spellings of some marks.
MOST_SPELLINGS = 8

# The parts of an answer that is only text.
_NO_PARTS = Parts()

TokenPair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model's tokenizer reads it.

    fixed_mask: the tokens that searches keep by default: BOS, role markers and, in a chat, all but
        the last user message. user_mask (chats): the tokens inside any user message.
    """

    text: str
    token_ids: tuple[int, ...]
    fixed_mask: tuple[bool, ...]
    user_mask: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class Completion:
    """The model's text after the prompt, without the token that ended it.

    read_tokens: the sum of its pieces' `read_tokens`.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    read_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, eq=False)
class Request:
    """A request for a completion.

    prompt: token ids, or input embeddings (T, d) of any float dtype. seed: equal seeds draw equal
    noise (common random numbers). banned_token_ids: never drawn. banned_first_ids: further ids
    that are not drawn as the first token. priority: the lowest is served first. prefix_cache: see
    `Engine.prefix_cache`. piece_tokens: the engine may collect this many tokens for a piece; None:
    one piece at the end. whole_text: keep reasoning that a chat model writes before its answer, as
    `<think>...</think>`, in the text.
    """

    prompt: Sequence[int] | Tensor
    sampling: Sampling = _GREEDY
    seed: int = 0
    banned_token_ids: tuple[int, ...] = ()
    banned_first_ids: tuple[int, ...] = ()
    priority: int = 0
    prefix_cache: object = None
    piece_tokens: int | None = None
    whole_text: bool = False


@dataclass(frozen=True)
class Piece:
    """The next part of a completion, without the token that ended the text.

    finish_reason: why this is the last piece; None if it is not. read_tokens: prompt tokens that
    were read for it, without those in the prefix cache. An engine without a prefix cache leaves it
    at None: the first piece then counts the whole prompt. parts: the reasoning and tool calls of
    the whole answer; only the last piece has them.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    read_tokens: int | None = field(default=None, compare=False)
    parts: Parts = _NO_PARTS


class Likelihood(NamedTuple):
    """mean: mean log-probability per token. read_tokens: as in `Piece`, plus the completion's."""

    mean: float
    read_tokens: int


class Ban(NamedTuple):
    """How to keep a text from being written again; see `Engine.ban`.

    kept: number of tokens before the first visible one; the ban applies after them. token_ids: at
    most `MOST_SPELLINGS`. everywhere: ban them for the rest of the text, and not only as its next
    token (`Request.banned_first_ids`).
    """

    kept: int
    token_ids: tuple[int, ...]
    everywhere: bool


class Engine(ABC):
    """One causal language model.

    Attributes:
        name: The model, for records.
        dim: Width d of its input embeddings.
        dtype: Its compute dtype.
        context_length: Maximum tokens of prompt plus completion; None if unlimited.
        max_batch: Maximum sequences run at once.
        embedding_scale: Ratio of the rows of `embed` to those of the model's embedding table.
        in_process: Whether the model runs here and not on a server.
        capabilities: Names of the optional sampling options that this engine supports; "parts" if
            it takes chats with tools, and separates tool calls and reasoning from the text.
    """

    name: str
    dim: int
    dtype: torch.dtype
    context_length: int | None
    max_batch: int
    embedding_scale: float = 1.0
    in_process: ClassVar[bool] = True
    capabilities: ClassVar[frozenset[str]] = frozenset()
    closed = False

    # Implemented by every engine; the public methods below document them. `_write`,
    # `_log_likelihoods` and `_free` run in the engine's event loop.

    @abstractmethod
    def _tokenize(self, prompts: Sequence[str]) -> list[list[int]]: ...

    @abstractmethod
    def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]: ...

    @abstractmethod
    def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        """The request has been checked. Closing the generator aborts it."""

    # Implemented by some engines.

    def _encode(self, text: str) -> Prompt:
        (ids,) = self._tokenize([text])
        return Prompt(str(text), tuple(ids), (False,) * len(ids))

    def _embed_tokens(self, token_ids: Sequence[int]) -> Tensor:
        raise InputError(f"engine {type(self).__name__}: has no embeddings")

    def _decode_nearest(self, embeddings: Tensor) -> list[int]:
        raise InputError(f"engine {type(self).__name__}: has no embeddings")

    def _render(self, chat: Chat) -> Rendered:
        raise InputError(f"messages: {type(self).__name__} has no chat template; give a text")

    async def _log_likelihoods(
        self, pairs: Sequence[TokenPair], prefix_cache: object
    ) -> list[Likelihood]:
        """The pairs have been checked."""
        raise InputError(f"engine {type(self).__name__}: has no likelihoods")

    def _prefix_cache(self, rows: Tensor | None) -> object:
        return None

    def _vocabulary(self) -> Sequence[str]:
        """The text of each token id, or "" if it is unknown. See `ban`."""
        return ()

    def _verify(self) -> None:
        return

    async def _free(self) -> None:  # noqa: B027
        """Free memory, processes and connections; running work ends with EngineError."""

    # Texts and tokens.

    def tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids with the special tokens the model expects around a prompt.

        Raises InputError for a prompt with a token that the model has no embedding for, and
        CompletionError if the tokenizer fails.
        """
        with self._calling("tokenize", CompletionError):
            return self._tokenize(prompts)

    def encode(self, text: str) -> Prompt:
        """Tokenize a prompt, and mark the tokens that a search may move. Raises like `tokenize`."""
        with self._calling("encode", CompletionError):
            return self._encode(text)

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text that each row of completion ids adds to the prompt, control tokens included."""
        with self._calling("texts", CompletionError):
            return self._texts(rows)

    def token_texts(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        """The text that each token of each row adds; joined, these are the text of the row.

        A token that ends inside a code point adds nothing; the token that completes the code point
        adds it. So a text may be cut after any token that adds text, unless that text ends with an
        incomplete code point. The texts of single tokens are cached.
        """
        known = self._texts_alone
        new = list({token for ids in rows for token in ids if token not in known})
        wholes = self.texts([*rows, *([token] for token in new)])
        known.update(zip(new, wholes[len(rows) :], strict=True))
        return [self._parted(ids, whole) for ids, whole in zip(rows, wholes, strict=False)]

    def _parted(self, ids: Sequence[int], whole: str) -> list[str]:
        texts = [self._texts_alone[token] for token in ids]
        if "".join(texts) == whole:
            return texts
        # Some tokens are parts of characters, or have another text after other tokens.
        ends = [0]
        for text in self.texts([ids[:count] for count in range(1, len(ids))]):
            whole_so_far = whole.startswith(text) and not text.endswith(HALF)
            ends.append(max(ends[-1], len(text) if whole_so_far else 0))
        ends.append(len(whole))
        return [whole[start:end] for start, end in pairwise(ends)]

    def ban(self, token_ids: Sequence[int]) -> Ban:
        """The ids to ban in place of these tokens, so that their text is not written again.

        These are the first visible token, and the tokens that differ from it only in case or
        surrounding spaces; they are banned for the rest of the text. A token that is a part of a
        character or a single non-ASCII letter begins many words: it is banned only as the next
        token, since without it a language could not be written.
        """
        texts = [text for (text,) in self.token_texts([[one] for one in token_ids])]
        first = next((place for place, text in enumerate(texts) if text.strip()), None)
        if first is None:
            return Ban(0, tuple(token_ids[:1]), True)
        own = token_ids[first]
        if self._begins_many(texts[first]):
            return Ban(first, (own,), False)
        with self._calling("vocabulary"):
            alike = dict.fromkeys((own, *self._spellings.get(own, ())))
        return Ban(first, tuple(alike)[:MOST_SPELLINGS], True)

    def render(self, chat: Chat) -> Rendered:
        """The text of `chat`, to be passed to `tokenize` or `encode`.

        Raises InputError if the model has no chat template, or the template refuses the chat.
        """
        if chat.in_parts and "parts" not in self.capabilities:
            field = next(iter(chat.asked), "messages")
            raise InputError(
                f"{field}: only the engine 'openai' takes tools, their messages and formats of "
                "answers; leave them out"
            )
        with self._calling("render", CompletionError):
            return self._render(chat)

    def text_of(self, prompt: str | Chat) -> str:
        """The text to complete for `prompt`. Raises InputError if invalid."""
        if isinstance(prompt, Chat):
            return self.render(prompt)
        given: Any = prompt  # callers may not check types
        if not isinstance(given, str):
            kind, way = type(prompt).__name__, "detox.chat answers messages"
            if isinstance(given, list | tuple) and all(isinstance(one, str) for one in given):
                kind, way = f"{kind} of texts", "Detoxifier.batch and .map take several"
            raise InputError(f"expected a text, got {kind}; {way}")
        if (place := half_character(prompt)) is not None:
            raise InputError(f"invalid Unicode: lone surrogate at index {place}")
        if not prompt.strip():
            raise InputError("empty; a prompt needs at least one character")
        return prompt

    # Embeddings.

    def embed(self, prompts: Sequence[str]) -> list[Tensor]:
        """The embeddings of the tokens of each prompt, (T_i, d); see `embed_tokens`."""
        return [self.embed_tokens(ids) for ids in self.tokenize(prompts)]

    def embed_tokens(self, token_ids: Sequence[int]) -> Tensor:
        """The input embeddings of these ids, scaled: float32 on the CPU, shape (n, d).

        The model completes them as it completes the ids.
        """
        with self._calling("embed_tokens"):
            return self._embed_tokens(token_ids)

    def decode_nearest(self, embeddings: Tensor) -> list[int]:
        """For each row of (T, d), the token whose embedding has the largest cosine to it."""
        with self._calling("decode_nearest"):
            found = self._decode_nearest(embeddings)
        if len(found) != (rows := len(embeddings)):
            raise EngineError(f"engine {self.name}: {len(found)} nearest ids for {rows} rows")
        return found

    def prefix_cache(self, rows: Tensor | None = None) -> object:
        """A handle for requests; keys and values that they share are cached as long as it lives.

        rows: embeddings (P, d) with which all the requests begin; they are read once. Without
        `rows`, a request reads only its last token id if the request before read or wrote all its
        other ids. Caching changes completions only by rounding. None if nothing can be cached.
        """
        with self._calling("prefix_cache"):
            return self._prefix_cache(rows)

    # Writing.

    async def write(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Write a completion, piece by piece. It does not depend on the rest of the batch.

        Closing the generator aborts the request at the next step. Raises CompletionError for a
        prompt that the engine cannot complete, and EngineError if it can complete no prompt.
        """
        if not self.portal.is_current:
            async with aclosing(self.portal.iterate(self.write, request)) as elsewhere:
                async for piece in elsewhere:
                    yield piece
            return
        again = 0  # tokens at the end of the prompt that this call has written
        if request.banned_first_ids:
            given, banned = request.sampling, request.banned_token_ids + request.banned_first_ids
            update = {"max_new_tokens": 1, "min_new_tokens": min(1, given.min_new_tokens)}
            one = given.model_copy(update=update)
            first = replace(request, sampling=one, banned_token_ids=banned, banned_first_ids=())
            ids, ended, read = await self._whole(first)
            over = ended == "stop" or len(ids) == given.max_new_tokens
            yield Piece(tuple(ids), ended if over else None, read)
            if over:
                return
            request, again = self.after(request, ids), len(ids)
        written, unread = 0, len(request.prompt) - again
        with self._calling("write", awaits=True):
            self.check(request)
            async with aclosing(self._write(request)) as pieces:
                async for piece in pieces:
                    written += len(piece.token_ids)
                    self._check_piece(piece, written, request)
                    own = piece.read_tokens
                    read, unread = unread if own is None else max(0, own - again), 0
                    yield replace(piece, read_tokens=read)
                    if piece.finish_reason is not None:
                        return
        raise EngineError(f"engine {self.name}: a completion ended without a finish reason")

    async def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """The whole completion of each request. The first failure aborts the others."""
        if not self.portal.is_current:
            return await self.portal.call(self.complete, requests)
        found = await gather(map(self._whole, requests))
        written = [(ids, reason) for ids, reason, _ in found]
        made = self.completions(written, [request.sampling for request in requests])
        return [replace(one, read_tokens=row[2]) for one, row in zip(made, found, strict=True)]

    def after(self, request: Request, token_ids: Sequence[int]) -> Request:
        """The request that continues `request` after these tokens (at least one)."""
        prompt, sampling = request.prompt, request.sampling
        if isinstance(prompt, Sequence):
            more: Sequence[int] | Tensor = (*prompt, *token_ids)
        else:
            import torch  # noqa: PLC0415  (slow import)

            more = torch.cat([prompt, self.embed_tokens(token_ids).to(prompt.dtype)])
        left = sampling.max_new_tokens - len(token_ids)
        least = max(0, sampling.min_new_tokens - len(token_ids))
        own = sampling.model_copy(update={"max_new_tokens": left, "min_new_tokens": least})
        seed = derive_seed(request.seed, len(token_ids))
        return replace(request, prompt=more, sampling=own, seed=seed, banned_first_ids=())

    async def log_likelihoods(
        self, pairs: Sequence[TokenPair], *, prefix_cache: object = None
    ) -> list[Likelihood]:
        """The likelihood of the completion ids of each pair (prompt ids, completion ids).

        Raises like `write`, for the first pair that fails.
        """
        if not self.portal.is_current:
            call = partial(self.log_likelihoods, prefix_cache=prefix_cache)
            return await self.portal.call(call, pairs)
        with self._calling("likelihood", awaits=True):
            if any(len(ids) == 0 for pair in pairs for ids in pair):
                raise EngineError("likelihood: an empty prompt or completion has no likelihood")
            for prompt, completion in pairs:
                self.check_prompt((*prompt, *completion), 0)
            found = await self._log_likelihoods(pairs, prefix_cache)
        if len(found) != len(pairs) or any(math.isnan(one.mean) for one in found):
            raise EngineError(f"engine {self.name}: a likelihood is not a number")
        return found

    def completions(
        self, written: Sequence[tuple[Sequence[int], FinishReason]], samplings: Sequence[Sampling]
    ) -> list[Completion]:
        """Completions from token ids, which exclude the token that ended the text.

        A text is cut before its first stop string; of the ids, the shortest prefix that holds the
        rest is kept.
        """
        texts = self.texts([ids for ids, _ in written])
        found = []
        for text, (ids, reason), own in zip(texts, written, samplings, strict=True):
            if (end := own.stop_in(text)) is None:
                found.append(Completion(text, tuple(ids), reason))
            else:
                count = self.fewest(ids, methodcaller("startswith", text[:end]))
                found.append(Completion(text[:end], tuple(ids[:count]), "stop"))
        return found

    def stopped(
        self, rows: Sequence[Sequence[int]], samplings: Sequence[Sampling]
    ) -> Iterator[tuple[int, int]]:
        """Yields (row, count) for each row of ids whose text holds one of its stop strings.

        count: length of the shortest prefix of the row that holds it.
        """
        some = [number for number, own in enumerate(samplings) if own.stop]
        texts = self.texts([rows[number] for number in some]) if some else []
        for number, text in zip(some, texts, strict=True):
            own = samplings[number]
            if own.stop_in(text) is not None:
                holds = lambda said, own=own: own.stop_in(said) is not None  # noqa: E731
                yield number, self.fewest(rows[number], holds)

    def fewest(self, ids: Sequence[int], enough: Callable[[str], bool]) -> int:
        """Length of the shortest prefix of `ids` whose text is `enough`; all of `ids` must be."""
        return bisect_left(
            range(len(ids)), True, key=lambda count: enough(self.texts([ids[:count]])[0])
        )

    # Checks and properties.

    def check(self, request: Request) -> None:
        """Raise CompletionError for an invalid prompt, InputError for an unsupported option."""
        self.check_sampling(request.sampling)
        self.check_prompt(request.prompt, request.sampling.max_new_tokens)

    def check_prompt(self, prompt: Sequence[int] | Tensor, new_tokens: int) -> None:
        """Raise CompletionError for a prompt after which the new tokens cannot be written."""
        if isinstance(prompt, Sequence):
            if not prompt:
                raise CompletionError("the prompt has no tokens")
        elif prompt.ndim != 2 or prompt.shape[0] == 0 or prompt.shape[1] != self.dim:
            expected = f"expected (tokens >= 1, {self.dim})"
            raise CompletionError(f"embeddings: shape {tuple(prompt.shape)}, {expected}")
        elif not prompt.is_floating_point():
            raise CompletionError(f"embeddings: dtype {prompt.dtype}, expected a float type")
        # The minimum and maximum of NaN are NaN. Checking each number takes ten times as long.
        elif not all(end.isfinite() for end in prompt.to(self.dtype).aminmax()):
            raise CompletionError(f"embeddings: NaN or infinite values (as {self.dtype})")
        limit = self.context_length
        if limit is not None and len(prompt) + new_tokens > limit:
            raise CompletionError(
                f"{len(prompt)} tokens + {new_tokens} new ones exceed the context of {limit}"
            )

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise InputError for a sampling option that the engine does not support."""
        if isinstance(sampling, Settings) and "parts" not in self.capabilities:
            for name in ("tool_calls", "reasoning"):
                if getattr(sampling, name) != Settings.model_fields[name].default:
                    raise InputError(
                        f"{name}: only the engine 'openai' separates them from the text, which is "
                        "scored; leave it out"
                    )
        for name in ("min_new_tokens", "stop", "repetition_penalty"):
            off = getattr(sampling, name) == Sampling.model_fields[name].default
            if not off and name not in self.capabilities:
                raise InputError(
                    f"{name}: not supported by {type(self).__name__}; leave it at "
                    f"{Sampling.model_fields[name].default!r}, or use the engine 'transformers'"
                )

    @property
    def has_embeddings(self) -> bool:
        """Whether prompts may be embeddings, so that searches can move them."""
        return type(self)._embed_tokens is not Engine._embed_tokens

    def supports_continuation(self, prompt: Sequence[int]) -> bool:
        """Whether it can continue a partial answer to this prompt; else answers are written whole.

        Every engine can after a plain text; some cannot in a chat.
        """
        return True

    @property
    def capability_notes(self) -> str:
        """One line for people on its detected capabilities; may be empty."""
        return ""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model is known to have been trained on chats."""
        return False

    @property
    def chat_sampling(self) -> Mapping[str, Any]:
        """The sampling for chats that the model's makers advise; may be empty."""
        return {}

    @property
    def available(self) -> bool:
        """Whether it can complete prompts now."""
        return not self.closed

    def verify(self) -> None:
        """Raise EngineError unless token ids and their embeddings give the same output."""
        with self._calling("verify"):
            self._verify()

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
        """The engine's event loop; code that uses the engine should run in it, too."""
        return portal_of(self)

    @cached_property
    def _texts_alone(self) -> dict[int, str]:
        return {}

    @cached_property
    def _spellings(self) -> dict[int, tuple[int, ...]]:
        """For each token id, the ids whose texts differ only in case or spaces, shortest first."""
        alike: dict[str, list[int]] = {}
        vocabulary = self._vocabulary()
        for token_id, text in enumerate(vocabulary):
            if HALF not in text:
                alike.setdefault(text.strip().casefold(), []).append(token_id)
        alike.pop("", None)
        rows = (sorted(ids, key=lambda one: len(vocabulary[one])) for ids in alike.values())
        return {one: tuple(ids) for ids in rows for one in ids}

    def _begins_many(self, text: str) -> bool:
        """Whether many characters or many words begin with a token of this text."""
        return HALF in text or is_letter(text.strip())

    @contextmanager
    def _calling(
        self, doing: str, kind: type[TideError] = EngineError, *, awaits: bool = False
    ) -> Iterator[None]:
        """Turn errors of libraries into `kind`: CompletionError if they concern one text alone."""
        if self.closed:
            raise EngineError(f"engine with {self.name}: closed; make a new one")
        self.portal.check_fork()
        with guarded(kind, lambda: f"model {self.name}: {doing} failed", awaits=awaits):
            yield

    async def _whole(self, request: Request) -> tuple[list[int], FinishReason, int]:
        """The token ids, their finish reason, and the number of tokens read for them."""
        ids: list[int] = []
        reason: FinishReason | None = None
        read = 0
        async with aclosing(self.write(replace(request, piece_tokens=None))) as pieces:
            async for piece in pieces:
                ids += piece.token_ids
                reason, read = piece.finish_reason, read + (piece.read_tokens or 0)
        assert reason is not None  # `write` raises otherwise
        return ids, reason, read

    def _check_piece(self, piece: Piece, written: int, request: Request) -> None:
        """Raise EngineError for an invalid piece. written: tokens so far, including the piece's."""
        invalid = any(type(i) is not int or i < 0 for i in piece.token_ids)
        if invalid or written > request.sampling.max_new_tokens:
            raise EngineError(f"engine {self.name}: wrote invalid token ids, or too many")
        if piece.finish_reason not in (None, "length", "stop"):
            raise EngineError(f"engine {self.name}: unknown finish reason {piece.finish_reason!r}")

"""What an engine is: prompt embeddings in, completions out. Engines know nothing of toxicity."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Protocol, runtime_checkable

from pydantic import Field

from tide.core.chat import Chat, Rendered
from tide.core.errors import EngineError, InputError, guarded
from tide.core.sanitize import half_character
from tide.core.settings import Sampling

if TYPE_CHECKING:  # the command line imports this module, and torch takes seconds
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

FinishReason = Literal["length", "stop"]
# One for all rows, or one for each.
Samplings = Sampling | Sequence[Sampling]
# More rows than this fit into no machine's memory; None for a default by engine.
MaxBatch = Annotated[int, Field(ge=1, le=65_536)] | None
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class EmbeddedPrompt:
    """A prompt as the model's first block receives it.

    embeddings: float32 on the CPU, shape (T, d). special: bool, shape (T,), True where the token is
    a special one (BOS, role markers); in a chat, where it is not wholly of the last message.
    said: as `special`, of chats alone: True where the token is wholly of what a user said.
    """

    text: str
    token_ids: tuple[int, ...]
    embeddings: Tensor
    special: Tensor
    said: Tensor | None = None


@dataclass(frozen=True)
class Completion:
    """What the model wrote after the prompt, without the prompt and without special tokens."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


@runtime_checkable
class Engine(Protocol):
    """One causal language model, run on embeddings.

    name: the model, for records. dim: d. dtype: what it computes in. context_length: most tokens of
    prompt and completion together, None if unlimited. max_batch: sequences run at once.
    """

    name: str
    dim: int
    dtype: torch.dtype
    context_length: int | None
    max_batch: int

    def tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids with the special tokens the model expects around a prompt."""
        ...

    def embed(self, prompts: Sequence[str]) -> list[EmbeddedPrompt]:
        """Embeddings such that `complete` of them is what the model writes after the token ids."""
        ...

    def complete(
        self, embeddings: Sequence[Tensor], sampling: Samplings, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion for each (T_i, d) matrix, in order.

        sampling: one for all rows, or one for each; a row's completion does not depend on that of
        its neighbours. Equal seeds draw equal noise (common random numbers). Raises EngineError for
        embeddings that are not finite, of the wrong shape, or too long for the context.
        """
        ...

    def likelihood(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        """Mean log-probability per completion token under the unmodified prompt, shape (n,)."""
        ...

    def decode_nearest(self, embeddings: Tensor) -> list[int]:
        """For each row of (T, d), the token whose embedding has the largest cosine to it."""
        ...

    def verify(self) -> None:
        """Raise EngineError unless the model gives the same result for ids and their embeddings."""
        ...

    def close(self) -> None:
        """Free what the engine holds; every other method raises EngineError from then on."""
        ...


@runtime_checkable
class KeepsPrefixes(Protocol):
    """What an engine may do besides: read once what many prompts have in common."""

    def keep_prefix(self, rows: Tensor) -> object:
        """Say that prompts will begin with these (P, d) rows, for as long as the result lives.

        What `complete` and `likelihood` answer stays the same, but for rounding.
        """
        ...


@runtime_checkable
class ReadsChats(Protocol):
    """What an engine may do besides: write a chat as its model's template does."""

    def render(self, chat: Chat) -> Rendered:
        """The text of `chat`, which `tokenize` and `embed` take as a prompt.

        Raises InputError without a template,
        and for a chat that it refuses.
        """
        ...


def text_of(prompt: str | Chat, engine: Engine) -> str:
    """What `engine` completes for `prompt`. Raises InputError for what it cannot complete."""
    if isinstance(prompt, Chat):
        if not isinstance(engine, ReadsChats):
            raise InputError(f"messages: {type(engine).__name__} has no chat template; give a text")
        return engine.render(prompt)
    if not isinstance(prompt, str):
        raise InputError(f"expected a text, got {type(prompt).__name__}")
    if (place := half_character(prompt)) is not None:
        raise InputError(f"no text: half a character (a surrogate) at {place}")
    if not prompt.strip():
        raise InputError("empty; a prompt needs at least one character")
    return prompt


@runtime_checkable
class GoesOn(Protocol):
    """What an engine needs besides to write answers in blocks: to go on from its own token ids."""

    def embed_tokens(self, token_ids: Sequence[int]) -> Tensor:
        """Their embeddings, as those of a prompt: float32 on the CPU, shape (n, d)."""
        ...

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """What each row of completion ids adds to the prompt's text, without special tokens."""
        ...


@runtime_checkable
class MayBeAway(Protocol):
    """What an engine may say besides, if others compute for it."""

    @property
    def available(self) -> bool:
        """Whether any of them is there."""
        ...


# Token ids that a row went on with, and why it ended; None if it has not.
Written = tuple[list[int], FinishReason | None]


class Writer(Protocol):
    """Rows that are being written."""

    def advance(self, tokens: int) -> list[Written]:
        """Write up to so many further tokens of each row: its ids, without one that ends the text.

        A row that has ended has no more. Strings that end a text may be left in, and what is
        behind them. However the tokens are divided, `complete` would write the same.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with the rows of these numbers alone."""
        ...


@runtime_checkable
class WritesOn(Protocol):
    """What an engine may do besides: keep what it has read of texts that it goes on writing."""

    def write(
        self, embeddings: Sequence[Tensor], sampling: Samplings, seeds: Sequence[int]
    ) -> Writer:
        """As `complete`, bit by bit."""
        ...


_METHODS = [name for name in vars(Engine) if name[0] != "_" and name != "close"] + ["render"]


class Closable:
    """Base of the engines here: `close` frees what `_free` frees, once, and shuts the protocol.

    Constructors and methods of the protocol raise TideErrors and nothing else: what the libraries
    below raise becomes an EngineError. A constructor sets `name` first.
    """

    name = ""
    _closed = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for method in ("__init__", *_METHODS):
            if method in vars(cls):
                setattr(cls, method, _gated(vars(cls)[method]))

    def close(self) -> None:
        if self._closed:
            return
        self._closed, message = True, f"engine with {self.name}: closed; make a new one"

        def refuse(*_: object, **__: object) -> NoReturn:
            raise EngineError(message)

        for name in _METHODS:
            setattr(self, name, refuse)
        self._free()

    def _free(self) -> None:
        """Free memory, processes and connections."""


def per_row(sampling: Samplings, count: int) -> list[Sampling]:
    """The sampling of each of `count` rows. Raises EngineError if as many are not given."""
    if isinstance(sampling, Sampling):
        return [sampling] * count
    if len(sampling) != count:
        raise EngineError(f"sampling: {len(sampling)} for {count} rows; give one, or one a row")
    return list(sampling)


def check_sampling(engine: Engine, sampling: Sampling) -> None:
    """Raise InputError for an option of sampling that `engine` does not honour.

    Of `min_new_tokens`, `stop` and `repetition_penalty`, which not all do, its `honours` holds the
    names of those that it does.
    """
    for name in ("min_new_tokens", "stop", "repetition_penalty"):
        off = getattr(sampling, name) == Sampling.model_fields[name].default
        if not off and name not in getattr(engine, "honours", ()):
            raise InputError(
                f"{name}: not supported by {type(engine).__name__}; leave it at "
                f"{Sampling.model_fields[name].default!r}, or use the engine 'transformers'"
            )


def check_rows(engine: Engine, embeddings: Sequence[Tensor], sampling: Samplings) -> list[Sampling]:
    """The sampling of each row. Raises EngineError for the first matrix `engine` cannot take.

    Raises InputError for a sampling that it does not honour.
    """
    dim, dtype, context_length = engine.dim, engine.dtype, engine.context_length
    samplings = per_row(sampling, len(embeddings))
    for row in dict.fromkeys(samplings):
        check_sampling(engine, row)
    for number, (x, row) in enumerate(zip(embeddings, samplings, strict=True)):
        tokens = row.max_new_tokens
        if x.ndim != 2 or x.shape[0] == 0 or x.shape[1] != dim:
            raise EngineError(
                f"embeddings {number}: shape {tuple(x.shape)}, expected (tokens >= 1, {dim})"
            )
        if not x.is_floating_point():
            raise EngineError(f"embeddings {number}: dtype {x.dtype}, expected a float type")
        # The ends of NaN are NaN. To ask each number takes ten times as long.
        if not all(end.isfinite() for end in x.to(dtype).aminmax()):
            raise EngineError(f"embeddings {number}: NaN or infinite values (as {dtype})")
        if context_length is not None and x.shape[0] + tokens > context_length:
            raise EngineError(
                f"embeddings {number}: {x.shape[0]} tokens + {tokens} new ones "
                f"exceed the context of {context_length}"
            )
    return samplings


def check_tokens(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> None:
    """Raise EngineError if a prompt or completion has no tokens, and so no likelihood."""
    if any(len(ids) == 0 for ids in (*prompts, *completions)):
        raise EngineError("likelihood: an empty prompt or completion has no likelihood")


def float_dtype(name: str) -> torch.dtype:
    """The torch dtype called `name`. Raises InputError for one that models do not compute in."""
    import torch  # noqa: PLC0415  (slow import)

    if name not in _DTYPES:
        raise InputError(f"dtype: must be 'auto', {', '.join(map(repr, _DTYPES))} (got {name!r})")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _gated(method: Callable[..., Any]) -> Callable[..., Any]:
    doing = method.__name__.replace("__init__", "loading")

    @functools.wraps(method)
    def call(self: Closable, *args: Any, **kwargs: Any) -> Any:
        with guarded(EngineError, lambda: f"model {self.name}: {doing} failed"):
            return method(self, *args, **kwargs)

    return call

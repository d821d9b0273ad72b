"""Requests and answers of vLLM's completions API; answers of any other shape are refused.

`difference` checks whether vLLM, in this process or on a server, writes the same tokens from token
ids as from their embeddings. The tokens differ if vLLM runs another model, or scales embeddings
before its first block. The check compares the most likely token after a few sentences.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, Field

from tide.core.http import Rows, ServerFailed
from tide.engines.base import Engine, FinishReason, Request

if TYPE_CHECKING:  # the engine 'openai' imports this module, and needs no torch
    from torch import Tensor

# Log-probabilities are bounded, so that sums are finite.
_LogProbability = Annotated[float, Field(ge=-1e9, le=1e-3)]  # above 0 only by rounding
_Count = Annotated[int, Field(ge=0, le=10**9)]
_Name = Annotated[str, Field(max_length=1000)]

# Older versions have known security holes in loading embeddings (CVE-2025-62164 and later).
OLDEST = Version("0.32")
# A server's defaults may include penalties, and a penalty with embeddings crashes vLLM (its issue
# 57719). So each of these fields is sent with its neutral value.
NEUTRAL = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# The strongest bias that vLLM takes. At usual temperatures a token with this bias is never drawn.
NEVER = -100.0

PROBES = (
    "The weather today is",
    "In the beginning there was",
    "My favourite food is",
    "Two plus two equals",
)

# Differences of natural-log probabilities. Half precision and other kernels cause a few hundredths,
# and change the most likely token only if two tokens are about equally likely.
_TIE = 0.05
_CLOSE = 0.25

FirstToken = tuple[int, float]


class _LogProb(BaseModel):
    logprob: _LogProbability


class _LogProbs(BaseModel):
    token_logprobs: Rows[_LogProbability] = Field(min_length=1)


class Choice(BaseModel):
    """The server's answer for one prompt; fields that were not requested are None."""

    index: _Count
    finish_reason: Literal["length", "stop"]
    stop_reason: int | str | None = None
    token_ids: Rows[_Count] = Field(min_length=1)
    logprobs: _LogProbs | None = None
    prompt_logprobs: list[Any] | None = None


class CompletionResponse(BaseModel):
    choices: Rows[Choice]


class EventChoice(BaseModel):
    """The next part of a streamed completion."""

    index: Literal[0]
    finish_reason: Literal["length", "stop"] | None = None
    stop_reason: int | str | None = None
    token_ids: Rows[_Count] | None = None


class Event(BaseModel):
    choices: Annotated[list[EventChoice], Field(max_length=1)]


class ServerVersion(BaseModel):
    version: str = Field(max_length=100)


class ServedModel(BaseModel):
    id: _Name
    root: _Name | None = None
    max_model_len: int = Field(gt=1, le=10**9)


class ServedModels(BaseModel):
    data: Rows[ServedModel] = Field(min_length=1)


def encode(x: Tensor) -> str:
    """Encode embeddings in the API's format, which is base64 of a `torch.save` file."""
    import torch  # noqa: PLC0415  (needed only for embeddings)

    buffer = io.BytesIO()
    # A copy is saved, because a view would be saved with its whole storage.
    torch.save(x.detach().cpu().contiguous().clone(), buffer)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def sampling_fields(request: Request) -> dict[str, Any]:
    """Return a request's sampling fields for vLLM, in this process or on a server."""
    sampling = request.sampling
    return {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_tokens": sampling.min_new_tokens,
        "stop": list(sampling.stop),
        "seed": request.seed if sampling.temperature > 0 else None,
        "logit_bias": dict.fromkeys(request.banned_token_ids, NEVER) or None,
    }


def mean_log_prob(choice: Choice, completion: Sequence[int]) -> float:
    """Return the mean log-probability of the `completion` that ends the prompt of `choice`.

    Raises ServerFailed if the server did not send the log-probability of each token.
    """
    positions = (choice.prompt_logprobs or [])[-len(completion) :]
    try:
        # The prompt's log-probabilities may be many, and are neither validated nor used.
        read = [
            _LogProb.model_validate(position[str(token)], strict=True).logprob
            for position, token in zip(positions, completion, strict=True)
        ]
    except (KeyError, TypeError, ValueError):
        raise ServerFailed("answered without the requested log-probabilities") from None
    return float(np.mean(read))


def is_older(version: str) -> bool:
    try:
        return Version(version) < OLDEST
    except InvalidVersion:  # a build from source may have any version
        return False


def without_end(
    ids: tuple[int, ...], reason: FinishReason | None, stopped_by: int | str | None
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Return vLLM's token ids and finish reason, without the token that ended the text.

    After a stop string, whose tokens are included, the reason becomes "length", because the caller
    finds the stop string in the text and cuts the text.
    """
    if reason != "stop":
        return ids, reason
    return (ids, "length") if isinstance(stopped_by, str) else (ids[:-1], "stop")


async def difference(
    engine: Engine, first: Callable[[Sequence[Any]], Awaitable[list[FirstToken]]]
) -> str | None:
    """Return how vLLM's output from embeddings differs from its output from token ids, or None.

    first: returns the most likely token after each prompt, with its log-probability, for prompts
    that are all token ids or all embeddings.
    """
    by_ids, rows = await first(engine.tokenize(PROBES)), engine.embed(PROBES)
    # The embeddings are tried unscaled, and with the scalings that models use.
    factors = 1.0, math.sqrt(engine.dim), 1.0 / math.sqrt(engine.dim)
    by_scaled = await first([factor * x for factor in factors for x in rows])
    agreeing = []
    for number, factor in enumerate(factors):
        scaled = by_scaled[number * len(by_ids) : (number + 1) * len(by_ids)]
        both = zip(by_ids, scaled, strict=True)
        if all(abs(a[1] - b[1]) <= (_CLOSE if a[0] == b[0] else _TIE) for a, b in both):
            agreeing.append(factor)
    if 1.0 in agreeing:
        return None
    if agreeing:
        return (
            f"expects embeddings multiplied by {agreeing[0]:.4g}; vLLM and this version of "
            "transformers scale embeddings in different places"
        )
    return "writes different text from embeddings than from token ids; does vLLM run another model?"

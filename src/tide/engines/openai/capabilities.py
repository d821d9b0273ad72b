"""Finds out by probes what a completions server can do."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, model_validator

from tide.core.http import Rows, ServerFailed
from tide.core.sanitize import logger
from tide.engines.base import NEVER
from tide.engines.openai.streams import streamed
from tide.engines.openai.upstream import Upstream, may_pass
from tide.engines.openai.words import TokenSource, ask_server, same_word, words_of

_log = logger(__name__)

# Values that turn off a server's default features. `repeat_penalty` is a field of llama.cpp.
OFF = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_tokens": 0,
    "repeat_penalty": 1.0,
}


class _Model(BaseModel):
    id: str = Field(min_length=1, max_length=1000)


class Listed(BaseModel):
    """A list of models. Some servers answer the list itself."""

    data: Rows[_Model] = Field(max_length=10_000)

    @model_validator(mode="before")
    @classmethod
    def _list(cls, answer: Any) -> Any:
        return {"data": answer} if isinstance(answer, list) else answer


# Chat questions that test whether a server continues an answer.
_QUESTIONS = ("What do you do in the morning?", "Tell me about the town where you live.")
_PROBES = (
    "The people of the town were kind, and in the morning",
    "She opened the window and said that",
    "The weather today is fine, and I think",
)
_PROBED = 16
# HTTP statuses with which servers refuse unknown fields.
_UNKNOWN_FIELDS = (400, 413, 422)
_UNKNOWN_PATH = (404, 405, 501)
_CONTINUED: tuple[dict[str, Any], ...] = (
    {"continue_final_message": True, "add_generation_prompt": False},
    {},
)


@dataclass
class Capabilities:
    """The capabilities of a server, found by probing.

    model: name of the model on the server. off: fields that turn off the server's own sampling;
    empty if it takes only OpenAI's fields. continued: fields that make the server continue an
    assistant message; None if it cannot. token_source: finds token ids of words to ban; None
    if `logit_bias` does not work. counts: whether its streams tell how many tokens they had.
    chats_only: whether it has no `/v1/completions`.
    """

    model: str
    off: dict[str, Any]
    continued: dict[str, Any] | None = None
    token_source: TokenSource | None = None
    counts: bool = True
    chats_only: bool = False


async def look_at(upstream: Upstream, name: str) -> Capabilities:
    """Find the capabilities of a server. Raises ServerFailed if it cannot be used."""
    server = Capabilities(await _find_model(upstream, name), dict(OFF))
    await _find_fields(upstream, server)
    server.token_source = await _find_token_source(upstream, server)
    server.continued = await _find_continued(upstream, server)
    return server


async def _find_fields(upstream: Upstream, server: Capabilities) -> None:
    """Find out which fields the server takes. Raises ServerFailed if it takes none of the sets."""
    counting = {"stream_options": {"include_usage": True}}
    for off, counts in ((OFF, True), ({}, True), (OFF, False), ({}, False)):
        server.off, server.counts = dict(off), counts
        fields = counting if counts else {}
        try:
            await _complete(upstream, server, {"prompt": _PROBES[0], **fields})
        except ServerFailed as error:
            if error.status in _UNKNOWN_PATH and not server.chats_only:
                server.chats_only = True
                await _find_fields(upstream, server)
                return
            if error.status not in _UNKNOWN_FIELDS:
                raise
            refused = error
        else:
            return
    raise refused


async def _find_model(upstream: Upstream, name: str) -> str:
    """Return the name of the model. Without a usable list, it is `name`."""
    try:
        listed = await upstream.request("/v1/models", Listed)
        names = [model.id for model in listed.data]
    except ServerFailed as error:
        if may_pass(error):
            raise
        names = []
    if not names:
        return name
    for model in (name, f"{name}:latest"):  # Ollama's name for a model without a tag
        if model in names:
            return model
    if len(names) > 1:
        raise ServerFailed(f"has no model {name!r}; set --model to one of", ", ".join(names[:5]))
    return names[0]


async def _find_token_source(upstream: Upstream, server: Capabilities) -> TokenSource | None:
    """Return the source of token ids, if a bias on a word's ids makes the server avoid the word."""
    source = await ask_server(upstream, server.model)
    for prompt in _PROBES:
        written = await _complete(upstream, server, {"prompt": prompt})
        if written.lstrip().startswith(prompt):
            raise ServerFailed("repeats the prompt before its completion (echo)")
        first = next((word for word in words_of(written) if word.strip()), None)
        if first is not None:
            break
    if source is None or first is None:
        return None
    bias = {str(token): NEVER for token in await source.ids([first])}
    try:
        more = {"prompt": prompt, "logit_bias": bias}
        biased = words_of(await _complete(upstream, server, more))
    except ServerFailed as error:
        if error.status not in _UNKNOWN_FIELDS:
            raise
        biased = [first]
    if bias and same_word(first) != same_word((biased or [""])[0]):
        return source
    _log.warning("%s: logit_bias with ids of %s does not work", upstream.url, source.name)
    return None


async def _find_continued(upstream: Upstream, server: Capabilities) -> dict[str, Any] | None:
    """Return the fields with which a server continues an assistant message; None if it cannot.

    The server is sent the first half of an earlier answer, and must write the second half.
    """
    for question in _QUESTIONS:
        messages = [{"role": "user", "content": question}]
        try:
            whole = words_of(await _complete(upstream, server, {"messages": messages}))
        except ServerFailed as error:
            if may_pass(error):
                raise
            return None  # the server takes no chats
        half = len(whole) // 2
        begun, rest = "".join(whole[:half]), "".join(whole[half:])
        # In repetitive text a continuation cannot be told from a repetition.
        if half < 2 or "".join(whole).startswith(rest[:8]) or not rest.strip():
            continue
        half_answer = {"role": "assistant", "content": begun}
        for more in _CONTINUED:
            continuing = {"messages": [*messages, half_answer], **more}
            try:
                continuation = await _complete(upstream, server, continuing)
            except ServerFailed as error:
                if may_pass(error):
                    raise
                continue
            if not continuation:
                continue
            if continuation.startswith(rest) or rest.startswith(continuation):
                return dict(more)
    return None


async def _complete(upstream: Upstream, server: Capabilities, more: dict[str, Any]) -> str:
    """Return a server's greedy answer to a probe."""
    body = {"model": server.model, "max_tokens": _PROBED, "temperature": 0.0, "stream": True}
    if server.chats_only and "prompt" in more:
        more = more | {"messages": [{"role": "user", "content": more["prompt"]}]}
        del more["prompt"]
    text = ""
    async with aclosing(streamed(upstream, server.off | body | more, _PROBED)) as parts:
        async for piece, _ in parts:
            text += piece
    return text

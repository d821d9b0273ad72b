"""A server of completions: its capabilities, found by probing, and its streams.

Its answers are parsed; anything else is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from tide.core.http import MIB, Rows, ServerFailed
from tide.core.sanitize import logger
from tide.engines.base import FinishReason
from tide.engines.openai.parts import Aside, Delta
from tide.engines.openai.words import LONGEST_TOKEN, BannedWords, ask_server, same_word, words_of
from tide.engines.remote.pool import Endpoint, EndpointPool, EndpointRefused
from tide.engines.remote.protocol import NEUTRAL, NEVER

_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Text = Annotated[str, Field(max_length=1_000_000)]

# Features that a server may have on by default, switched off. `repeat_penalty` is llama.cpp's name.
OFF = {**NEUTRAL, "top_p": 1.0, "top_k": 0, "min_tokens": 0, "repeat_penalty": 1.0}


class _Part(BaseModel):
    index: Literal[0]
    finish_reason: Annotated[str | None, Field(max_length=100)] = None

    @property
    def said(self) -> str:
        """The next text."""
        raise NotImplementedError

    @property
    def beside(self) -> Delta:
        """The parts beside it."""
        return Delta()


class TextPart(_Part):
    """LocalAI leaves out an empty text, and Azure that of an event with a filter's results."""

    text: _Text = ""
    delta: None = None  # a chat's, whose text would be lost

    @property
    def said(self) -> str:
        return self.text


class ChatPart(_Part):
    delta: Delta | None = None  # Azure's events with a filter's results have none
    text: Literal[""] | None = None  # a completion's

    @property
    def said(self) -> str:
        return self.beside.content or ""

    @property
    def beside(self) -> Delta:
        return self.delta or Delta()


# An event without a choice has the usage, or a filter's findings in the prompt.
_NO_CHOICE = BeforeValidator(lambda choices: [] if choices is None else choices)


class TextEvent(BaseModel):
    """The next of a completion."""

    choices: Annotated[list[TextPart], Field(max_length=1), _NO_CHOICE]


class ChatEvent(BaseModel):
    choices: Annotated[list[ChatPart], Field(max_length=1), _NO_CHOICE]


class Served(BaseModel):
    id: _Name
    max_model_len: int | None = Field(default=None, gt=1, le=10**9)


class ServedModels(BaseModel):
    data: Rows[Served] = Field(min_length=1, max_length=10_000)


# Why a text ended, as servers call it: the last two are TGI's, "eos" is Together's.
_ENDS: dict[str, FinishReason] = {
    "length": "length",
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
}
# Ends that a server would tell again of the same request.
_REFUSALS = ("content_filter", "tool_calls", "function_call")


async def streamed(
    pool: EndpointPool, endpoint: Endpoint, body: dict[str, Any], aside: Aside | None = None
) -> AsyncGenerator[tuple[str, FinishReason | None], None]:
    """The text that a server streams, up to its end. aside: gets the other parts of an answer.

    Raises ServerFailed for an invalid stream, and EndpointRefused for an end by a filter or a tool
    call without tools.
    """
    has_tools = bool(body.get("tools")) and body.get("tool_choice") != "none"
    chat = "messages" in body
    path = "/v1/chat/completions" if chat else "/v1/completions"
    kind: type[TextEvent | ChatEvent] = ChatEvent if chat else TextEvent
    most, read = LONGEST_TOKEN * body["max_tokens"], 0
    last: tuple[str, FinishReason] | None = None
    limit = MIB + 4096 * body["max_tokens"]
    async with aclosing(pool.stream(endpoint, path, kind, body, limit=limit)) as events:
        async for event in events:
            for part in event.choices:
                said, told, beside = part.said, _end_of(part, has_tools), part.beside
                if told == "eos_token":
                    said = ""  # TGI writes the token that ends the text, as "</s>"
                end = _ENDS.get(told) if told else None  # "" before the end: Ollama, LocalAI, TGI
                read += len(said) + beside.size
                if read > most:
                    raise ServerFailed(f"wrote more than {body['max_tokens']} tokens")
                if aside is not None:
                    aside.add(beside)
                if told and end is None:
                    raise ServerFailed(f"ended a text by {told!r}")
                if last is not None:
                    # Some servers send the end twice, and Azure a filter's results after it.
                    if beside.size or (said, end) not in (("", None), ("", last[1]), last):
                        raise ServerFailed("wrote on after the end that it told")
                elif end is not None:
                    last = said, end
                else:
                    yield said, None
    if last is None:
        raise ServerFailed("ended a completion without saying why (no finish_reason)")
    yield last


def _end_of(part: _Part, has_tools: bool) -> str | None:
    """The server's finish reason. Raises EndpointRefused for a filter or an unasked tool call."""
    told = part.finish_reason
    if part.beside.tool_calls and not has_tools:
        raise EndpointRefused("called a tool, and was sent none")
    if told == "tool_calls" and has_tools:
        return "stop"
    if told in _REFUSALS:
        raise EndpointRefused(f"ended the text by {told}")
    return told


_log = logger(__name__)

# The question that tests how a server continues. All of them answer something.
_ASKED = ("What do you do in the morning?", "Tell me about the town where you live.")
_PROBES = (
    "The people of the town were kind, and in the morning",
    "She opened the window and said that",
    "The weather today is fine, and I think",
)
_PROBED = 16
# Statuses of requests with fields that a server does not take.
_UNKNOWN_FIELDS = (400, 413, 422)
_CONTINUED: tuple[dict[str, Any], ...] = (
    {"continue_final_message": True, "add_generation_prompt": False},
    {},
)


@dataclass
class Capabilities:
    """The capabilities of a server.

    model: its name there. context: most tokens, if it says. off: what it is sent in any case.
    continued: what it is sent to go on with an assistant's message; None if it cannot. banned: the
    tokens of banned words; None where a bias does not work.
    """

    model: str
    context: int | None
    off: dict[str, Any]
    continued: dict[str, Any] | None = None
    banned: BannedWords | None = None


async def look_at(
    pool: EndpointPool, endpoint: Endpoint, name: str, named: BannedWords | None
) -> Capabilities:
    """Find the capabilities of a server. named: gives its token ids, in place of its own endpoint.

    Raises ServerFailed and EndpointRefused if it cannot be used.
    """
    found = Capabilities(*await _find_model(pool, endpoint, name), dict(OFF))
    try:
        await complete_probe(pool, endpoint, found)
    except EndpointRefused as error:
        if error.status not in _UNKNOWN_FIELDS:
            raise
        found.off = {}  # it takes nothing that OpenAI's has not
    found.banned = await _find_banned(pool, endpoint, found, named)
    found.continued = await _find_continued(pool, endpoint, found)
    return found


async def complete_probe(pool: EndpointPool, endpoint: Endpoint, found: Capabilities) -> None:
    """Raise ServerFailed or EndpointRefused if a server does not complete a harmless text."""
    await _complete(pool, endpoint, found, {"prompt": _PROBES[0]})


async def _find_model(pool: EndpointPool, endpoint: Endpoint, name: str) -> tuple[str, int | None]:
    try:
        models = (await pool.request(endpoint, "/v1/models", ServedModels)).data
    except EndpointRefused as error:
        if error.status != 404:
            raise
        return name, None
    ours = [one for one in models if one.id == name]
    if not ours and len(models) > 1:
        some = ", ".join(one.id for one in models[:5])
        raise EndpointRefused(f"has no model {name!r}; --model is one of: {some}")
    (model, *_) = ours or models
    return model.id, model.max_model_len


async def _find_banned(
    pool: EndpointPool, endpoint: Endpoint, found: Capabilities, named: BannedWords | None
) -> BannedWords | None:
    """Who tells token ids, if a bias keeps the first word that was written from being drawn."""
    banned = named or await ask_server(pool, endpoint, found.model)
    for prompt in _PROBES:
        written = await _complete(pool, endpoint, found, {"prompt": prompt})
        if written.lstrip().startswith(prompt):
            raise EndpointRefused("repeats the prompt before what it writes (echo)")
        first = next((word for word in words_of(written) if word.strip()), None)
        if first is not None:
            break
    if banned is None or first is None:
        return None
    bias = {str(token): NEVER for token in await banned.ids([first])}
    try:
        more = {"prompt": prompt, "logit_bias": bias}
        other = words_of(await _complete(pool, endpoint, found, more))
    except EndpointRefused as error:
        if error.status not in _UNKNOWN_FIELDS:
            raise
        other = [first]
    if bias and same_word(first) != same_word((other or [""])[0]):
        return banned
    _log.warning("%s: logit_bias with ids of %s does not work", endpoint.url, banned.name)
    return None


async def _find_continued(
    pool: EndpointPool, endpoint: Endpoint, found: Capabilities
) -> dict[str, Any] | None:
    """The fields with which a server continues an assistant's message.

    It gets the first half of its own answer, and continues if it writes the second.
    """
    for asked in _ASKED:
        messages = [{"role": "user", "content": asked}]
        body = {"messages": messages, "max_tokens": _PROBED}
        try:
            whole = words_of(await _complete(pool, endpoint, found, body))
        except (EndpointRefused, ServerFailed):
            return None  # it has no chats
        half = len(whole) // 2
        begun, rest = "".join(whole[:half]), "".join(whole[half:])
        # In repetitive text a continuation cannot be told from a repetition.
        if half < 2 or "".join(whole).startswith(rest[:8]) or not rest.strip():
            continue
        said = {"role": "assistant", "content": begun}
        for more in _CONTINUED:
            own = body | {"messages": [*messages, said], **more}
            try:
                other = await _complete(pool, endpoint, found, own)
            except (EndpointRefused, ServerFailed):
                continue
            if other and (other.startswith(rest) or rest.startswith(other)):
                return dict(more)
    return None


async def _complete(
    pool: EndpointPool, endpoint: Endpoint, found: Capabilities, more: dict[str, Any]
) -> str:
    """A server's greedy answer to a probe."""
    body = {"model": found.model, "max_tokens": _PROBED, "temperature": 0.0, "stream": True}
    text = ""
    async with aclosing(streamed(pool, endpoint, found.off | body | more)) as parts:
        async for said, _ in parts:
            text += said
    return text

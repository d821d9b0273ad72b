"""Probe the capabilities of a completions server, and read the streams of its answers.

The form of answers differs among servers, and every known form is read. Text must be told from
other things without doubt, or the answer is refused. An answer to a chat may contain text,
reasoning and tool calls. vLLM, llama.cpp, Ollama and other servers stream the parts of tool calls
with different indexes and ids.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from tide.core.chat import Parts, ToolCall
from tide.core.http import MIB, Rows, ServerFailed, ServerUnreachable, parsed
from tide.core.sanitize import logger, shown
from tide.core.text import Thoughts
from tide.engines.base import NEVER, FinishReason
from tide.engines.openai.upstream import Upstream
from tide.engines.openai.words import LONGEST_TOKEN, BannedWords, ask_server, same_word, words_of

_log = logger(__name__)

_MOST_CALLS = 128
_Name = Annotated[str, Field(max_length=1000)]


class _Function(BaseModel):
    name: _Name | None = None
    arguments: str | None = None


class CallDelta(BaseModel):
    """The next piece of a tool call, which `index` and `id` identify; either may be missing."""

    index: int | None = None
    id: _Name | None = None
    function: _Function = _Function()


class _TextPart(BaseModel):
    type: Literal["text"]
    text: str


def _joined(content: Any) -> Any:
    """Return the text of a content that is a list of text parts, as Mistral's servers send it."""
    if not isinstance(content, list):
        return content
    return "".join(_TextPart.model_validate(part, strict=True).text for part in content)


class Delta(BaseModel):
    """The next piece of an answer. A server that sends both reasoning fields repeats the text."""

    content: Annotated[str | None, BeforeValidator(_joined)] = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[CallDelta], Field(max_length=_MOST_CALLS)] | None = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def size(self) -> int:
        """Number of characters of reasoning and tool calls."""
        functions = [one.function for one in self.tool_calls or ()]
        calls = sum(len(one.name or "") + len(one.arguments or "") for one in functions)
        return len(self.thought) + calls


class Aside:
    """Assembles the reasoning and the tool calls of an answer.

    thoughts: separates reasoning at the beginning of the text from the text, if `inline`.
    """

    def __init__(self, *, inline: bool) -> None:
        self._reasoning = ""
        self._calls: list[CallDelta] = []
        self.thoughts = Thoughts(inline=inline)

    def add(self, delta: Delta) -> None:
        """Add a piece of the answer. Raises ServerFailed for too many tool calls."""
        self._reasoning += delta.thought
        for new in delta.tool_calls or ():
            call = self._call_of(new)
            if call is None:
                if len(self._calls) == _MOST_CALLS:
                    raise ServerFailed(f"called more than {_MOST_CALLS} tools")
                self._calls.append(new.model_copy(deep=True))
                continue
            call.id = call.id or new.id
            own, more = call.function, new.function
            own.name = own.name or more.name
            own.arguments = (own.arguments or "") + (more.arguments or "")

    @property
    def parts(self) -> Parts:
        """The assembled parts. Raises ServerFailed for a tool call without a name."""
        calls = []
        for one in self._calls:
            if not one.function.name:
                raise ServerFailed("called a tool without a name")
            own = whole_characters(one.function.arguments or "")
            calls.append(ToolCall(id=one.id or "", name=one.function.name, arguments=own))
        reasoning = whole_characters(self._reasoning) + self.thoughts.said
        texts = [reasoning, *(text for one in calls for text in (one.name, one.arguments))]
        tokens = sum(len(words_of(text)) for text in texts)
        return Parts(reasoning=reasoning, tool_calls=tuple(calls), num_tokens=tokens)

    def _call_of(self, new: CallDelta) -> CallDelta | None:
        """Return the tool call that `new` continues, or None if `new` begins a call.

        Ollama, and older versions of vLLM and SGLang, leave out the index or send one index for all
        calls. So another id begins another call, and so does a name without an index.
        """
        alike = [one for one in self._calls if one.index == new.index]
        if not alike:
            return None
        last = alike[-1]
        if new.id and last.id and new.id != last.id:
            return None
        if new.index is None and new.function.name and not (new.id and new.id == last.id):
            return None
        return last


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


class Part(BaseModel):
    """The next piece of a completion (`text`) or of an answer to a chat (`delta`).

    LocalAI leaves out an empty piece; Azure leaves out the piece in events with filter results.
    index: number of the answer; some servers count events with it, send it as text, or leave it
    out.
    """

    index: int | str | None = None
    text: str | None = None
    delta: Delta | None = None
    finish_reason: Annotated[str | None, Field(max_length=100)] = None

    def read(self, chat: bool) -> Delta:
        """Return the piece as a Delta, or raise ServerFailed for a piece of the wrong kind."""
        if chat and not self.text:
            return self.delta or Delta()
        if not chat and self.delta is None:
            return Delta(content=self.text)
        raise ServerFailed("answered with the fields of " + ("a completion" if chat else "a chat"))


class Event(BaseModel):
    """An event of a stream. Without choices it reports usage, filter results, an error or nothing.

    object: "error" in older versions of vLLM, which then send `message` beside it.
    """

    choices: Annotated[
        list[Part],
        Field(max_length=1),
        BeforeValidator(lambda choices: [] if choices is None else choices),
    ] = []
    error: Any = None
    object: Any = None
    message: Any = None

    def check(self) -> None:
        """Raise ServerFailed if the server reports an error."""
        if not self.error and self.object != "error":
            return
        error = self.error or self.message
        said = error.get("message") if isinstance(error, dict) else error
        raise ServerFailed("an error in a stream", shown(str(said))[:300])


def read_event(data: bytes) -> Event:
    """Parse an event. Its texts may begin or end with half of a character (a lone surrogate)."""
    try:
        return parsed(data, Event)
    except ServerFailed:
        if b"\\u" not in data:
            raise
        try:
            return Event.model_validate(json.loads(data), strict=True)
        except (ValueError, RecursionError):
            pass
        raise


def whole_characters(text: str) -> str:
    """Join halves of characters (surrogates). Raises ServerFailed for a half without the other."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ServerFailed("wrote half a character") from None


class Text:
    """Joins the pieces of a text; a piece may end with half of a character (a surrogate)."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """Return the next whole characters. Raises ServerFailed for a half without the other."""
        piece = self._half + piece
        self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        return whole_characters(piece.removesuffix(self._half))

    def end(self) -> None:
        if self._half:
            raise ServerFailed("ended a text with half a character")


# Finish reasons of servers, in lower case. TGI sends `eos_token`, and `stop_sequence` as Anthropic
# does, which also sends `end_turn`; Together sends `eos`, Gemini `MAX_TOKENS`, Mistral
# `model_length`. vLLM sends `abort` for a text that it could not write to its end.
_ENDS: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "abort": "length",
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
}
# Finish reasons that would come again if the request were repeated.
_REFUSALS = ("content_filter", "tool_calls", "function_call")


async def streamed(
    upstream: Upstream, body: dict[str, Any], aside: Aside | None = None
) -> AsyncGenerator[tuple[str, FinishReason | None], None]:
    """Yield the text that a server streams. aside: gets the other parts of the answer.

    Raises ServerFailed for an invalid stream, and if a filter or an unrequested tool call ends the
    stream. A stream may end without `[DONE]`, but not without a finish reason.
    """
    has_tools = bool(body.get("tools")) and body.get("tool_choice") != "none"
    chat = "messages" in body
    path = "/v1/chat/completions" if chat else "/v1/completions"
    most, read = LONGEST_TOKEN * body["max_tokens"], 0
    last: tuple[str, FinishReason] | None = None
    limit = MIB + 4096 * body["max_tokens"]
    characters, index = Text(), 0
    async with aclosing(upstream.stream(path, body, limit=limit)) as events:
        async for data in events:
            event = read_event(data)
            event.check()
            for part in event.choices:
                index = _checked_index(part.index, index)
                new = part.read(chat)
                text, reason = new.content or "", _end_of(part.finish_reason, new, has_tools)
                if reason == "eos_token":
                    text = ""  # TGI writes the token that ends the text, such as "</s>"
                # Ollama, LocalAI and TGI send the reason "" before the end.
                end = _ENDS.get(reason) if reason else None
                read += len(text) + new.size
                if read > most:
                    raise ServerFailed(f"wrote more than {body['max_tokens']} tokens")
                if aside is not None:
                    aside.add(new)
                if reason and end is None:
                    raise ServerFailed("ended a text with unknown finish_reason", repr(reason))
                text = characters.add(text)
                if last is not None:
                    # Some servers send the end twice; Azure sends a filter's results after it.
                    if new.size or (text, end) not in (("", None), ("", last[1]), last):
                        raise ServerFailed("sent more text after the finish_reason")
                elif end is not None:
                    last = text, end
                else:
                    yield text, None
    if last is None:
        raise ServerFailed("ended a completion without a finish_reason")
    characters.end()
    yield last


def _checked_index(index: int | str | None, before: int) -> int:
    """Return the index of an answer. Raises ServerFailed if the server goes back to another one."""
    try:
        now = before if index is None else int(index)
    except ValueError:
        raise ServerFailed("sent an index that is not a number") from None
    if now < before:
        raise ServerFailed("wrote several answers at once")
    return now


def _end_of(reason: str | None, new: Delta, has_tools: bool) -> str | None:
    """Return the finish reason in lower case. Raises ServerFailed for a refused answer."""
    if new.tool_calls and not has_tools:
        raise ServerFailed("called a tool although the request had no tools")
    reason = reason and reason.lower()
    if reason == "tool_calls" and has_tools:
        return "stop"
    if reason in _REFUSALS:
        raise ServerFailed(f"ended the text with finish_reason {reason}")
    return reason


class Listed(BaseModel):
    """A list of models. Some servers answer the list itself, and any field may be missing."""

    data: Rows[Any] = Field(max_length=10_000)

    @model_validator(mode="before")
    @classmethod
    def _list(cls, answer: Any) -> Any:
        return {"data": answer} if isinstance(answer, list) else answer

    @property
    def contexts(self) -> dict[str, int | None]:
        """The usable models: id -> maximum number of tokens, if the server says it."""
        contexts: dict[str, int | None] = {}
        for row in self.data:
            name = row.get("id") if isinstance(row, dict) else None
            if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 1000:
                continue
            context = row.get("max_model_len")
            known = type(context) is int and 1 < context <= 10**9
            contexts[name] = context if known else None
        return contexts


# Chat questions that test whether a server continues an answer.
_ASKED = ("What do you do in the morning?", "Tell me about the town where you live.")
_PROBES = (
    "The people of the town were kind, and in the morning",
    "She opened the window and said that",
    "The weather today is fine, and I think",
)
_PROBED = 16
# HTTP statuses with which servers refuse unknown fields.
_UNKNOWN_FIELDS = (400, 413, 422)
_CONTINUED: tuple[dict[str, Any], ...] = (
    {"continue_final_message": True, "add_generation_prompt": False},
    {},
)


@dataclass
class Capabilities:
    """The capabilities of a server, found by probing.

    model: name of the model on the server. context: maximum number of tokens, if known. off: fields
    of every request. continued: fields that make the server continue an assistant message; None if
    it cannot. banned: finds token ids of banned words; None if `logit_bias` does not work.
    """

    model: str
    context: int | None
    off: dict[str, Any]
    continued: dict[str, Any] | None = None
    banned: BannedWords | None = None


async def look_at(upstream: Upstream, name: str, named: BannedWords | None) -> Capabilities:
    """Find the capabilities of a server. named: gives token ids in place of the server.

    Raises ServerFailed if the server cannot be used.
    """
    model, context = await _find_model(upstream, name)
    found = Capabilities(model, context, dict(OFF))
    try:
        await complete_probe(upstream, found)
    except ServerFailed as error:
        if error.status not in _UNKNOWN_FIELDS:
            raise
        found.off = {}  # the server takes only OpenAI's fields
    found.banned = await _find_banned(upstream, found, named)
    found.continued = await _find_continued(upstream, found)
    return found


async def complete_probe(upstream: Upstream, found: Capabilities) -> None:
    """Raise ServerFailed if a server does not complete a harmless text."""
    await _complete(upstream, found, {"prompt": _PROBES[0]})


async def _find_model(upstream: Upstream, name: str) -> tuple[str, int | None]:
    """Return the name and the context of the model. Without a usable list, `name` is the model."""
    try:
        contexts = (await upstream.request("/v1/models", Listed)).contexts
    except ServerUnreachable:
        raise
    except ServerFailed:
        contexts = {}
    if not contexts:
        return name, None
    for model in (name, f"{name}:latest"):  # Ollama's name for a model without a tag
        if model in contexts:
            return model, contexts[model]
    if len(contexts) > 1:
        some = ", ".join(list(contexts)[:5])
        raise ServerFailed(f"has no model {name!r}; set --model to one of: {some}")
    ((model, context),) = contexts.items()
    return model, context


async def _find_banned(
    upstream: Upstream, found: Capabilities, named: BannedWords | None
) -> BannedWords | None:
    """Return the source of token ids, if a bias on a word's ids makes the server avoid the word."""
    banned = named or await ask_server(upstream, found.model)
    for prompt in _PROBES:
        written = await _complete(upstream, found, {"prompt": prompt})
        if written.lstrip().startswith(prompt):
            raise ServerFailed("repeats the prompt before its completion (echo)")
        first = next((word for word in words_of(written) if word.strip()), None)
        if first is not None:
            break
    if banned is None or first is None:
        return None
    bias = {str(token): NEVER for token in await banned.ids([first])}
    try:
        more = {"prompt": prompt, "logit_bias": bias}
        other = words_of(await _complete(upstream, found, more))
    except ServerFailed as error:
        if error.status not in _UNKNOWN_FIELDS:
            raise
        other = [first]
    if bias and same_word(first) != same_word((other or [""])[0]):
        return banned
    _log.warning("%s: logit_bias with ids of %s does not work", upstream.url, banned.name)
    return None


async def _find_continued(upstream: Upstream, found: Capabilities) -> dict[str, Any] | None:
    """Return the fields with which a server continues an assistant message; None if it cannot.

    The server is sent the first half of an earlier answer, and must write the second half.
    """
    for asked in _ASKED:
        messages = [{"role": "user", "content": asked}]
        body = {"messages": messages, "max_tokens": _PROBED}
        try:
            whole = words_of(await _complete(upstream, found, body))
        except ServerFailed:
            return None  # the server takes no chats
        half = len(whole) // 2
        begun, rest = "".join(whole[:half]), "".join(whole[half:])
        # In repetitive text a continuation cannot be told from a repetition.
        if half < 2 or "".join(whole).startswith(rest[:8]) or not rest.strip():
            continue
        half_answer = {"role": "assistant", "content": begun}
        for more in _CONTINUED:
            own = body | {"messages": [*messages, half_answer], **more}
            try:
                other = await _complete(upstream, found, own)
            except ServerFailed:
                continue
            if other and (other.startswith(rest) or rest.startswith(other)):
                return dict(more)
    return None


async def _complete(upstream: Upstream, found: Capabilities, more: dict[str, Any]) -> str:
    """Return a server's greedy answer to a probe."""
    body = {"model": found.model, "max_tokens": _PROBED, "temperature": 0.0, "stream": True}
    text = ""
    async with aclosing(streamed(upstream, found.off | body | more)) as parts:
        async for piece, _ in parts:
            text += piece
    return text

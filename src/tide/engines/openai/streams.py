"""Reads the streams of a completions server: text, reasoning and tool calls.

The form of answers differs among servers, and every known form is read. Text must be told from
other things without doubt, or the answer is refused. vLLM, llama.cpp, Ollama and other servers
stream the parts of tool calls with different indexes and ids.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from copy import deepcopy
from typing import Annotated, Any, TypeGuard

import httpx
import msgspec

from tide.core.chat import Parts, ToolCall
from tide.core.http import MIB, Reply, ServerFailed
from tide.core.results import FinishReason, Usage
from tide.core.sanitize import sanitized
from tide.core.text import Thoughts
from tide.engines.openai.upstream import Upstream
from tide.engines.openai.words import LONGEST_TOKEN, words_of

_MOST_CALLS, _MOST_CHOICES = 128, 4096
_Name = Annotated[str, msgspec.Meta(max_length=1000)]


class FunctionDelta(msgspec.Struct):
    name: _Name | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct):
    """The next piece of a tool call, which `index` and `id` identify; either may be missing."""

    index: int | None = None
    id: _Name | None = None
    function: FunctionDelta = msgspec.field(default_factory=FunctionDelta)


class _TextPart(msgspec.Struct, tag="text"):
    text: str


class _ThoughtPart(msgspec.Struct, tag="thinking"):
    """Reasoning of Mistral's models."""

    thinking: list[_TextPart]


class Delta(msgspec.Struct):
    """The next piece of an answer. A server that sends both reasoning fields repeats the text.

    content: Mistral's servers send a list of parts. refusal: what OpenAI's models write in place of
    an asked form.
    """

    content: str | list[_TextPart | _ThoughtPart] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[CallDelta], msgspec.Meta(max_length=_MOST_CALLS)] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if isinstance(part, _TextPart))
        return self.content or self.refusal or ""

    @property
    def thought(self) -> str:
        thought = self.reasoning_content or self.reasoning or ""
        if isinstance(self.content, list):
            for part in self.content:
                if isinstance(part, _ThoughtPart):
                    thought += "".join(text.text for text in part.thinking)
        return thought

    @property
    def size(self) -> int:
        """Number of characters of reasoning and tool calls."""
        functions = [call.function for call in self.tool_calls or ()]
        calls = sum(len(part.name or "") + len(part.arguments or "") for part in functions)
        return len(self.thought) + calls


class Aside:
    """Assembles the reasoning and the tool calls of an answer.

    thoughts: separates reasoning at the beginning of the text from the text, if `inline`. usage:
    once the server has told it. stop_sequence: the stop string that ended the text, if the server
    says it.
    """

    usage: Usage | None = None
    stop_sequence: str | None = None

    def __init__(self, *, inline: bool) -> None:
        self._reasoning = ""
        self._is_refusal = False
        self._calls: list[CallDelta] = []
        self.thoughts = Thoughts(inline=inline)

    def add(self, delta: Delta) -> None:
        """Add a piece of the answer. Raises ServerFailed for too many tool calls."""
        self._reasoning += delta.thought
        self._is_refusal = self._is_refusal or bool(delta.refusal)
        for call_delta in delta.tool_calls or ():
            call = self._call_of(call_delta)
            if call is None:
                if len(self._calls) == _MOST_CALLS:
                    raise ServerFailed(f"called more than {_MOST_CALLS} tools")
                self._calls.append(deepcopy(call_delta))
                continue
            call.id = call.id or call_delta.id
            function, more = call.function, call_delta.function
            function.name = function.name or more.name
            function.arguments = (function.arguments or "") + (more.arguments or "")

    @property
    def parts(self) -> Parts:
        """The assembled parts. Raises ServerFailed for a tool call without a name."""
        calls = []
        reasoning = whole_characters(self._reasoning) + self.thoughts.reasoning
        texts = [reasoning]
        for call in self._calls:
            name = call.function.name
            if not name:
                raise ServerFailed("called a tool without a name")
            arguments = whole_characters(call.function.arguments or "")
            calls.append(ToolCall(id=call.id or "", name=name, arguments=arguments))
            texts += [name, arguments]
        tokens = sum(len(words_of(text)) for text in texts)
        return Parts(
            reasoning=reasoning,
            tool_calls=tuple(calls),
            is_refusal=self._is_refusal,
            stop_sequence=self.stop_sequence,
            num_tokens=tokens,
        )

    def _call_of(self, delta: CallDelta) -> CallDelta | None:
        """Return the tool call that `delta` continues, or None if `delta` begins a call.

        Ollama, and older versions of vLLM and SGLang, leave out the index or send one index for all
        calls. So another id begins another call, and so does a name without an index.
        """
        alike = [call for call in self._calls if call.index == delta.index]
        if not alike:
            return None
        last = alike[-1]
        if delta.id and last.id and delta.id != last.id:
            return None
        if delta.index is None and delta.function.name and not (delta.id and delta.id == last.id):
            return None
        return last


class Part(msgspec.Struct):
    """The next piece of a completion (`text`) or of an answer to a chat (`delta`).

    An answer that is not a stream has the whole `message` in place of a `delta`.

    LocalAI leaves out an empty piece; Azure leaves out the piece in events with filter results.
    index: number of the answer; some servers count events with it, send it as text, or leave it
    out. stop_reason: vLLM's stop string that ended the text, or the id of a token. matched_stop:
    the same of SGLang.
    """

    index: int | str | None = None
    text: str | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    stop_reason: Any = None
    matched_stop: Any = None

    def stopped_by(self, stops: Sequence[str]) -> str | None:
        """Return the stop string that ended the text, one of `stops`: other words are unscored."""
        told = self.stop_reason or self.matched_stop
        return told if told in stops else None

    def read(self, chat: bool) -> Delta:
        """Return the piece as a Delta, or raise ServerFailed for a piece of the wrong kind."""
        delta = self.delta or self.message
        if chat and not self.text:
            return delta or Delta()
        if not chat and delta is None:
            return Delta(content=self.text)
        raise ServerFailed("answered with the fields of " + ("a completion" if chat else "a chat"))


class Event(msgspec.Struct):
    """An event of a stream. Without choices it reports usage, filter results, an error or nothing.

    object: "error" in older versions of vLLM, which then send `message` beside it.
    """

    choices: Annotated[list[Part], msgspec.Meta(max_length=_MOST_CHOICES)] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    message: Any = None

    @property
    def counts(self) -> Usage | None:
        """The tokens of prompt and answer, or None if the server does not count both."""
        if not isinstance(self.usage, dict):
            return None
        read, written = self.usage.get("prompt_tokens"), self.usage.get("completion_tokens")
        if not (_is_count(read) and _is_count(written) and read + written > 0):
            return None
        return Usage(
            read,
            written,
            _details(self.usage.get("prompt_tokens_details")),
            _details(self.usage.get("completion_tokens_details")),
        )

    def check(self) -> None:
        """Raise ServerFailed if the server reports an error."""
        if not self.error and self.object != "error":
            return
        error = self.error or self.message
        fields = error if isinstance(error, dict) else {"message": error}
        text, code = sanitized(str(fields.get("message")))[:300], str(fields.get("code"))
        # vLLM finds some faults of a request only after its stream has begun.
        status = int(code) if re.fullmatch("[45][0-9][0-9]", code) else 500
        content = json.dumps({"error": fields}).encode()
        reply = Reply(status, httpx.Headers(), content)
        raise ServerFailed("an error in a stream", text, status=status, reply=reply)


# Other names of details could be words.
_DETAILS = frozenset((
    "accepted_prediction_tokens", "audio_tokens", "cache_write_tokens", "cached_tokens",
    "image_tokens", "reasoning_tokens", "rejected_prediction_tokens", "text_tokens",
))  # fmt: skip


def _details(told: Any) -> dict[str, int]:
    fields = told if isinstance(told, dict) else {}
    return {name: fields[name] for name in _DETAILS & fields.keys() if _is_count(fields[name])}


def _is_count(number: Any) -> TypeGuard[int]:
    return type(number) is int and 0 <= number < 2**31


_EVENT = msgspec.json.Decoder(Event)


def read_event(data: bytes) -> Event:
    """Parse an event.

    Its texts may begin or end with half of a character (a lone surrogate), and fields that are not
    read may hold numbers such as NaN: both are no JSON for `msgspec`.
    """
    try:
        try:
            return _EVENT.decode(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return msgspec.convert(json.loads(data), Event)
    except msgspec.ValidationError as error:
        raise ServerFailed(f"the answer cannot be used: {error}") from None
    except (ValueError, RecursionError):
        raise ServerFailed("the answer cannot be used: it is not JSON") from None


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
    "content_filter": "content_filter",  # the server's own filter
    "tool_calls": "stop",
}


def end_of_server(reason: str) -> FinishReason:
    """Return why a server ended an answer that was given out as it is."""
    return _ENDS.get(reason.lower(), "stop")


async def streamed(
    upstream: Upstream,
    body: dict[str, Any],
    most_tokens: int,
    aside: Aside | None = None,
    until: float = math.inf,
) -> AsyncGenerator[tuple[str, FinishReason | None], None]:
    """Yield the text that a server streams, at most `most_tokens`. aside: gets the other parts.

    Text that arrived together is yielded together. until: see `Client.events`. Raises ServerFailed
    for an invalid stream, and if an unrequested tool call ends the stream. A stream may end without
    `[DONE]`, but not without a finish reason.
    """
    aside = aside or Aside(inline=False)
    has_tools = bool(body.get("tools")) and body.get("tool_choice") != "none"
    chat, stops = "messages" in body, body.get("stop", ())
    path = "/v1/chat/completions" if chat else "/v1/completions"
    most_characters = LONGEST_TOKEN * most_tokens
    read = 0
    last: tuple[str, FinishReason] | None = None
    limit = MIB + 4096 * most_tokens
    characters, index = Text(), 0
    async with aclosing(upstream.stream(path, body, limit=limit, until=until)) as reads:
        async for events in reads:
            arrived = ""
            for data in events:
                event = _event_of_one_answer(data)
                aside.usage = event.counts or aside.usage
                for part in event.choices or ():
                    index = _checked_index(part.index, index)
                    delta = part.read(chat)
                    if delta.tool_calls and not has_tools:
                        raise ServerFailed("called a tool although the request had no tools")
                    reason = (part.finish_reason or "").lower()
                    # TGI writes the token that ends the text, such as "</s>".
                    text = "" if reason == "eos_token" else delta.text
                    # Ollama, LocalAI and TGI send the reason "" before the end.
                    end = _ENDS.get(reason)
                    aside.stop_sequence = part.stopped_by(stops) or aside.stop_sequence
                    read += len(text) + delta.size
                    if read > most_characters:
                        raise ServerFailed(f"wrote more than {most_tokens} tokens")
                    aside.add(delta)
                    if reason and end is None:
                        raise ServerFailed("ended a text with unknown finish_reason", repr(reason))
                    text = characters.add(text)
                    if last is not None:
                        # Some servers send the end twice; Azure sends a filter's results after it.
                        if delta.size or (text, end) not in (("", None), ("", last[1]), last):
                            raise ServerFailed("sent more text after the finish_reason")
                    elif end is not None:
                        last = text, end
                    else:
                        arrived += text
            if arrived:
                yield arrived, None
    if last is None:
        raise ServerFailed("ended a completion without a finish_reason")
    characters.end()
    yield last


def _event_of_one_answer(data: bytes) -> Event:
    event = read_event(data)
    event.check()
    if event.choices and len(event.choices) > 1:
        raise ServerFailed("wrote several answers at once")
    return event


def _checked_index(index: int | str | None, before: int) -> int:
    """Return the index of an answer. Raises ServerFailed if the server goes back to another one."""
    try:
        now = before if index is None else int(index)
    except ValueError:
        raise ServerFailed("sent an index that is not a number") from None
    if now < before:
        raise ServerFailed("wrote several answers at once")
    return now

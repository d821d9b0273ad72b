"""Cuts the context of an exchange to what a scorer can read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

from tide.core.chat import Chat, Message

_Context = TypeVar("_Context", str, Chat)


def cut_context(context: _Context, limit: int, length: Callable[[_Context], int]) -> _Context:
    """Return the longest end of a context whose `length` is at most `limit`.

    A text loses its beginning. A chat loses whole turns, the oldest first (a turn begins with a
    user message), and keeps its system messages. If the last turn alone is too long, its messages
    lose their beginnings, and the system messages stay only if they take at most half of `limit`.
    What is left of a chat at the least is a character of each of these messages.

    length: for example the number of tokens. It is called about 20 times, so a scorer should keep
    the result for the next words of the same answer.
    """
    if length(context) <= limit:
        return context
    if isinstance(context, str):
        start = _least(len(context), lambda start: length(context[start:]) <= limit)
        return context[start:]
    return _cut_chat(context, limit, length)


def _cut_chat(chat: Chat, limit: int, length: Callable[[Chat], int]) -> Chat:
    messages = chat.messages
    starts = [number for number, message in enumerate(messages) if message.role == "user"]

    def since(start: int) -> Chat:
        kept = [
            message
            for number, message in enumerate(messages)
            if number >= start or message.role == "system"
        ]
        return _with(chat, kept)

    turn = _least(len(starts), lambda turn: length(since(starts[turn])) <= limit)
    if turn < len(starts):
        return since(starts[turn])
    system = [message for message in messages[: starts[-1]] if message.role == "system"]
    last_turn = messages[starts[-1] :]
    characters = sum(len(message.content) for message in last_turn)
    if length(_with(chat, [*system, *_shortened(last_turn, characters)])) > limit // 2:
        system = []

    def without(count: int) -> Chat:
        return _with(chat, [*system, *_shortened(last_turn, count)])

    return without(_least(characters, lambda count: length(without(count)) <= limit))


def _least(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the least number below `limit` that fits, or `limit`."""
    return bisect_left(range(limit), True, key=fits)


def _with(chat: Chat, messages: Sequence[Message]) -> Chat:
    return chat.model_copy(update={"messages": tuple(messages)})


def _shortened(messages: Sequence[Message], count: int) -> list[Message]:
    """Remove `count` characters from the beginnings of messages, the first message first.

    No message becomes empty: its last visible character stays.
    """
    shortened = []
    for message in messages:
        content = message.content.rstrip()
        removed = min(count, max(0, len(content) - 1))
        count -= removed
        shortened.append(message.model_copy(update={"content": content[removed:]}))
    return shortened

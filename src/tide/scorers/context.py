"""What scorers read of the context of an exchange, which may be longer than they can read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from tide.core.chat import Chat


def context_text(context: str | Chat) -> str:
    """Return a context as a small network reads it: a message per line.

    System messages are left out: a window is short, and they say little about one answer.
    """
    if isinstance(context, str):
        return context
    said = [message.content for message in context.messages if message.role != "system"]
    return "\n".join(said)


def cut_context(context: Any, fits: Callable[[Any], bool]) -> Any:
    """Return the longest end of a context (a text or a `Chat`) for which `fits` is true.

    A text loses its beginning. A chat loses whole messages, the oldest first, and then the
    beginning of its last message, of which a character stays. The system messages stay, unless
    half of the last message does not fit with them.
    """
    if isinstance(context, str):
        return context[_least(len(context), lambda start: fits(context[start:])) :]
    *older, last = context.messages

    def ending(start: int, character: int = 0, *, keeps_system: bool = True) -> Chat:
        """Return the messages from `start` on; the last one begins at `character`."""
        system = [message for message in older[:start] if message.role == "system"]
        end = last.model_copy(update={"content": last.content[character:]})
        messages = (*(system if keeps_system else ()), *older[start:], end)
        cut: Chat = context.model_copy(update={"messages": messages})
        return cut

    start = _least(len(older), lambda start: fits(ending(start)))
    if fits(ending(start)):
        return ending(start)
    keeps = fits(ending(start, len(last.content) // 2))
    longest = max(0, len(last.content.rstrip()) - 1)
    character = _least(longest, lambda first: fits(ending(start, first, keeps_system=keeps)))
    return ending(start, character, keeps_system=keeps)


def _least(limit: int, is_enough: Callable[[int], bool]) -> int:
    """Return the least number below `limit` that is enough, or `limit`."""
    return bisect_left(range(limit), True, key=is_enough)

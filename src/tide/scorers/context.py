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
    contents = [message.content for message in context.messages if message.role != "system"]
    return "\n".join(contents)


def cut_context(context: Any, fits: Callable[[Any], bool]) -> Any:
    """Return the longest end of a context (a text or a `Chat`) for which `fits` is true.

    A text loses its beginning. A chat loses whole messages, the oldest first, and system messages
    after all others. Its last message stays; if it is too long by itself, it loses its beginning.
    """
    if isinstance(context, str):
        return context[_first_enough(len(context), lambda start: fits(context[start:])) :]
    *older, last = context.messages
    order = sorted(range(len(older)), key=lambda number: older[number].role == "system")

    def ending(dropped: int, start: int = 0) -> Chat:
        """Return the chat without so many messages; the last one begins at `start`."""
        messages = [older[number] for number in sorted(order[dropped:])]
        end = last.model_copy(update={"content": last.content[start:]})
        cut: Chat = context.model_copy(update={"messages": (*messages, end)})
        return cut

    dropped = _first_enough(len(older), lambda count: fits(ending(count)))
    if dropped < len(older):
        return ending(dropped)
    longest = max(0, len(last.content.rstrip()) - 1)  # a character stays
    return ending(dropped, _first_enough(longest, lambda start: fits(ending(dropped, start))))


def _first_enough(limit: int, is_enough: Callable[[int], bool]) -> int:
    """Return the least number below `limit` that is enough, or `limit`."""
    return bisect_left(range(limit), True, key=is_enough)

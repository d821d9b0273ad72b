"""Which word of a text carries its toxicity."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence


async def blamed(
    words: Sequence[str], score: Callable[[str], Awaitable[float]], level: float
) -> int:
    """Index of the word that ends the shortest prefix whose score reaches `level`.

    words: joined, they are the text, whose own score is `level` or more. That score is nearly
        monotone in prefix length, so it is bisected: about log2(words) texts are scored.
    """
    low, high = 0, len(words)  # beginnings of so many words: one that is below, one that is not
    while high - low > 1:
        middle = (low + high) // 2
        if await score("".join(words[:middle])) < level:
            low = middle
        else:
            high = middle
    return low

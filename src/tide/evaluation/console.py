"""What a terminal shows: texts with control characters escaped and toxic words masked, progress.

Words are masked by the bundled list of profanities, which is Surge AI's (MIT, see
`pocket/LICENSE-profanity`). Its file holds hashes of the words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.segment import Segment

from tide.core.errors import TideError
from tide.core.results import mask
from tide.core.sanitize import visible
from tide.data.records import RecordId
from tide.pocket import PROFANITIES

_Item = TypeVar("_Item")


class CleanConsole(Console):
    """Escapes control characters, since models, files and servers may send them."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text, unescaped="\n"), segment.style)


# Names of scorers and texts of models are never markup: `:windows:` in them is not an emoji.
ERRORS = CleanConsole(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


class Progress:
    """Receives the progress of a call and ignores it."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Begin work on `total` prompts. Yields a function that gets how many more are done."""
        yield lambda count: None

    def failed(self, title: str, row_id: RecordId, error: TideError) -> None:
        """A prompt could not be completed or judged; work on the other prompts continues."""

    def say(self, message: str) -> None:
        """Show a message."""


class Bars(Progress):
    """Shows a bar of the current work, and failures as lines, on stderr.

    log: also call `log_finished` for each task.
    """

    def __init__(self, *, log: bool = False) -> None:
        self._log = log

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        with progress_bar() as bar:
            yield partial(bar.advance, bar.add_task(title, total=total))
        if self._log and total:
            log_finished(f"{title}: {total} prompts")

    def failed(self, title: str, row_id: RecordId, error: TideError) -> None:
        ERRORS.print(f"{title}, id {row_id}: {error}", style="red")

    def say(self, message: str) -> None:
        ERRORS.print(message)


def chunks(
    items: Sequence[_Item], size: int, title: str, progress: Progress
) -> Iterator[Sequence[_Item]]:
    """Yield chunks of `items`, and report them to `progress` when the caller has finished them."""
    if not items:
        return
    with progress.task(title, len(items)) as advance:
        for start in range(0, len(items), size):
            chunk = items[start : start + size]
            yield chunk
            advance(len(chunk))


def log_finished(work: str) -> None:
    """Print a line for finished work where no bar is shown, as in the log of a job."""
    if not ERRORS.is_terminal:
        ERRORS.print(f"finished {work}")


def progress_bar() -> RichProgress:
    """Return a progress bar that is shown only on a terminal, and vanishes when it stops."""
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=ERRORS,
        transient=True,
        disable=not ERRORS.is_terminal,
    )


_LONGEST = 3  # maximum number of words in a listed term
_LISTED_WORD = re.compile(r"[^\W_]+")

# Matches a word and the space before it. Spaced letters ("r u d e") are one word; an HTML tag is
# separate from adjacent words.
_WORD = re.compile(
    r"\s*(?:(?<!\w)(?:[^\W_]|\*)(?:[\s._-]+(?:[^\W_]|\*)){2,}(?!\w)|<[^<>\s]*>?|[^\s<]+)"
)


def masked(text: str) -> str:
    """Mask the listed words of `text`, except their first letters."""
    words = _WORD.findall(text)
    listed = _listed(words)
    masked_words = [mask(word) if number in listed else word for number, word in enumerate(words)]
    end = sum(map(len, words))
    return "".join(masked_words) + text[end:]


def _listed(words: list[str]) -> set[int]:
    """Return the indices of words that belong to listed terms; shorter terms take precedence."""
    listed: set[int] = set()
    for length in range(1, _LONGEST + 1):
        for start in range(len(words) - length + 1):
            term = range(start, start + length)
            hashes = term_hashes("".join(words[start : start + length]))
            if listed.isdisjoint(term) and not bundled_terms().isdisjoint(hashes):
                listed.update(term)
    return listed


def term_hashes(text: str) -> set[int]:
    """Hash each run of one to three words of a text, normalized as in the scorer `pocket`."""
    from tide.scorers.languages import term_hash  # noqa: PLC0415
    from tide.scorers.pocket import normalize  # noqa: PLC0415  (slow import)

    words = _LISTED_WORD.findall(normalize(text))
    return {
        term_hash(words[start : start + length])
        for length in range(1, _LONGEST + 1)
        for start in range(len(words) - length + 1)
    }


@cache
def bundled_terms() -> frozenset[int]:
    """Return the hashes of the bundled list of profanities."""
    from safetensors import safe_open  # noqa: PLC0415  (numpy)

    with safe_open(PROFANITIES, framework="numpy") as file:
        return frozenset(file.get_tensor("listed").tolist())

"""Progress of a long evaluation."""

from __future__ import annotations

from collections.abc import Iterator

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
from tide.core.sanitize import visible
from tide.data.records import RecordId


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


class Progress:
    """Receives the progress of a call and ignores it."""

    def begin(self, title: str, total: int) -> None:
        """Work on `total` prompts begins."""

    def advance(self, count: int = 1) -> None:
        """`count` more prompts are done, and on disk."""

    def end(self) -> None:
        """The current work has ended, whether or not it is complete."""

    def failed(self, title: str, row_id: RecordId, error: TideError) -> None:
        """A prompt could not be completed or judged; work on the other prompts continues."""

    def say(self, message: str) -> None:
        """Show a message."""


class Bars(Progress):
    """Shows a bar of the current work, and failures as lines; by default on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or CleanConsole(stderr=True, markup=False, emoji=False)

    def begin(self, title: str, total: int) -> None:
        self._bar = bar_on(self._console)
        self._task = self._bar.add_task(title, total=total)
        self._bar.start()

    def advance(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)

    def end(self) -> None:
        self._bar.stop()

    def failed(self, title: str, row_id: RecordId, error: TideError) -> None:
        self._console.print(f"{title}, id {row_id}: {error}", style="red", soft_wrap=True)

    def say(self, message: str) -> None:
        self._console.print(message, highlight=False, soft_wrap=True)


def bar_on(console: Console) -> RichProgress:
    """Return a progress bar that is shown only on a terminal, and vanishes when it stops."""
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )

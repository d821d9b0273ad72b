"""What a long evaluation tells while it works."""

from __future__ import annotations

from tide.data.records import RecordId
from tide.errors import TideError


class Progress:
    """Is told what happens. This one says nothing; the command line draws bars."""

    def begin(self, what: str, total: int) -> None:
        """`total` prompts are now gone through."""

    def advance(self, count: int = 1) -> None:
        """`count` of them are done, and on disk."""

    def end(self) -> None:
        """What was begun is over, finished or not."""

    def failed(self, what: str, row_id: RecordId, error: TideError) -> None:
        """A prompt could not be completed or judged; the others go on."""

    def say(self, message: str) -> None:
        """A line for the reader."""

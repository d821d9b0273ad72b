"""What of a trial the model has read already, and need not read again to write on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Memory:
    """handle: what the engine returned for it; None: nothing is kept. read_tokens: read so far."""

    handle: object = None
    read_tokens: int = 0
    _ids: tuple[int, ...] = ()

    def read(self, token_ids: tuple[int, ...]) -> None:
        """These are read: their last one alone, if the others were read or written before."""
        before = token_ids[:-1]
        known = self.handle is not None and bool(before) and self._ids[: len(before)] == before
        self.read_tokens += 1 if known else len(token_ids)

    def wrote(self, token_ids: tuple[int, ...]) -> None:
        """The last that was written with it, with all that stands before it."""
        self._ids = token_ids

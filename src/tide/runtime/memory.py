"""The KV cache of a trial: tokens that need not be recomputed to continue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Memory:
    """handle: the engine's cache handle; None: nothing cached. read_tokens: read so far."""

    handle: object = None
    read_tokens: int = 0
    _ids: tuple[int, ...] = ()

    def read(self, token_ids: tuple[int, ...]) -> None:
        """Count these as read: only the last, if the others are cached."""
        before = token_ids[:-1]
        known = self.handle is not None and bool(before) and self._ids[: len(before)] == before
        self.read_tokens += 1 if known else len(token_ids)

    def wrote(self, token_ids: tuple[int, ...]) -> None:
        """Set the cached ids: the latest token and all before it."""
        self._ids = token_ids

"""One pace for everything that shares a quota: starts spaced evenly, over all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pace:
    """At most `per_second` starts a second, none saved up for a burst."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self._clock = clock
        self._next = clock()
        self._lock = threading.Lock()

    def reserve(self, starts: int = 1) -> float:
        """Take the next free start (or several in a row); seconds to wait for the first of them."""
        with self._lock:
            now = self._clock()
            start = max(now, self._next)
            self._next = start + starts / self.per_second
            return start - now

    def pause(self, seconds: float) -> None:
        """No start from now on for so long: the service asked for it."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)

"""`cache:SCORER`: scores kept on disk across runs, shared by all processes of a machine."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from tide.core.errors import InputError, ScorerError, first_line
from tide.core.sanitize import logger
from tide.plugins.options import checked
from tide.scorers.base import Floats, Scorer, ask
from tide.scorers.wrappers.base import Guard

_T = TypeVar("_T")
_LOG = logger(__name__)

# Scores are written after so many new ones, so that an outage loses few that were paid for.
_CHUNK = 64
# SQLite allows 999 parameters in a statement of its oldest versions.
_MOST_PARAMETERS = 900
_SCHEMA = "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, score REAL NOT NULL) STRICT"


class CachedScorer(Guard):
    """Asks `scorer` only for texts that it has never scored under its present name and revision.

    path: an SQLite file, by default `$TIDE_CACHE` or `scores.sqlite3` in the user's cache folder;
    ":memory:" keeps scores for this object's life. The file holds hashes, not texts. Several
    processes may use it at once (not over a network file system), and a killed one leaves it whole.

    Only what passed as a score is stored, and an entry that is none is scored again, with a
    warning. Raises InputError for a function, whose name says nothing about its revision (unless in
    memory), and ScorerError if the file cannot be used.
    """

    @checked
    def __init__(self, scorer: Scorer, path: str | Path | None = None) -> None:
        if "callable:" in scorer.name and str(path) != ":memory:":
            raise InputError(
                f"cache: {scorer.name} has no revision, so old scores could pass for new ones; "
                "make it a Scorer whose name holds one"
            )
        super().__init__(scorer)
        self.path = str(default_path() if path is None else path)
        self._lock = threading.Lock()
        self._warned = False
        self._database = self._guarded(self._open)

    def score(self, texts: Sequence[str]) -> Floats:
        by_text = dict.fromkeys(texts, -1.0)
        keys = {self._key(text): text for text in by_text}
        with self._lock:
            for key, score in self._guarded(lambda: self._read(list(keys))):
                # A damaged file may also answer with a key that was not asked for.
                if key in keys and type(score) is float and 0 <= score <= 1:
                    by_text[keys[key]] = score
                elif not self._warned:
                    self._warned = True
                    _LOG.warning(
                        "cache %s: an entry is not a score; it is scored again",
                        self.path,
                    )
        new = [text for text, score in by_text.items() if score < 0]
        for start in range(0, len(new), _CHUNK):
            chunk = new[start : start + _CHUNK]
            scores = dict(zip(chunk, ask(self._scorer, chunk), strict=True))
            with self._lock:
                self._guarded(lambda scores=scores: self._write(scores))  # type: ignore[misc]
            by_text.update(scores)
        return np.array([by_text[text] for text in texts], dtype=np.float64)

    def close(self) -> None:
        self._database.close()
        super().close()

    def _open(self) -> sqlite3.Connection:
        if self.path != ":memory:":
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        # Calls come from several threads; the lock takes care of them.
        database = sqlite3.connect(
            self.path, timeout=60, isolation_level=None, check_same_thread=False
        )
        try:
            # Readers and a writer at once, whole on kill.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database

    def _key(self, text: str) -> bytes:
        # A text may hold a lone surrogate, which has no UTF-8.
        return hashlib.sha256(
            f"{self._scorer.name}\0{text}".encode("utf-8", "surrogatepass")
        ).digest()

    def _read(self, keys: list[bytes]) -> list[tuple[bytes, object]]:
        found: list[tuple[bytes, object]] = []
        for start in range(0, len(keys), _MOST_PARAMETERS):
            some = keys[start : start + _MOST_PARAMETERS]
            marks = ",".join("?" * len(some))
            found += self._database.execute(
                f"SELECT key, score FROM scores WHERE key IN ({marks})", some
            )
        return found

    def _write(self, scores: dict[str, float]) -> None:
        rows = [(self._key(text), score) for text, score in scores.items()]
        self._database.execute("BEGIN IMMEDIATE")
        try:
            self._database.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", rows)
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def _guarded(self, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except (sqlite3.Error, OSError, ValueError) as error:
            raise ScorerError(
                f"cache {self.path}: cannot be used: {first_line(error)}; delete it, or choose "
                "another file with TIDE_CACHE"
            ) from error


def default_path() -> Path:
    if path := os.environ.get("TIDE_CACHE"):
        return Path(path)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "tide" / "scores.sqlite3"

"""`cache:SCORER` keeps scores on disk across runs, for all processes of a machine."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tide.core.errors import InputError, ScorerError, first_line
from tide.data.files import user_cache
from tide.plugins.options import checked
from tide.scorers.base import (
    FALLBACK,
    Attributed,
    Scored,
    Scorer,
    TextScore,
    code_of,
    score_texts,
)
from tide.scorers.wrappers.base import ScorerWrapper

# Number of new scores to request and write at a time, so that an outage loses few paid scores.
_CHUNK = 64
# attributes: JSON; an unknown attribute is missing.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS texts (
    key BLOB PRIMARY KEY, score REAL NOT NULL, attributes TEXT
) STRICT;
"""


class CachedScorer(ScorerWrapper):
    """Calls `scorer` only for texts that it has not scored yet under its current name and code.

    Attributes are stored with the scores. Of a scorer that reads exchanges, the context counts too.

    path: an SQLite file, by default `$TIDE_CACHE` or `scores.sqlite3` in the user's cache folder;
    ":memory:" uses no file. The file holds hashes, not texts. Several processes may use it at once
    (not over a network file system), and killing one does not damage it.

    Only valid scores are stored. Raises ScorerError if the file cannot be used.
    """

    @checked
    def __init__(self, scorer: Scorer, path: str | Path | None = None) -> None:
        super().__init__(scorer)
        if FALLBACK in self.attributes:
            raise InputError(
                "scorer cache: would keep verdicts of an outage; write fallback:cache:A,B"
            )
        names = ",".join(self.attributes)
        self._scored_by = f"{scorer.name}\0{code_of(scorer)}\0{names}"
        self.quick = False  # another process may lock the file
        usual = os.environ.get("TIDE_CACHE") or user_cache() / "scores.sqlite3"
        self.path = str(usual if path is None else path)
        self._lock = threading.Lock()
        with self._opened():
            self._database = self._open()
        # From Python 3.13 on, a connection that is dropped while it is open is a warning. At exit a
        # thread may still use the connection, and SQLite would crash.
        weakref.finalize(self, self._database.close).atexit = False

    def score_attributes(self, texts: Sequence[Scored]) -> Attributed:
        keys = list(map(self._key, texts))
        text_of_key = dict(zip(keys, texts, strict=True))
        with self._opened():
            known = self._read(list(text_of_key))
        unknown = [key for key in text_of_key if key not in known]
        for start in range(0, len(unknown), _CHUNK):
            chunk = unknown[start : start + _CHUNK]
            scores = score_texts(self._scorer, [text_of_key[key] for key in chunk])
            fresh = dict(zip(chunk, scores.rows(), strict=True))
            with self._opened():
                self._write(fresh)
            known |= fresh
        return Attributed.of([known[key] for key in keys], self.attributes)

    def close(self) -> None:
        with self._lock:
            self._database.close()
        super().close()

    def _open(self) -> sqlite3.Connection:
        if self.path != ":memory:":
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        # Several threads use the connection; `_lock` admits one at a time.
        database = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
        try:
            # WAL allows reads during a write, and a killed process damages nothing.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.executescript(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database

    def _key(self, scored: Scored) -> bytes:
        """Return the key of a text, or of an exchange if the scorer reads exchanges."""
        if isinstance(scored, str):
            content = scored
        else:
            context, text = scored
            messages = context if isinstance(context, str) else context.model_dump(mode="json")
            content = "exchange\0" + json.dumps([messages, text])
        # A text may hold a lone surrogate, which UTF-8 cannot encode.
        named = f"{self._scored_by}\0{content}"
        return hashlib.sha256(named.encode("utf-8", "surrogatepass")).digest()

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, TextScore]:
        """Return the stored scores."""
        known = {}
        for key in keys:
            query = "SELECT score, attributes FROM texts WHERE key = ?"
            row = self._database.execute(query, (key,)).fetchone()
            if row is not None:
                known[key] = TextScore(row[0], json.loads(row[1]))
        return known

    def _write(self, scores: dict[bytes, TextScore]) -> None:
        rows = [
            (key, score.value, json.dumps(dict(score.attributes))) for key, score in scores.items()
        ]
        with self._database:  # a transaction
            self._database.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", rows)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Admit one thread to the file, whose errors become ScorerErrors."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError, ValueError) as error:
                raise ScorerError(
                    f"cache {self.path} cannot be used: {first_line(error)}; delete the file or "
                    "choose another file with TIDE_CACHE"
                ) from error

"""`cache:SCORER`: scores kept on disk across runs, shared by all processes of a machine."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from tide.core.errors import InputError, ScorerError, first_line
from tide.core.results import Score
from tide.core.sanitize import logger
from tide.data.files import user_cache
from tide.plugins.options import checked
from tide.scorers.base import Attributed, Scorer
from tide.scorers.wrappers.base import ScorerWrapper

_T = TypeVar("_T")
_LOG = logger(__name__)

# Number of new scores after which they are written, so that an outage loses few paid ones.
_CHUNK = 64
# SQLite allows 999 parameters in a statement of its oldest versions.
_MOST_PARAMETERS = 900
# Attributes are in a table of their own, as JSON: files of earlier versions have only the first.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, score REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS attributes (key BLOB PRIMARY KEY, attributes TEXT NOT NULL) STRICT;
"""
_ATTRIBUTES = TypeAdapter(dict[str, Score])


class _Entry(NamedTuple):
    """The cached score and attributes of a text."""

    score: float
    attributes: dict[str, float]


class CachedScorer(ScorerWrapper):
    """Asks `scorer` only for texts that it has never scored under its present name and revision.

    Attributes are kept with the scores. Entries of earlier versions have a score but no attributes.

    path: an SQLite file, by default `$TIDE_CACHE` or `scores.sqlite3` in the user's cache folder;
    ":memory:" keeps scores for this object's life. The file holds hashes, not texts. Several
    processes may use it at once (not over a network file system), and a killed one leaves it whole.

    Only valid scores are stored; an invalid entry is scored again, with a warning. Raises
    InputError for a function, whose name has no revision (unless in memory), and ScorerError if the
    file cannot be used.
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

    def _asked(self, texts: Sequence[str]) -> Attributed:
        keys = {self._key(text): text for text in dict.fromkeys(texts)}
        known: dict[str, _Entry] = {}
        with self._lock:
            for key, score, attributes in self._guarded(lambda: self._read(list(keys))):
                entry = self._entry(score, attributes)
                # A damaged file may also answer with a key that was not asked for.
                if key in keys and entry is not None:
                    known[keys[key]] = entry
                elif not self._warned:
                    self._warned = True
                    _LOG.warning(
                        "cache %s: an entry is not a score; it is scored again",
                        self.path,
                    )
        new = [text for text in keys.values() if text not in known]
        for start in range(0, len(new), _CHUNK):
            chunk = new[start : start + _CHUNK]
            found = super()._asked(chunk)
            columns = {name: column.tolist() for name, column in found.attributes.items()}
            made = {
                text: _Entry(float(found.values[i]), {name: columns[name][i] for name in columns})
                for i, text in enumerate(chunk)
            }
            with self._lock:
                self._guarded(lambda made=made: self._write(made))  # type: ignore[misc]
            known |= made
        rows = [known[text] for text in texts]
        return Attributed(
            np.array([one.score for one in rows], dtype=np.float64),
            {
                name: np.array([one.attributes.get(name, np.nan) for one in rows], dtype=np.float64)
                for name in self.attributes
            },
        )

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
            # WAL: readers and a writer at the same time; a killed process leaves the file whole.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.executescript(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database

    def _key(self, text: str) -> bytes:
        # A text may hold a lone surrogate, which has no UTF-8.
        return hashlib.sha256(
            f"{self._scorer.name}\0{text}".encode("utf-8", "surrogatepass")
        ).digest()

    def _entry(self, score: object, attributes: object) -> _Entry | None:
        """An entry, if it is one: a score, and the scorer's attributes or none."""
        if type(score) is not float or not 0 <= score <= 1:
            return None
        if attributes is None or not self.attributes:
            return _Entry(score, {})
        try:
            found = _ATTRIBUTES.validate_json(str(attributes), strict=True)
        except ValidationError:
            return None
        return _Entry(score, found) if found.keys() == set(self.attributes) else None

    def _read(self, keys: list[bytes]) -> list[tuple[bytes, object, object]]:
        found: list[tuple[bytes, object, object]] = []
        for start in range(0, len(keys), _MOST_PARAMETERS):
            some = keys[start : start + _MOST_PARAMETERS]
            marks = ",".join("?" * len(some))
            found += self._database.execute(
                "SELECT key, score, attributes FROM scores LEFT JOIN attributes USING (key) "
                f"WHERE key IN ({marks})",
                some,
            )
        return found

    def _write(self, made: dict[str, _Entry]) -> None:
        rows = [(self._key(text), entry.score) for text, entry in made.items()]
        attributes = [
            (self._key(text), json.dumps(entry.attributes))
            for text, entry in made.items()
            if entry.attributes and not any(map(math.isnan, entry.attributes.values()))
        ]
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for table, some in (("scores", rows), ("attributes", attributes)):
                self._database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", some)
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
    return user_cache() / "scores.sqlite3"

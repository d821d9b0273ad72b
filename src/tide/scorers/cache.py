"""`cache:SCORER` keeps scores on disk across runs, for all processes of a machine."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from tide.core.errors import InputError, ScorerError, first_line
from tide.data.files import user_cache
from tide.plugins.options import checked
from tide.scorers.base import (
    FALLBACK,
    Attributed,
    Exchange,
    Scorer,
    ScorerWrapper,
    TextScore,
    code_of,
    score_texts,
    validated_answer,
)

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

    path: an SQLite file, by default `$TIDE_CACHE` or `scores.sqlite3` in the user's cache folder.
    The file holds hashes, not texts. Several processes may use it at once (not over a network file
    system), and killing one does not damage it.

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
        self.path = Path(usual if path is None else path)
        with self._opened() as database:
            database.executescript(_SCHEMA)

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        keys = list(map(self._key, texts))
        text_of_key = dict(zip(keys, texts, strict=True))
        with self._opened() as database:
            known = _read(database, list(text_of_key))
        unknown = [key for key in text_of_key if key not in known]
        for start in range(0, len(unknown), _CHUNK):
            chunk = unknown[start : start + _CHUNK]
            scores = score_texts(self._scorer, [text_of_key[key] for key in chunk])
            fresh = dict(zip(chunk, scores.rows(), strict=True))
            with self._opened() as database:
                _write(database, fresh)
            known |= fresh
        stored = Attributed.of([known[key] for key in keys], self.attributes)
        # The file may be damaged.
        return validated_answer(self, self.attributes, stored, len(texts))

    def _key(self, exchange: Exchange) -> bytes:
        """Return the key of a text, or of an exchange if the scorer reads exchanges."""
        if self.reads == "text":
            content = exchange.alone
        else:
            context, text = exchange
            messages = context if isinstance(context, str) else context.model_dump(mode="json")
            content = "exchange\0" + json.dumps([messages, text])
        # A text may hold a lone surrogate, which UTF-8 cannot encode.
        named = f"{self._scored_by}\0{content}"
        return hashlib.sha256(named.encode("utf-8", "surrogatepass")).digest()

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file; its errors become ScorerErrors."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=60)) as database:
                database.execute("PRAGMA synchronous = OFF")  # only a power cut can damage the file
                yield database
        except (sqlite3.Error, OSError, ValueError) as error:
            raise ScorerError(
                f"cache {self.path} cannot be used: {first_line(error)}; delete the file or "
                "choose another file with TIDE_CACHE"
            ) from error


def _read(database: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, TextScore]:
    """Return the stored scores."""
    known = {}
    for key in keys:
        query = "SELECT score, attributes FROM texts WHERE key = ?"
        row = database.execute(query, (key,)).fetchone()
        if row is not None:
            known[key] = TextScore(row[0], json.loads(row[1]))
    return known


def _write(database: sqlite3.Connection, scores: dict[bytes, TextScore]) -> None:
    rows = [(key, score.value, json.dumps(score.attributes)) for key, score in scores.items()]
    with database:  # a transaction
        database.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", rows)

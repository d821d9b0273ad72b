"""Scorers around scorers: ensembles, windows, a fallback and a cache.

`max:A,B`, `mean:A,B` and `confirm:A,B` combine several scorers. `windows:SCORER` scores a long text
in overlapping windows; the highest score counts. With `fallback:FIRST,SECOND` a second scorer
decides while the first is down. `cache:SCORER` keeps scores on disk across runs, for all processes
of a machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any, ClassVar

import numpy as np
import regex

from tide.core.concurrency import time_limit
from tide.core.errors import SCORER_DOWN, InputError, ScorerBrokenError, ScorerError, first_line
from tide.core.sanitize import logger
from tide.core.text import UNSPACED
from tide.data.files import user_cache
from tide.scorers.base import (
    FALLBACK,
    Attributed,
    Exchange,
    Floats,
    Scorer,
    ScorerWrapper,
    TextScore,
    code_of,
    is_blank,
    score_texts,
    validated_answer,
)
from tide.scorers.disguises import REORDERED
from tide.scorers.languages import displayed_language, is_read

_LOG = logger(__name__)


class _Ensemble(ScorerWrapper):
    """Every member scores every text; if one fails, the ensemble fails.

    An attribute is combined like the scores, over the members that have the attribute.

    scores_of: combines the members' scores, shape (members, texts). threshold_of: combines the
    members' thresholds.
    """

    kind: ClassVar[str]
    scores_of: ClassVar[Callable[..., Any]]
    threshold_of: ClassVar[Callable[..., float]]

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        if len(scorers) < 2:
            raise InputError(f"scorer {self.kind}: needs several scorers, as in {self.kind}:A,B")
        super().__init__(*scorers)
        self.name = f"{self.kind}:{','.join(scorer.name for scorer in scorers)}"
        self.threshold = self.threshold_of([scorer.threshold for scorer in scorers])
        if any(scorer.screen is not None for scorer in self.scorers):
            self.screen = type(self)([scorer.screen or scorer for scorer in self.scorers])

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        members = [scorer.score_attributes(texts) for scorer in self.scorers]
        attributes = {
            name: [member.attributes[name] for member in members if name in member.attributes]
            for name in self.attributes
        }
        joined = {name: self._joined(columns) for name, columns in attributes.items()}
        fallback = joined.get(FALLBACK)
        if fallback is not None and fallback.any():
            # The second scorer of a fallback has no attributes; those of other members count.
            for name, columns in attributes.items():
                known = self.scores_of(np.ma.masked_invalid(columns), axis=0)
                joined[name] = np.where(fallback, np.ma.filled(known, np.nan), joined[name])
        return Attributed(self._joined([member.values for member in members]), joined)

    def _joined(self, members: Sequence[Floats]) -> Floats:
        return np.asarray(self.scores_of(np.array(members), axis=0))


class MaxScorer(_Ensemble):
    """The highest score of any member: a text passes only if it passes all of them.

    threshold: the lowest threshold of a member.
    """

    kind, scores_of, threshold_of = "max", staticmethod(np.max), staticmethod(min)

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        super().__init__(scorers)
        names = tuple(dict.fromkeys(name for member in self.scorers for name in member.highest_of))
        for member in self.scorers:
            # An attribute that a member has, but does not count, would count in the ensemble.
            uncounted = {*member.attributes} - {*member.highest_of}
            if not member.highest_of or uncounted & {*names}:
                names = ()
        self.highest_of = names


class MeanScorer(_Ensemble):
    """The mean of the members' scores, which should be comparable."""

    kind, scores_of, threshold_of = "mean", staticmethod(np.mean), staticmethod(fmean)


# Words of a part of a text in several languages. Fewer words seldom tell a language.
_PART = 8


class ConfirmScorer(ScorerWrapper):
    """The second scorer decides; the first chooses where it is asked.

    The first, a quick scorer that counts words, is the second's screen (see `tide.Scorer`): it
    chooses at its pace where a growing text is also scored by the second, which reads sentences.
    Every score is the second scorer's, except that of a text in a language that it does not read:
    there its score is noise, and the first decides, or the second by those parts of the text that
    it reads.
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        if len(scorers) != 2:
            raise InputError("scorer confirm: needs two scorers, as in confirm:pocket,exchange")
        super().__init__(*scorers)
        screen, second = self.scorers
        self.screen, self._scorer = screen, second
        self.name = f"confirm:{screen.name},{second.name}"
        self.pace, self.threshold = screen.pace, second.threshold
        self.attributes, self.highest_of = second.attributes, second.highest_of
        self.window = second.window
        self._languages_read = _languages_of_any(second)

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        scores = self._scorer.score_attributes(texts)
        numbers = [
            number for number, text in enumerate(texts) if not is_read(self._languages_read, text)
        ]
        if not numbers:
            return scores
        unread = [texts[number] for number in numbers]
        parts = [self._parts_read(exchange.alone) for exchange in unread]
        by_first = self.scorers[0].score_attributes(unread).values
        by_second = _worst_part(self._scorer, unread, parts).values
        values = scores.values.copy()
        values[numbers] = np.maximum(by_first, by_second)
        return scores._replace(values=values)

    def _parts_read(self, text: str) -> list[str]:
        """Return the parts of a text that are clearly in a language of the second scorer."""
        read = self._languages_read or ()
        return [part for part in split_words(text, _PART) if displayed_language(part) in read]


def _languages_of_any(scorer: ScorerWrapper) -> set[str] | None:
    """Return the languages that a scorer, or any that it calls, reads; None if one is unknown."""
    if not scorer.scorers:
        return None if scorer.languages is None else set(scorer.languages)
    languages: set[str] = set()
    for member in scorer.scorers:
        read = _languages_of_any(member)
        if read is None:
            return None
        languages |= read
    return languages


# Two characters of a script without spaces are a word, and so are 8 characters of an overlong word,
# so that windows are short in every script.
_SPACED = rf"[\S--[{UNSPACED}]]"
_WORD = regex.compile(
    rf"(?V1)(?:(?=[{UNSPACED}])\X){{1,2}}|(?<!{_SPACED}){_SPACED}{{1,24}}+(?!{_SPACED})"
    rf"|(?:(?={_SPACED})\X){{1,8}}"
)

_LONGEST = 64  # maximum code points of a word, as a letter may have any number of marks


class WindowedScorer(ScorerWrapper):
    """Scores windows of 100 words that overlap by half; the highest score counts.

    Use it for scorers that truncate long texts or average a short insult away. A text of at most
    100 words is scored whole. Two characters of a script without spaces count as a word, and so do
    every 8 characters of a word of more than 24. Every window of an answer keeps its context.

    words: length of a window.
    """

    def __init__(self, scorer: Scorer, words: int = 100) -> None:
        super().__init__(scorer)
        self._words = words
        self.name = f"windows:{self._words}:{scorer.name}"

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        parts = []
        for exchange in texts:
            windows = split_words(exchange.text, self._words)
            parts.append([window for window in windows if not is_blank(window)] or windows[:1])
        return _worst_part(self._scorer, texts, parts)


def _worst_part(
    scorer: ScorerWrapper, texts: Sequence[Exchange], parts: Sequence[Sequence[str]]
) -> Attributed:
    """Return the highest scores among the parts of each text; every part keeps its context."""
    exchanges: list[Exchange] = []
    owners: list[int] = []
    for owner, exchange in enumerate(texts):
        exchanges += [exchange._replace(text=part) for part in parts[owner]]
        owners += [owner] * len(parts[owner])
    return scorer.score_attributes(exchanges).worst(owners, len(texts))


def split_words(text: str, words: int) -> list[str]:
    """Split a text into windows of `words` words that overlap by half; the last may be shorter.

    No window ends inside a character of at most 64 code points. If characters change the displayed
    order (`tide.scorers.disguises`), the whole text is a window too, as they act across windows.
    """
    spans = [
        (start, min(start + _LONGEST, match.end()))
        for match in _WORD.finditer(text)
        for start in range(match.start(), match.end(), _LONGEST)
    ]
    if len(spans) <= words:
        return [text]
    starts = range(0, len(spans) - words // 2, words - words // 2)
    windows = [text[spans[i][0] : spans[min(i + words, len(spans)) - 1][1]] for i in starts]
    return [text, *windows] if REORDERED.search(text) else windows


# Seconds after a failure in which the first scorer is not called.
_PAUSE = 10.0
# Seconds that the first scorer has for a call, and for the call that tries it again. A service that
# hangs would else be waited for until the clients have left, and so never count as down.
_PATIENCE, _PATIENCE_AGAIN = 30.0, 3.0


class FallbackScorer(ScorerWrapper):
    """Calls the second scorer while the first cannot be reached, hangs or refuses to answer.

    The second scorer decides by its own threshold, because its scores mean something else: a text
    scores 1 if it reaches this threshold, else 0. The attribute `fallback` is then 1, and the
    attributes of the first scorer are unknown.

    After a failure, the first scorer is not called for ten seconds; then one call tries it again.
    Other errors of the first scorer, such as a mistake in its code, are not caught. Threshold, pace
    and attributes are those of the first scorer.
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        if len(scorers) != 2:
            raise InputError("scorer fallback: needs two scorers, as in fallback:hf:ID,pocket")
        super().__init__(*scorers)
        first, self._second = self.scorers
        self.name = f"fallback:{first.name},{self._second.name}"
        self.fallback, self.pace = self._second.name, first.pace
        self.attributes = (*first.attributes, FALLBACK)
        self.highest_of = first.highest_of
        self._retry_at: float | None = None  # while the first scorer is down

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        seconds = _PATIENCE
        retry_at = self._retry_at  # another thread may set it meanwhile
        if retry_at is not None:
            if monotonic() < retry_at:
                return self._verdicts(texts)
            self._retry_at = monotonic() + _PAUSE  # other calls do not wait for this one
            seconds = _PATIENCE_AGAIN
        try:
            with time_limit(seconds):
                answer = self._scorer.score_attributes(texts)
        except (*SCORER_DOWN, ScorerBrokenError) as error:
            if self._retry_at is None:
                _LOG.warning("%s; %s decides until it answers again", error, self._second.name)
            self._retry_at = monotonic() + _PAUSE
            return self._verdicts(texts)
        if self._retry_at is not None:
            _LOG.warning("scorer %s answers again", self._scorer.name)
            self._retry_at = None
        return Attributed(answer.values, {**answer.attributes, FALLBACK: np.zeros(len(texts))})

    def _verdicts(self, texts: Sequence[Exchange]) -> Attributed:
        """Return the verdicts of the second scorer as scores."""
        scores = self._second.score_attributes(texts).values
        unknown = np.full(len(texts), np.nan)
        return Attributed(
            (scores >= self._second.threshold).astype(np.float64),
            {**dict.fromkeys(self.attributes, unknown), FALLBACK: np.ones(len(texts))},
        )


# Number of new scores to request and write at a time, so that an outage loses few paid scores.
_CHUNK = 64
# attributes: JSON; an unknown attribute is missing.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS texts (
    key BLOB PRIMARY KEY, score REAL NOT NULL, attributes TEXT
) STRICT;
"""
_QUERY = "SELECT score, attributes FROM texts WHERE key = ?"


class CachedScorer(ScorerWrapper):
    """Keeps scores on disk, and calls the scorer only for texts without a score.

    A score counts only under the scorer's current name and code. Attributes are stored with the
    scores. Of a scorer that reads exchanges, the context counts too.

    The file is `$TIDE_CACHE`, by default `scores.sqlite3` in the user's cache folder. It holds
    hashes, not texts. Several processes may use it at once (not over a network file system), and
    killing one does not damage it.

    Only valid scores are stored. Raises ScorerError if the file cannot be used.
    """

    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer)
        if FALLBACK in self.attributes:
            raise InputError(
                "scorer cache: would keep verdicts of an outage; write fallback:cache:A,B"
            )
        names = ",".join(self.attributes)
        self._scored_by = f"{scorer.name}\0{code_of(scorer)}\0{names}"
        self.quick = False  # another process may lock the file
        self.path = Path(os.environ.get("TIDE_CACHE") or user_cache() / "scores.sqlite3")
        with self._opened() as database:
            database.executescript(_SCHEMA)

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        keys = list(map(self._key, texts))
        text_of_key = dict(zip(keys, texts, strict=True))
        known: dict[bytes, TextScore] = {}
        with self._opened() as database:
            for key in text_of_key:
                row = database.execute(_QUERY, (key,)).fetchone()
                if row is not None:
                    known[key] = TextScore(row[0], json.loads(row[1]))
        unknown = [key for key in text_of_key if key not in known]
        for start in range(0, len(unknown), _CHUNK):
            chunk = unknown[start : start + _CHUNK]
            scores = score_texts(self._scorer, [text_of_key[key] for key in chunk])
            known |= zip(chunk, scores, strict=True)
            rows = [(key, known[key].value, json.dumps(known[key].attributes)) for key in chunk]
            with self._opened() as database, database:  # a transaction
                database.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", rows)
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

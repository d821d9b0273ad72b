"""`pocket`, the quick scorer of the default: one linear model on hashed word and character n-grams.

Everything that turns a text into features lives here; `models/train_pocket_scorer.py` imports it,
so that training and scoring cannot diverge: the metadata of the weights file holds a fingerprint of
the features.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import mmh3
import numpy as np
from safetensors import safe_open

from tide.core.errors import ScorerError, guarded
from tide.pocket import BY_CHANCE, PEOPLE, SCORER
from tide.scorers.disguises import ReadingScorer, digest_of, parts_of

# The markers of addresses and mentions. The text after a marker stays: it may be an insult.
_ADDRESSED = re.compile(r"https?://(?:www\.)?|(?<!\w)www\.|(?<!\w)@(?=\w)", re.IGNORECASE)
_REPEATED = re.compile(r"(.)\1{2,}")
# A word may hold marks that stand for letters; it is split after 40 letters.
_WORD = re.compile(
    r"[^\W_](?:[^\W_]|['*@$#!&]{1,3}(?=[^\W_])){0,39}"  # letters and digits
    r"|[*#@$]{2,}|[!?]+"
)
# Three or more single letters with the same separator between them.
_SPACED = re.compile(r"(?<![^\W_])[^\W\d_]([ ._*-])[^\W\d_](?:\1[^\W\d_])+(?![^\W_])")
# Letters that are joined over spaces, each at the beginning or the end of a part.
_LONE_LETTER = re.compile(r"(?<![^\W_])[^\W\d_](?![^\W_])")
_LETTERS_APART = re.compile(r"(?<![^\W_])[^\W\d_] [^\W\d_] [^\W\d_](?![^\W_])")
# Digits and signs that stand for letters, and words that may hold them.
_SIGNS = "013457@$!"
_LOOK_ALIKES = str.maketrans(_SIGNS, "oieastasi")
_MIXED = re.compile(r"(?<![a-z0-9@$!])[a-z]*[013457@$!][a-z0-9@$!]*")
_NUMBER = re.compile(r"[\d$@!]+(?:st|nd|rd|th|s|k|m|d|x|am|pm)?")
N_FEATURES = 2**20  # size of the hashed space
_Words = Sequence[tuple[str, ...]]  # of the parts of a text
METADATA = "pocket_scorer"  # the entry of the metadata, JSON
# Read instead of numbers, of words that hold an offensive one by chance (`BY_CHANCE`), and of words
# that say what people are (`PEOPLE`).
_ANY_NUMBER, _ANY_NAME, _ANY_PEOPLE = "100", "smith", "people"
_PROBE = (
    "It's a c4f\u00e9 n.o.w 3pm! see https://example.org, @you & me: soooo go*d!!! \u4f60\u597d "
    "455 in Scunthorpe's cockpits with Finnish women"
)


def normalize(text: str) -> str:
    """Normalize a reading (see `tide.scorers.disguises`): lower case, no accents.

    Separated letters ("s p a m", "s.p.a.m") are joined, digits and signs among letters become the
    letters that they resemble ("sp4m"), and a character repeated more than twice is cut to two.
    """
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text).replace("\u2019", "'")
        text = "".join(c for c in decomposed if unicodedata.category(c) not in ("Mn", "Cf"))
    # Most texts have none of these; searching for a character is faster than matching.
    if "@" in text or "://" in text or "www." in text.lower():
        text = _ADDRESSED.sub(" ", text)
    text = _SPACED.sub(lambda match: match[0].replace(match[1], ""), text.lower())
    if any(sign in text for sign in _SIGNS):
        text = _MIXED.sub(_read_look_alikes, text)
    return _REPEATED.sub(r"\1\1", text)


def _read_look_alikes(match: re.Match[str]) -> str:
    word = match[0].rstrip("!")
    if word.isalpha() or _NUMBER.fullmatch(word):
        return match[0]
    return word.translate(_LOOK_ALIKES) + match[0][len(word) :]


def words_of(text: str) -> _Words:
    """Split a text into normalized words, by the parts that have any, or each word alone.

    The character n-grams of 455, Scunthorpe and cockpit are those of disguised insults. So all
    numbers are read as one number, and the words of `BY_CHANCE` as one name. People labelled many
    texts toxic that mention a religion, an origin or an orientation. So all words of `PEOPLE` are
    read as one word: no group can score otherwise than another. This word is part of no n-gram of
    words, or "is gay" would weigh what "gay" does not.
    """
    parts = parts_of(text)
    # Letters are joined over spaces. The regular expression is slow for a whole text.
    may_be_apart = "xxx" in "".join(parts.read(_lone_letter))
    if parts.is_ordinary and not (may_be_apart and _LETTERS_APART.search(text)):
        return list(filter(None, parts.read(_words_of_part)))
    return [(word,) for word in _words_of_part.__wrapped__(text)]


@lru_cache(maxsize=2**14)
def _lone_letter(part: str) -> str:
    """Return "x" for a part with a letter that stands alone, and "-" for any other part."""
    return "x" if _LONE_LETTER.search(part) else "-"


@lru_cache(maxsize=2**14)
def _words_of_part(text: str) -> tuple[str, ...]:
    return tuple(map(_read_neutrally, _WORD.findall(normalize(text))))


@lru_cache(maxsize=2**14)
def _read_neutrally(word: str) -> str:
    if word[0].isdigit() and _NUMBER.fullmatch(word):
        return _ANY_NUMBER
    stem = word.removesuffix("'s")
    for path, read in ((PEOPLE, _ANY_PEOPLE), (BY_CHANCE, _ANY_NAME)):
        if not _listed(path).isdisjoint({stem, stem.removesuffix("s")}):
            return read
    return word


@cache
def _listed(path: Path) -> frozenset[str]:
    with guarded(ScorerError, f"pocket scorer: cannot use {path}"):
        return frozenset(path.read_text("ascii").split())


def fingerprint() -> str:
    """Return a digest of the features of a probe text.

    A weights file holds it, and is read only by code that computes the same features.
    """
    return digest_of_bytes(columns(_PROBE).astype("<i8").tobytes())


def columns(text: str) -> Any:
    """Return the ascending columns of the features of a text, int64, shape (n,).

    The columns equal those of scikit-learn's HashingVectorizer, which takes a millisecond even for
    one word; here the columns of frequent words are cached.
    """
    return np.array(sorted(set(_columns(words_of(text)))), np.int64)


@lru_cache(maxsize=2**14)
def _word_columns(word: str) -> tuple[int, ...]:
    """Return the columns of "word WORD" and of the n-grams of <WORD>, of 3 to 5 characters."""
    marked = f"<{word}>"
    grams = [marked[i : i + n] for n in (3, 4, 5) for i in range(len(marked) - n + 1)]
    return tuple({_column(gram) for gram in (f"word {word}", *grams)})


@lru_cache(maxsize=2**16)
def _column(feature: str) -> int:
    """Hash a feature to its column, as sklearn's FeatureHasher does."""
    return abs(mmh3.hash(feature)) % N_FEATURES


def calibrated(logit: float, before: Sequence[float], after: Sequence[float]) -> float:
    """Interpolate a logit between the knots of a calibration, from `before` to `after`.

    Outside the knots the slope is 1, so that different logits stay different. Single numbers take a
    tenth of the time of arrays.
    """
    if logit <= before[0]:
        return after[0] + (logit - before[0])
    if logit >= before[-1]:
        return after[-1] + (logit - before[-1])
    end = bisect_right(before, logit)
    start = end - 1
    slope = (after[end] - after[start]) / (before[end] - before[start])
    return slope * (logit - before[start]) + after[start]


def digest_of_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def sigmoid(logit: float) -> float:
    return float(1.0 / (1.0 + np.exp(-min(max(logit, -30.0), 30.0))))


def _columns(parts: _Words, *, before: _Words = (), after: _Words = ()) -> list[int]:
    """Return the columns of the words of `parts`, and of the pairs of words next to each other.

    A column occurs as often as its features. before, after: the part that is next to `parts` and
    takes part only in a pair.
    """
    words = list(chain.from_iterable(parts))
    columns = [column for word in words for column in _word_columns(word)]
    paired = [*(part[-1] for part in before), *words, *(part[0] for part in after)]
    for left, right in pairwise(paired):
        if _ANY_PEOPLE not in (left, right):
            columns.append(_column(f"{left} {right}"))
    return columns


_FIRST, _NEAR = 3, 8  # parts by which the beginning of a text is found near that of an earlier one


class _Sum:
    """The sum of the weights of a text's features, which is moved along while the text grows.

    It does not depend on earlier texts: the weights are multiples of 2^-24, whose sums are exact in
    any order.

    parts: the words of the text, by part. features: their number. counts: how often each column
    occurs; empty until the text has grown, because most texts that are scored do not grow.
    """

    def __init__(self, parts: _Words, weights: Sequence[float]) -> None:
        columns = set(_columns(parts))
        self.parts, self.features = parts, len(columns)
        self.total = sum(weights[column] for column in columns)
        self.counts: dict[int, int] = {}

    def move(self, parts: _Words, weights: Sequence[float]) -> None:
        """Make this the sum of `parts`, by what differs."""
        old, first = self.parts, parts[:_FIRST]
        positions = (i for i in range(_NEAR) if old[i : i + _FIRST] == first)
        gone = next(positions, None) if self.counts else None
        if gone is None:
            self.total, self.counts = 0.0, {}
            self._add(_columns(parts), weights)
        else:
            kept = _equal_parts(old[gone:], parts)
            end = gone + kept
            if gone:
                self._remove(_columns(old[:gone], after=old[gone : gone + 1]), weights)
            if end < len(old):
                self._remove(_columns(old[end:], before=old[end - 1 : end]), weights)
            self._add(_columns(parts[kept:], before=parts[kept - 1 : kept]), weights)
        self.parts, self.features = parts, len(self.counts)

    def _add(self, columns: Sequence[int], weights: Sequence[float]) -> None:
        counts = self.counts
        for column in columns:
            count = counts.get(column, 0)
            if count == 0:
                self.total += weights[column]
            counts[column] = count + 1

    def _remove(self, columns: Sequence[int], weights: Sequence[float]) -> None:
        counts = self.counts
        for column in columns:
            count = counts.pop(column) - 1
            if count:
                counts[column] = count
            else:
                self.total -= weights[column]


def _equal_parts(old: _Words, new: _Words) -> int:
    """Return the number of parts with which both begin."""
    if old == new[: len(old)]:  # quicker than in pairs
        return len(old)
    differ = (at for at, (left, right) in enumerate(zip(old, new, strict=False)) if left != right)
    return next(differ, min(len(old), len(new)))


class PocketScorer(ReadingScorer):
    """Probability that a reader finds an English text toxic. It scores 10,000 short texts a second.

    Scores of texts in other languages mean little.

    weights: a file written by `models/train_pocket_scorer.py`; the bundled file by default. It
    holds `weights` (N_FEATURES,), `bias` (1,) and the `knots` of the calibration (2, k). Raises
    ScorerError if the file is missing, damaged, or made for other features.
    """

    languages = ("en",)
    quick = True

    def __init__(self, weights: str | Path | None = None) -> None:
        path = SCORER if weights is None else Path(weights)
        with guarded(ScorerError, f"pocket scorer: cannot use {path}"):
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if json.loads(metadata[METADATA])["fingerprint"] != fingerprint():
                raise ValueError("its weights need other features than this version computes")
            for name, tensor in tensors.items():
                if not np.isfinite(tensor).all():
                    raise ValueError(f"its weight {name} holds values that are not finite")
            revision = digest_of_bytes(path.read_bytes())
            by_column, bias, knots = (
                tensors[name].astype(np.float64) for name in ("weights", "bias", "knots")
            )
        self._knots = knots.tolist()
        self._bias = float(bias[0])
        self._weights: Any = (np.round(by_column * 2**24) / 2**24).data  # reads numbers quickly
        self.name = f"pocket@{digest_of([revision, *sorted(_listed(BY_CHANCE) | _listed(PEOPLE))])}"

    def _read(self, texts: list[str]) -> list[float]:
        scores = []
        for text in texts:
            words, kept = words_of(text), parts_of(text)
            summed: _Sum | None = kept.take(self.name)
            if summed is None:
                summed = _Sum(words, self._weights)
            else:
                summed.move(words, self._weights)
            logit = summed.total / math.sqrt(summed.features or 1) + self._bias
            kept.keep(self.name, summed)
            scores.append(sigmoid(calibrated(logit, *self._knots)))
        return scores

"""`pocket`: the bundled scorer. Hashed word and character n-grams, and one linear model on them.

Everything that turns a text into features lives here; `scripts/train_pocket_scorer.py` imports it,
so that training and scoring cannot diverge. The weights file describes itself: its metadata holds
the `Features` it was trained with and a fingerprint of their output.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import mmh3
import numpy as np
from safetensors import safe_open

from tide.core.errors import InputError, ScorerError, guarded
from tide.pocket import SCORER
from tide.scorers.base import Floats, PlainScorer
from tide.scorers.disguises import score_readings
from tide.scorers.language import warn_of_other_languages

FORMAT = "tide-pocket-scorer-3"  # raise the number when code changes the score of a text
_METADATA = "pocket_scorer"

# Text after them may be an insult, so it is read.
_ADDRESSED = re.compile(r"https?://(?:www\.)?|(?<!\w)www\.|(?<!\w)@(?=\w)", re.IGNORECASE)
_REPEATED = re.compile(r"(.)\1{2,}")
# A word may hold marks that stand for letters; at most 40 of its characters are taken at once.
_WORD = re.compile(
    r"[^\W_](?:[^\W_]|['*@$#!&]{1,3}(?=[^\W_])){0,39}"  # letters and digits
    r"|[*#@$]{2,}|[!?]+"
)
# Three or more letters apart, with the same sign between all of them.
_SPACED = re.compile(r"(?<![^\W_])[^\W\d_]([ ._*-])[^\W\d_](?:\1[^\W\d_])+(?![^\W_])")
# Digits and signs that stand for a letter, and a word that may hold some.
_LOOK_ALIKES = str.maketrans("013457@$!", "oieastasi")
_MIXED = re.compile(r"(?<![a-z0-9@$!])[a-z]*[013457@$!][a-z0-9@$!]*")
_NUMBER = re.compile(r"[\d$@!]+(?:st|nd|rd|th|s|k|m|d|x|am|pm)?")
_PROBE = (
    "It's a c4f\u00e9 n.o.w 3pm! see https://example.org, @you & me: soooo go*d!!! \u4f60\u597d"
)


def normalize(text: str) -> str:
    """A reading (see `tide.scorers.disguises`) in lower case, without accents.

    Letters that stand apart ("s p a m", "s.p.a.m") are joined, digits and signs among letters are
    read as the letters they resemble ("sp4m"), and no letter comes more than twice in a row.
    """
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text).replace("\u2019", "'")
        text = "".join(c for c in decomposed if unicodedata.category(c) not in ("Mn", "Cf"))
    text = _ADDRESSED.sub(" ", text).lower()
    text = _SPACED.sub(lambda match: match[0].replace(match[1], ""), text)
    return _REPEATED.sub(r"\1\1", _MIXED.sub(_read_look_alikes, text))


def _read_look_alikes(match: re.Match[str]) -> str:
    word = match[0].rstrip("!")
    if word.isalpha() or _NUMBER.fullmatch(word):
        return match[0]
    return word.translate(_LOOK_ALIKES) + match[0][len(word) :]


@dataclass(frozen=True)
class Features:
    """The features that are counted in a text.

    n_features: size of the hashed space. char_min, char_max: lengths of the character n-grams,
    taken inside `<word>`. word_max: longest word n-gram.
    """

    n_features: int = 2**20
    char_min: int = 3
    char_max: int = 5
    word_max: int = 2

    def __post_init__(self) -> None:
        if not (
            1 <= self.n_features < 2**31
            and 1 <= self.char_min <= self.char_max
            and self.word_max >= 1
        ):
            raise InputError(f"pocket scorer: features that cannot be counted ({self})")

    def metadata(self) -> dict[str, str]:
        """These features as safetensors metadata.

        It is one entry of sorted JSON, because safetensors writes several in any order, and equal
        weights should make equal files.
        """
        values = {"format": FORMAT, **asdict(self), "fingerprint": self._fingerprint()}
        return {_METADATA: json.dumps(values, sort_keys=True)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Features:
        """The features a weights file was trained with.

        Raises ScorerError if the file is of another format, lacks a value, or if this installation
        would count something else than the training did.
        """
        if _METADATA not in metadata:
            raise ScorerError(f"metadata lacks {_METADATA!r}")
        try:
            values = dict(json.loads(metadata[_METADATA]))
            if values.get("format") != FORMAT:
                raise ScorerError(f"format is {values.get('format')!r}, expected {FORMAT!r}")
            features = cls(**{field.name: int(values[field.name]) for field in fields(cls)})
        except KeyError as error:
            raise ScorerError(f"metadata lacks {error}") from None
        except (TypeError, ValueError) as error:
            raise ScorerError(f"bad metadata: {error}") from None
        if features._fingerprint() != values.get("fingerprint"):
            raise ScorerError("these weights belong to other features than this version computes")
        return features

    def columns(self, text: str) -> Any:
        """Ascending columns of the features that `text` has, int64, shape (n,).

        As scikit-learn's HashingVectorizer, whose call takes a millisecond even for a word; most
        words recur.
        """
        words = _WORD.findall(normalize(text))
        found: set[int] = set()
        for word in words:
            found |= _word_columns(word, self.char_min, self.char_max, self.n_features)
        for n in range(2, self.word_max + 1):
            runs = map(" ".join, zip(*(words[i:] for i in range(n)), strict=False))
            found.update(_column(run, self.n_features) for run in runs)
        return np.array(sorted(found), dtype=np.int64)

    def _fingerprint(self) -> str:
        return _digest(self.columns(_PROBE).astype("<i8").tobytes())


def _word_ngrams(word: str, shortest: int, longest: int) -> tuple[str, ...]:
    """The word itself, marked, and its character n-grams: most words of a text come again."""
    padded = f"<{word}>"
    lengths = range(shortest, min(longest, len(padded)) + 1)
    return (
        f"word {word}",
        *(padded[i : i + n] for n in lengths for i in range(len(padded) - n + 1)),
    )


@lru_cache(maxsize=2**14)
def _word_columns(word: str, shortest: int, longest: int, count: int) -> frozenset[int]:
    return frozenset(_column(gram, count) for gram in _word_ngrams(word, shortest, longest))


@lru_cache(maxsize=2**16)
def _column(ngram: str, count: int) -> int:
    """The column of a feature, as in sklearn's FeatureHasher."""
    return abs(mmh3.hash(ngram)) % count


def calibrated(logits: Floats, knots: Floats) -> Floats:
    """The logits, (n,), on the rising line through the knots (from, to), (2, k)."""
    before, after = knots
    # Beyond the knots they keep their distances, so that no two texts become alike.
    outside = np.minimum(logits - before[0], 0.0) + np.maximum(logits - before[-1], 0.0)
    return np.asarray(np.interp(logits, before, after) + outside, dtype=np.float64)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


class PocketScorer(PlainScorer):
    """Probability that a reader finds an English text toxic; 10,000 short texts a second and more.

    Other languages get a score too, but it means little.

    weights: a file written by `scripts/train_pocket_scorer.py`; the bundled one by default. It
    holds `weights` (n_features,), `bias` (1,) and the `knots` of the calibration (2, k). Raises
    ScorerError if the file is missing, damaged, or belongs to other features.
    """

    pace = "word"
    languages = ("en",)

    def __init__(self, weights: str | Path | None = None) -> None:
        path = SCORER if weights is None else Path(weights)
        with guarded(ScorerError, f"pocket scorer: cannot use {path}"):
            revision = _digest(path.read_bytes())
            with safe_open(path, framework="numpy") as file:
                features = Features.from_metadata(file.metadata() or {})
                self._weights: Floats = file.get_tensor("weights").astype(np.float64)
                bias: Floats = file.get_tensor("bias").astype(np.float64)
                self._knots: Floats = file.get_tensor("knots").astype(np.float64)
        if (
            self._weights.shape != (features.n_features,)
            or bias.shape != (1,)
            or self._knots.ndim != 2
            or len(self._knots) != 2
        ):
            raise ScorerError(f"pocket scorer: {path} holds tensors of the wrong shape")
        if not all(np.isfinite(one).all() for one in (self._weights, bias, self._knots)):
            raise ScorerError(f"pocket scorer: {path} holds values that are not finite")
        if not (np.diff(self._knots) > 0).all() or not self._knots.size:
            raise ScorerError(f"pocket scorer: {path} holds a calibration that does not rise")
        self._bias = float(bias[0])
        self._features = features
        self.name = f"pocket@{revision}"

    def score(self, texts: Sequence[str]) -> Floats:
        """Probability of toxicity, shape (len(texts),), in [0, 1]; a text's score is its own."""
        if len(texts) == 0:
            return np.zeros(0)
        warn_of_other_languages("pocket", texts)
        return score_readings(self._probabilities, texts)

    def _probabilities(self, texts: list[str]) -> Floats:
        logits = calibrated(np.array([self._logit(text) for text in texts]), self._knots)
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0))), dtype=np.float64)

    def _logit(self, text: str) -> float:
        columns = self._features.columns(text)
        return float(self._weights[columns].sum()) / math.sqrt(len(columns) or 1) + self._bias

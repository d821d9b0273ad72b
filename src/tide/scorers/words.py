"""Scorers that look at words only, and the bundled list of profanities.

`profanity-check` (TF-IDF and a linear SVM) and `lexicon` are quick. They share neither data nor
method with TIDE's trained scorers, so they can judge text that was optimised against the trained
scorers. `NeverScorer` finds words that a policy lists under `never`.

The bundled list is Surge AI's (MIT, see `pocket/LICENSE-profanity`); masking uses it, too.
The file holds hashes instead of the words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray
from safetensors import safe_open

from tide.core.errors import InputError, ScorerError, guarded
from tide.core.optional import require
from tide.core.text import UNSPACED
from tide.data.files import as_text, read_whole
from tide.pocket import PROFANITIES
from tide.scorers.base import Floats
from tide.scorers.disguises import REVISION, digest_of, readings
from tide.scorers.language import ReadingScorer
from tide.scorers.pocket import normalize


class ProfanityCheckScorer(ReadingScorer):
    """Probability of profanity (English)."""

    languages = ("en",)

    def __init__(self) -> None:
        self._package: Any = require("profanity_check", extra="profanity")
        self.name = f"profanity-check@{version('alt-profanity-check')}-{REVISION}"

    def _read(self, texts: list[str]) -> Floats:
        scores: Floats = self._package.predict_prob(texts)
        return scores


class LexiconScorer(ReadingScorer):
    """Whether a text holds a listed word as a whole word, in any case.

    path: a UTF-8 file, one word or phrase a line; by default the English list of better-profanity.
    Raises InputError for a file that cannot be read or holds no words.
    """

    quick = True

    def __init__(self, path: str = "") -> None:
        try:
            if path:
                listed = as_text(read_whole(Path(path)), path)
            else:
                require("better_profanity", extra="profanity")
                listed = (files("better_profanity") / "profanity_wordlist.txt").read_text("utf-8")
        except InputError as error:
            raise InputError(f"scorer lexicon: {error}") from None
        lines = [line.strip() for line in listed.splitlines()]
        words = sorted({word.casefold() for line in lines if line for word in readings(line)})
        if not words:
            raise InputError(f"scorer lexicon: {path}: holds no words")
        self.name = f"lexicon@{digest_of(words)}"
        self.languages = None if path else ("en",)
        self._listed = _whole_words(words, "")

    def _read(self, texts: list[str]) -> list[float]:
        return [float(bool(self._listed.search(text.casefold()))) for text in texts]


def _whole_words(words: Iterable[str], allowed: str) -> regex.Pattern[str]:
    """Match whole words: no letter, digit or _ touches them, but `allowed` or unspaced ones may."""
    letter = rf"[\w--[{allowed}{UNSPACED}]]"
    return regex.compile(
        rf"(?V1)(?<!{letter})\L<words>(?!{letter})", words=words, cache_pattern=False
    )


_APART = regex.compile(r"(?V1)(?<![\w--_])[\w--_](?:[\W_]{1,3}[\w--_](?![\w--_]))+")
_BETWEEN = regex.compile(r"[\W_]+")


class NeverScorer(ReadingScorer):
    """Whether a text holds one of `words` (or phrases) as a whole, in any case.

    It searches each reading of the text (`tide.scorers.disguises`), with any space between the
    words of a phrase. Unlike `lexicon`, it also searches each reading after the normalization of
    `pocket` (digits become letters), and after joining spaced letters.
    """

    quick = True
    threshold = 1.0  # scores are 0 or 1; with 1.0, `max` uses the other scorer's threshold

    def __init__(self, words: Iterable[str]) -> None:
        read = {reading for word in words for reading in readings(word)}
        listed = sorted({spelling for one in read for spelling in _spellings(one)} - {""})
        self.name = f"never@{digest_of(listed)}"
        self._whole = _whole_words(listed, "_")  # "_" marks emphasis in Markdown
        joined = [one for word in listed if len(one := _BETWEEN.sub("", word)) > 1]
        # Without words, the pattern would match every text.
        self._joined = (
            regex.compile(r"\L<words>", words=joined, cache_pattern=False) if joined else None
        )

    def _read(self, texts: list[str]) -> list[float]:
        return [float(self._holds(text)) for text in texts]

    def _holds(self, text: str) -> bool:
        if any(map(self._whole.search, _spellings(text))):
            return True
        if self._joined is None:
            return False
        apart = (_BETWEEN.sub("", one[0]) for one in _APART.finditer(text.casefold()))
        return any(map(self._joined.search, apart))


def _spellings(text: str) -> set[str]:
    return {" ".join(spelling.split()) for spelling in (text.casefold(), normalize(text))}


LISTED = "listed"  # the tensor with the hashes
LONGEST = 3  # maximum number of words in a listed term
_LISTED_WORD = re.compile(r"[^\W_]+")


def term_hashes(text: str) -> set[int]:
    """Hash each run of one to three words of a text, normalized as in `pocket`."""
    words = _LISTED_WORD.findall(normalize(text))
    return {
        _hash(words[start : start + length])
        for length in range(1, LONGEST + 1)
        for start in range(len(words) - length + 1)
    }


def listed_hashes(terms: Iterable[str]) -> NDArray[np.uint64]:
    """Return the sorted hashes of terms, without terms of more than three words."""
    found = [_LISTED_WORD.findall(normalize(term)) for term in terms]
    hashes = {_hash(words) for words in found if 1 <= len(words) <= LONGEST}
    return np.array(sorted(hashes), dtype=np.uint64)


@cache
def bundled_terms() -> frozenset[int]:
    """Return the hashes of the bundled list of profanities."""
    with (
        guarded(ScorerError, f"list of profanities: cannot use {PROFANITIES}"),
        safe_open(PROFANITIES, framework="numpy") as file,
    ):
        return frozenset(file.get_tensor(LISTED).tolist())


def _hash(words: Sequence[str]) -> int:
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")

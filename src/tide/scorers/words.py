"""Scorers that look at words only.

`profanity-check` (TF-IDF and a linear SVM) and `lexicon` are quick. They share neither data nor
method with TIDE's trained scorers, so they can judge text that was optimised against the trained
scorers. `NeverScorer` finds words that a policy lists under `never`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import regex

from tide.core.errors import InputError, require
from tide.core.text import UNSPACED
from tide.data.files import as_text, read_whole
from tide.scorers.base import Attributed, Floats
from tide.scorers.disguises import REVISION, ReadingScorer, digest_of, readings_in_all_scripts
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
    """Whether a text holds a listed word or phrase as a whole, in any case.

    path: a UTF-8 file, one word or phrase a line; by default the English list of better-profanity.
    Raises InputError for a file that cannot be read or holds no words.
    """

    quick = True
    _readings = staticmethod(readings_in_all_scripts)

    def __init__(self, path: str = "") -> None:
        if path:
            listed = as_text(read_whole(Path(path)), f"scorer lexicon: {path}")
        else:
            require("better_profanity", extra="profanity")
            listed = (files("better_profanity") / "profanity_wordlist.txt").read_text("utf-8")
        lines = [line.strip() for line in listed.splitlines()]
        read = {reading for line in lines for reading in readings_in_all_scripts(line)}
        words = sorted({spelling for reading in read for spelling in _spellings(reading)} - {""})
        if not words:
            raise InputError(f"scorer lexicon: {path}: holds no words")
        self.name = f"lexicon@{digest_of(words)}"
        self.languages = None if path else ("en",)
        self._listed = _whole_words(words, "")

    def _read(self, texts: list[str]) -> list[float]:
        return [float(any(map(self._listed.search, _spellings(text)))) for text in texts]


# Korean particles, which are written onto a name.
_PARTICLES = "|".join((
    "\uc740", "\ub294", "\uc774", "\uac00", "\uc744", "\ub97c", "\uc758", "\uc5d0",
    "\uc5d0\uc11c", "\uc5d0\uac8c", "\uaed8", "\ud55c\ud14c", "\uc640", "\uacfc",
    "\uc774?\ub791", "\ub3c4", "\ub9cc", "\uc73c?\ub85c", "\uae4c\uc9c0", "\ubd80\ud130",
    "\ub9c8\uc800", "\uc870\ucc28", "\ucc98\ub7fc", "\ubcf4\ub2e4", "\uc774?\ub77c\uace0",
    "\uc774?\ub098", "\uc774\ub2e4", "\uc785\ub2c8\ub2e4", "\uc600\ub2e4", "\uc774\uc5c8\ub2e4",
    "\uc57c", "\uc544",
))  # fmt: skip


def _whole_words(words: Iterable[str], allowed: str) -> regex.Pattern[str]:
    """Match whole words: no letter, digit or _ touches them.

    These may touch a word: `allowed`, characters of scripts without spaces, any letter if the word
    is of such a script there, letters of other scripts if it is Korean, and Korean particles.
    """
    letter = rf"[\w--[{allowed}{UNSPACED}]]"
    korean = r"\p{Hangul}"
    begins = rf"(?<!{letter})|(?=[{UNSPACED}])|(?<!{korean})(?={korean})|(?<={korean})(?!{korean})"
    ends = rf"(?!{letter})|(?<=[{UNSPACED}])|(?<!{korean})(?={korean})|(?<={korean})(?!{korean})"
    particles = rf"(?:{_PARTICLES}){{1,3}}(?!{korean})"
    return regex.compile(
        rf"(?V1)(?:{begins})\L<words>(?:{ends}|{particles})", words=words, cache_pattern=False
    )


# Spaces, hyphens, quotation marks and markup between the words of a phrase.
_MARKUP = regex.compile(r"[\s\-\u2010-\u2015*_`~\"'\u2018\u2019\u201c\u201d]+")


_GREEK_ACCENTS = regex.compile(r"(?<=\p{Greek})\p{Mn}+")


def _spellings(text: str) -> set[str]:
    """Return a text in lower case with single spaces, and the same without markup.

    Greek accents are dropped, because capitals have none.
    """
    text = text.casefold()
    if not text.isascii():
        apart = unicodedata.normalize("NFD", text)
        text = unicodedata.normalize("NFC", _GREEK_ACCENTS.sub("", apart))
    return {" ".join(text.split()), _MARKUP.sub(" ", text).strip()}


_APART = regex.compile(r"(?V1)(?<![\w--_])[\w--_](?:[\W_]{1,3}[\w--_](?![\w--_]))+")
_BETWEEN = regex.compile(r"[\W_]+")


class NeverScorer(ReadingScorer):
    """Whether a text holds one of `words` (or phrases) as a whole, in any case.

    It searches each reading of the text (`tide.scorers.disguises`), with any space or markup
    between the words of a phrase. Unlike `lexicon`, it also searches each reading after the
    normalization of `pocket` (digits become letters), and after joining spaced letters.
    The score is also the attribute `never`, so that it counts beside limits of other attributes.
    """

    quick = True
    attributes = highest_of = ("never",)
    threshold = 1.0  # scores are 0 or 1; with 1.0, `max` uses the other scorer's threshold
    _readings = staticmethod(readings_in_all_scripts)

    def __init__(self, words: Iterable[str]) -> None:
        read = {reading for word in words for reading in readings_in_all_scripts(word)}
        spellings = {spelling for reading in read for spelling in _all_spellings(reading)}
        listed = sorted(spellings - {""})
        self.name = f"never@{digest_of(listed)}"
        self._listed = _whole_words(listed, "_")  # "_" marks emphasis in Markdown
        spaceless = [_BETWEEN.sub("", word) for word in listed]
        joined = [word for word in spaceless if len(word) > 1]
        # Without words, the pattern would match every text.
        self._joined = (
            regex.compile(r"\L<words>", words=joined, cache_pattern=False) if joined else None
        )

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        scores = self.score(texts)
        return Attributed(scores, {"never": scores})

    def _read(self, texts: list[str]) -> list[float]:
        return [float(self._holds(text)) for text in texts]

    def _holds(self, text: str) -> bool:
        if any(map(self._listed.search, _all_spellings(text))):
            return True
        if self._joined is None:
            return False
        apart = (_BETWEEN.sub("", match[0]).casefold() for match in _APART.finditer(text))
        return any(map(self._joined.search, apart))


def _all_spellings(text: str) -> set[str]:
    return _spellings(text) | {" ".join(normalize(text).split())}

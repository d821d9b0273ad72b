"""`lexicon`: 1.0 for a text that holds a word of a list, else 0.0.

Blunt: it knows no context and no word that is not listed. But it shares neither data nor method
with a trained scorer, so nothing that was optimised against one fools it in the same way. The list
is that of the better-profanity package, or any file with a word or phrase a line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import regex

from tide.core.errors import InputError
from tide.core.optional import require
from tide.core.text import UNSPACED
from tide.data.files import as_text, read_whole
from tide.scorers.base import Floats, PlainScorer
from tide.scorers.language import warn_of_other_languages
from tide.scorers.pocket import normalize
from tide.scorers.readings import REVISION, readings, score_readings

# Beside a script without spaces a word is whole, too, and in Markdown's underscores.
_LETTER = rf"[\w--[_{UNSPACED}]]"
_APART = regex.compile(r"(?V1)(?<![\w--_])[\w--_](?:[\W_]{1,3}[\w--_](?![\w--_]))+")
_BETWEEN = regex.compile(r"[\W_]+")


class ListedWords(PlainScorer):
    """Whether a text holds a listed word or phrase as a whole, in any case.

    The text is taken as it is read (`tide.scorers.readings`), with any space between the words of a
    phrase; as `pocket` reads it, with digits for letters; and letters that stand apart are joined.
    Raises InputError for no words.
    """

    pace = "word"
    languages: tuple[str, ...] | None = None

    def __init__(self, words: Iterable[str]) -> None:
        read = {reading for word in words if word.strip() for reading in readings(word)}
        listed = sorted({spelling for one in read for spelling in _spellings(one)} - {""})
        if not listed:
            raise InputError("holds no words")
        digest = hashlib.sha256("\n".join([REVISION, "w2", *listed]).encode()).hexdigest()[:8]
        self.name = f"lexicon@{digest}"
        self._whole = regex.compile(
            rf"(?V1)(?<!{_LETTER})\L<words>(?!{_LETTER})", words=listed, cache_pattern=False
        )
        joined = [one for word in listed if len(one := _BETWEEN.sub("", word)) > 1]
        self._joined = regex.compile(r"\L<words>", words=joined, cache_pattern=False)

    def score(self, texts: Sequence[str]) -> Floats:
        return score_readings(self._holds_listed, texts)

    def _holds_listed(self, texts: list[str]) -> Floats:
        return np.array([float(self._holds(text)) for text in texts])

    def _holds(self, text: str) -> bool:
        if any(map(self._whole.search, _spellings(text))):
            return True
        apart = (_BETWEEN.sub("", one[0]) for one in _APART.finditer(text.casefold()))
        return any(map(self._joined.search, apart))


class LexiconScorer(ListedWords):
    """The words of a file, one word or phrase a line; without one, those of better-profanity.

    Raises InputError for a file that cannot be read or holds no words.
    """

    def __init__(self, path: str = "") -> None:
        try:
            if path:
                listed = as_text(read_whole(Path(path)), path)
            else:
                require("better_profanity", extra="profanity")
                listed = (files("better_profanity") / "profanity_wordlist.txt").read_text("utf-8")
            super().__init__(listed.splitlines())
        except InputError as error:
            file = f"{path}: " if path and path not in str(error) else ""
            raise InputError(f"scorer lexicon: {file}{error}") from None
        self.languages = None if path else ("en",)

    def score(self, texts: Sequence[str]) -> Floats:
        if self.languages:
            warn_of_other_languages("lexicon", texts)
        return super().score(texts)


def _spellings(text: str) -> set[str]:
    return {" ".join(spelling.split()) for spelling in (text.casefold(), normalize(text))}

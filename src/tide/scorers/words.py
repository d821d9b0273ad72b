"""`profanity-check` (TF-IDF and a linear SVM) and `lexicon`: they know words, and no context.

Both are quick, and share neither data nor method with our trained scorers, so they are good judges
of text optimised against one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import regex

from tide.core.errors import InputError
from tide.core.optional import require
from tide.core.text import UNSPACED
from tide.data.files import as_text, read_whole
from tide.scorers.base import Floats, PlainScorer
from tide.scorers.language import warn_of_other_languages
from tide.scorers.readings import REVISION, digest_of, readings, score_finds, score_readings


class ProfanityCheckScorer(PlainScorer):
    """Probability of profanity (English)."""

    pace = "word"
    languages = ("en",)

    def __init__(self) -> None:
        self._package: Any = require("profanity_check", extra="profanity")
        self.name = f"profanity-check@{version('alt-profanity-check')}-{REVISION}"

    def score(self, texts: Sequence[str]) -> Floats:
        warn_of_other_languages("profanity-check", texts)
        return score_readings(self._package.predict_prob, texts)


class LexiconScorer(PlainScorer):
    """Whether a text holds a listed word, in any case and as a whole word (English without a path).

    path: a UTF-8 file, one word or phrase a line; without one, the list of better-profanity. Raises
    InputError for a file that cannot be read or holds no words.
    """

    pace = "word"

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
        # A word is also whole beside a script without spaces.
        letter = rf"[\w--[{UNSPACED}]]"
        self._listed = regex.compile(
            rf"(?V1)(?<!{letter})\L<words>(?!{letter})", words=words, cache_pattern=False
        )

    def score(self, texts: Sequence[str]) -> Floats:
        if self.languages:
            warn_of_other_languages("lexicon", texts)
        return score_finds(lambda text: self._listed.search(text.casefold()), texts)

"""`regex:FILE`: 1.0 for a text in which one of the regular expressions of a file matches, else 0.0.

For patterns such as addresses, card numbers or names of accounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import regex

from tide.core.errors import InputError, ScorerError
from tide.data.files import as_text, read_small
from tide.scorers.base import Floats, PlainScorer
from tide.scorers.readings import digest_of, score_finds

_SECONDS = 2.0  # limit of a pattern for a text


class PatternScorer(PlainScorer):
    """path: a UTF-8 file, a regular expression a line, in any case; `#` begins a comment line.

    It searches the readings of the text (`tide.scorers.readings`). A pattern that takes more than
    two seconds for a text is an error. Raises InputError for a file without patterns, or with one
    that cannot be read.
    """

    pace = "word"

    def __init__(self, path: str) -> None:
        found: dict[int, regex.Pattern[str]] = {}
        try:
            for number, line in enumerate(as_text(read_small(Path(path)), path).splitlines(), 1):
                if (pattern := line.strip()) and not pattern.startswith("#"):
                    found[number] = _compiled(f"{path}: line {number}", pattern)
            if not found:
                raise InputError(f"{path}: holds no patterns")
        except InputError as error:
            raise InputError(f"scorer regex: {error}") from None
        self._patterns, self._path = found, path
        self.name = f"regex@{digest_of(one.pattern for one in found.values())}"

    def score(self, texts: Sequence[str]) -> Floats:
        return score_finds(self._matches, texts)

    def _matches(self, text: str) -> bool:
        for number, pattern in self._patterns.items():
            try:
                if pattern.search(text, timeout=_SECONDS):
                    return True
            except TimeoutError:
                raise ScorerError(
                    f"scorer {self.name}: {self._path}: line {number}: takes more than "
                    f"{_SECONDS:g} s for a text; write a simpler pattern"
                ) from None
        return False


def _compiled(where: str, pattern: str) -> regex.Pattern[str]:
    try:
        found: regex.Pattern[str] = regex.compile(pattern, regex.IGNORECASE | regex.V1)
    except (regex.error, RecursionError, OverflowError) as error:
        raise InputError(f"{where}: no regular expression: {error}") from None
    if found.search("") is not None:
        raise InputError(f"{where}: matches an empty text, and so every text")
    return found

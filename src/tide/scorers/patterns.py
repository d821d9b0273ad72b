"""`regex:FILE` finds mail addresses, card numbers and other patterns."""

from __future__ import annotations

from pathlib import Path

import regex

from tide.core.errors import InputError, ScorerError
from tide.data.files import as_text, read_whole
from tide.scorers.disguises import digest_of, readings_in_all_scripts
from tide.scorers.language import ReadingScorer

_SECONDS = 2.0  # maximum time for one pattern on one text


class PatternScorer(ReadingScorer):
    """Whether a pattern of a file matches a reading of the text (`tide.scorers.disguises`).

    path: a UTF-8 file, one regular expression a line, case-insensitive; `#` begins a comment line.
    A pattern that takes more than two seconds for a text is an error. Raises InputError for a file
    without patterns or with an invalid pattern.
    """

    _readings = staticmethod(readings_in_all_scripts)

    def __init__(self, path: str) -> None:
        patterns: dict[int, regex.Pattern[str]] = {}
        try:
            for number, line in enumerate(as_text(read_whole(Path(path)), path).splitlines(), 1):
                if not (pattern := line.strip()) or pattern.startswith("#"):
                    continue
                where = f"{path}: line {number}"
                try:
                    patterns[number] = regex.compile(pattern, regex.IGNORECASE | regex.V1)
                except (regex.error, ValueError, RecursionError, OverflowError) as error:
                    raise InputError(f"{where} is not a regular expression: {error}") from None
                if patterns[number].search("") is not None:
                    raise InputError(f"{where} matches an empty text, and therefore every text")
            if not patterns:
                raise InputError(f"{path} holds no patterns")
        except InputError as error:
            raise InputError(f"scorer regex: {error}") from None
        self._patterns, self._path = patterns, path
        self.name = f"regex@{digest_of(pattern.pattern for pattern in patterns.values())}"

    def _read(self, texts: list[str]) -> list[float]:
        return [float(self._matches(text)) for text in texts]

    def _matches(self, text: str) -> bool:
        for number, pattern in self._patterns.items():
            try:
                if pattern.search(text, timeout=_SECONDS):
                    return True
            except TimeoutError:
                raise ScorerError(
                    f"scorer {self.name}: {self._path}: line {number} takes more than "
                    f"{_SECONDS:g} s for a text; write a simpler pattern"
                ) from None
        return False

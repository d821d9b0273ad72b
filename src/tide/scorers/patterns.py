"""`regex:FILE` finds mail addresses, card numbers and other patterns."""

from __future__ import annotations

from pathlib import Path

import regex

from tide.core.errors import InputError, ScorerError
from tide.data.files import as_text, read_whole
from tide.scorers.disguises import digest_of, readings_in_all_scripts
from tide.scorers.language import ReadingScorer

_SECONDS = 2.0  # maximum time for one pattern on one text
# Maximum copies that repetition makes of a part of a pattern. A million copies take 300 MB.
_MOST_COPIES = 10_000
_TOKEN = regex.compile(
    r"""(?sx) \\. | (?P<nothing> \s+ | \(\?\#[^)]*\) ) | (?P<opens_set> \[ \^? \]? )
    | \{ (?P<minimum> [\d\s]+ ) (?: ,[\d\s]* )? \}
    | ."""
)


class PatternScorer(ReadingScorer):
    """Whether a pattern of a file matches a reading of the text (`tide.scorers.disguises`).

    path: a UTF-8 file, one regular expression a line, case-insensitive; `#` begins a comment line.
    A pattern that takes more than two seconds for a text is an error. Raises InputError for a file
    without patterns, with an invalid pattern, or with one that repeats a part over 10,000 times.
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
                    _check_copies(pattern, where)
                    patterns[number] = regex.compile(pattern, regex.IGNORECASE | regex.V1)
                except (
                    regex.error,
                    ValueError,
                    RecursionError,
                    OverflowError,
                    MemoryError,
                ) as error:
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


def _check_copies(pattern: str, where: str) -> None:
    """Raise InputError for repetition that would take much memory.

    `regex` compiles `(?:a{30}){20,}` to 600 copies of `a`.
    """
    copies = [0]  # made by the repetitions in each open group
    last = 0  # made by those in the last part
    open_sets = 0
    for token in _TOKEN.finditer(pattern):
        if token["opens_set"]:
            open_sets += 1
            last = 0
        elif open_sets:
            open_sets -= token[0] == "]"
        elif token[0] == "(":
            copies.append(0)
        elif token[0] == ")" and len(copies) > 1:
            last = copies.pop()
            copies[-1] += last
        elif token["minimum"] and (minimum := "".join(token["minimum"].split())):
            repeated = max(1, last) * max(1, int(minimum))
            copies[-1] += repeated - last
            last = repeated
        elif not token["nothing"]:  # (?x) allows spaces before a repetition
            last = 0
        if copies[-1] > _MOST_COPIES:
            raise InputError(
                f"{where} repeats a part of itself more than {_MOST_COPIES:,} times; "
                "write smaller numbers in {}"
            )

"""Undoes disguises, so that bundled scorers read a text as a person does.

HTML entities are decoded, invisible characters dropped, and letters that look Latin (Unicode's
confusables) replaced by Latin letters. Text of other scripts stays unchanged. A text has several
readings if backspaces or a right-to-left override change its display, if an invisible character
may be displayed as a space, or if words are masked or lengthened; the highest score counts.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import regex

from tide.core.errors import ScorerError, guarded
from tide.pocket import VOCABULARY
from tide.scorers.base import Floats, PlainScorer

_Part = TypeVar("_Part")

# Part of the names of scorers without another revision. Raise it when the readings change.
REVISION = "r4"

_PASSES = 8  # maximum number of passes over a text with nested disguises
_AMPERSANDS = re.compile(r"&(?:(?:amp|#0*38|#x0*26);)+", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d{1,8};?|#x[0-9a-f]{1,6};?|[a-z][a-z0-9]{1,31};)", re.IGNORECASE)
# ASCII without "&" and control characters, accented Latin letters, quotation marks, currencies,
# dashes, an ellipsis, pictograms and emojis.
_ORDINARY = re.compile(
    r"[\t\n\r -%'-~\u00a1\u00a3\u00ab\u00b0\u00bb\u00bf\u00c0-\u0130\u0134-\u017e"
    r"\u2010-\u2015\u2018\u2019\u201c\u201d\u2026\u20ac\u2600-\u27bf\U0001f300-\U0001f64f"
    r"\U0001f680-\U0001f6ff\U0001f900-\U0001f9ff]*"
)
REORDERED = re.compile("[\b\x7f\u202e]")  # characters that change the displayed order
_OVERRIDE = "\u202e"
_OPENS, _CLOSES = "\u202a\u202b\u202d\u202e", "\u202c"
_WORD = re.compile(r"[^\W\d_]+")
# Invisible characters outside the category Cf: default-ignorable characters, and the Braille blank.
_BLANK = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
# Read in two ways: dropped (they may hide inside a word) and as spaces (many fonts show them).
_APART = re.compile(
    "[\x85\u115f\u1160\u2800\u3164\uffa0\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2"
    "\ufff9-\ufffb\U000110bd\U000110cd]"
)
# Marks are dropped after 30, because NFC takes time quadratic in the length of a run of marks.
_PILED = regex.compile(r"(\p{M}{30})\p{M}+")
_ZEROS = re.compile(r"(&#)0+(?=\d)|(&#x)0+(?=[0-9a-f])", re.IGNORECASE)  # leading zeros
# Letters that Unicode does not decompose: negative ones, and small capitals.
_SHAPED = re.compile(
    r"(?:NEGATIVE (?:CIRCLED|SQUARED) LATIN CAPITAL LETTER|LATIN LETTER SMALL CAPITAL) ([A-Z])"
)


def readings_in_all_scripts(text: str) -> tuple[str, ...]:
    """Return the readings of `text` with and without the replacement of look-alikes.

    A listed Russian or Greek word in capitals may consist of letters that look Latin.
    """
    return tuple(dict.fromkeys([*readings(text), *readings(text, look_alikes=False)]))


def readings(text: str, look_alikes: bool = True) -> tuple[str, ...]:
    """Return the readings of `text`, one to eight; the text as displayed comes first.

    The reading of ordinary text is the text itself. look_alikes: replace letters that look Latin.
    """
    if is_ordinary(text):
        plain = unmasked(text)
        return (text,) if plain == text else (text, plain)
    read = _displayed(text, look_alikes)
    return tuple(dict.fromkeys([*read, *map(unmasked, read)]))


def is_ordinary(text: str) -> bool:
    """Whether the text is displayed as it is: its only disguises are masked words."""
    return parts_of(text).is_ordinary


def _displayed(text: str, look_alikes: bool) -> list[str]:
    text = _until_stable(_decoded, text)
    variants = [text]
    if REORDERED.search(text):
        variants.insert(0, _reversed(_erased(text)))
    if _APART.search(text):
        variants += [_APART.sub(" ", variant) for variant in variants]
    read = partial(_read, look_alikes=look_alikes)
    return [_until_stable(read, variant) for variant in variants]


def digest_of(listed: Iterable[str]) -> str:
    """Return an 8-character digest of a list of words or patterns and of `REVISION`."""
    return hashlib.sha256("\n".join([REVISION, *listed]).encode()).hexdigest()[:8]


def _until_stable(step: Callable[[str], str], text: str) -> str:
    """Apply `step` until `text` no longer changes; after 8 passes, also replace each "&"."""
    for _ in range(_PASSES):
        changed = step(text)
        if changed == text:
            return text
        text = changed
    return step(text.replace("&", " "))


def _decoded(text: str) -> str:
    text = _ZEROS.sub(lambda match: match[1] or match[2], _AMPERSANDS.sub("&", text))
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def _erased(text: str) -> str:
    """Erase the character before each backspace, as a terminal does."""
    characters: list[str] = []
    for c in text:
        if c not in "\b\x7f":
            characters.append(c)
        elif characters:
            characters.pop()
    return "".join(characters)


def _reversed(text: str) -> str:
    """Put text after right-to-left overrides into the displayed order.

    Nested overrides are not resolved, because the stored order is read as well.
    """
    displayed: list[str] = []
    inside: list[str] = []
    depth = 0
    for c in text:
        if depth == 0 and c != _OVERRIDE:
            displayed.append(c)
            continue
        depth += (c in _OPENS) - (c in _CLOSES)
        inside.append(c)
        if depth == 0:
            displayed += reversed(inside)
            inside = []
    return "".join([*displayed, *reversed(inside)])


def _read(text: str, look_alikes: bool) -> str:
    text = "".join(map(_plain, unicodedata.normalize("NFC", _PILED.sub(r"\1", _decoded(text)))))
    if look_alikes and not text.isascii():
        text = _latin(text)
    return _without_marks(text)


@lru_cache(maxsize=2**12)
def _plain(c: str) -> str:
    """Return "" for an invisible character, and the plain letter for a circled or small one."""
    if c.isascii():
        return c if c.isprintable() or c in "\t\n\r" else ("" if c in "\b\x7f\x00" else " ")
    category = unicodedata.category(c)
    if category in ("Cf", "Cc") or c in _BLANK or 0xE0000 <= ord(c) <= 0xE0FFF:
        return ""
    if category.startswith("Z"):
        return " "
    plain = unicodedata.normalize("NFKC", c)
    if plain.isascii() and plain.isalpha() and c not in "\u00aa\u00ba":
        return plain
    shaped = _SHAPED.fullmatch(unicodedata.name(c, ""))
    return shaped[1] if shaped else c


def _without_marks(text: str) -> str:
    """Drop combining marks after Latin letters; NFC has already joined the common pairs."""
    if text.isascii():
        return text
    characters: list[str] = []
    latin = False
    for c in text:
        if unicodedata.category(c) in ("Mn", "Me"):
            if not latin:
                characters.append(c)
        else:
            characters.append(c)
            latin = is_latin(c)
    return "".join(characters)


def _latin(text: str) -> str:
    """Replace look-alikes by Latin letters in words that also hold a Latin letter.

    A word without Latin letters is changed only if all its letters look Latin and the text is
    mainly Latin, because some Russian words consist of letters that look
    Latin.
    """
    like, same = _look_alikes()
    latin = non_latin = 0
    for word in _WORD.findall(text):
        if any(map(is_latin, word)):
            latin += len(word)
        else:
            non_latin += sum(c not in same for c in word)
    is_mainly_latin = non_latin <= latin

    def read(match: re.Match[str]) -> str:
        word = match[0]
        looks_latin = is_mainly_latin and all(c in same for c in word)
        if looks_latin or any(map(is_latin, word)):
            return "".join(like.get(c, c) for c in word)
        return word

    return _WORD.sub(read, text)


@cache
def _look_alikes() -> tuple[dict[str, str], dict[str, str]]:
    """Return two maps from look-alikes to Latin letters, `like` and `same`.

    `same` holds Unicode's confusables. `like` adds lowercase letters whose capitals look Latin,
    such as the Cyrillic "\u043a".
    """
    from confusable_homoglyphs.confusables import (  # noqa: PLC0415  (reads a large table)
        confusables_data,
    )

    same = {}
    for c, entries in confusables_data.items():
        if len(c) > 1 or c.isascii() or not c.isalpha():
            continue
        letters = [entry["c"] for entry in entries if len(entry["c"]) == 1]
        if plain := [letter for letter in letters if letter.isascii() and letter.isalpha()]:
            # Unicode's table also maps look-alikes of "I" to "l".
            same[c] = "I" if plain[0] == "l" and c.isupper() else plain[0]
    small = {c.lower(): letter.lower() for c, letter in same.items() if c.isupper()}
    return {c: letter for c, letter in small.items() if len(c) == 1} | same, same


@lru_cache(maxsize=2**12)
def is_latin(c: str) -> bool:
    return c.isascii() or unicodedata.name(c, "").startswith(("LATIN", "FULLWIDTH L"))


# Masked profanities, with signs in the place of letters, and lengthened ones.
#
# A masked word fits every word of its length with the letters that it shows. It is read as the
# most frequent listed word that fits, if the listed words that fit are together at least a tenth as
# frequent as the other words that fit: people mask profanities, and hardly ever another word. (Of
# the words with asterisks inside in labelled comments, nearly all are profane.) Otherwise it is
# read as it is. So is a word that
#
# - is an ordinary word if the signs before or after it are left out, as with footnotes and bullets:
#   without them it counts as a word that fits, two hundredfold;
# - shows only one letter, unless that is a small letter before asterisks;
# - is masked by several of the signs `*`, `#`, `_` and `-`, or ends in `-`, which may be a dash.
#
# A lengthened word repeats letters of a listed word. It is read as that word if neither it nor
# another word that it lengthens is an ordinary word, and if it is not written as a name.
#
# The words and their frequencies come from `models/write_vocabulary.py`.

_SHORTEST, _LONGEST = 4, 14  # lengths of words that are read
_COMMON = 10.0  # uses in a million words that make an unlisted word ordinary, not a misspelling
_RATIO = 10  # how much more frequently a listed word is masked than another word
_LONGEST_PART = 40  # characters of a part that is remembered
_SHORT = 2000  # characters of a text whose parts are remembered
# A text is found from the last characters before its last part; it may have so many parts more at
# the end, and so many characters less at the beginning.
_TAIL, _MOST_NEW, _MOST_GONE = 60, 4, 160
# Many texts may end alike, as with a signature, and each later one is compared with them.
_MOST_ENDINGS, _MOST_ALIKE = 512, 4
_WHOLE = 200  # how much more frequently signs touch a whole word than mask a word
# Finds most texts without masked words; the next expression is slower.
_SIGNED = re.compile(r"[0-9*#@$!_-](?<=[A-Za-z].)|\*[A-Za-z]")
# Letters and signs; asterisks and underscores around a word mark emphasis.
_TOKEN = re.compile(r"(?<![\w*#@$!-])(?:[A-Za-z]|[*_]+[A-Za-z])[A-Za-z0-9*#@$!_-]*(?!\w)")
_MASKED = re.compile(r"(\**)([a-z](?:[a-z0-9*#@$!_-]*[a-z])?)([*#@$]*|_+)")
_SIGN = re.compile(r"[^a-z]")
_DOUBLED = re.compile(r"\b[A-Za-z]*?([A-Za-z])\1[A-Za-z]*\b")
_RUN = re.compile(r"([a-z])\1*")


class Vocabulary(NamedTuple):
    """Words with their uses in a million words.

    texts: the listed and the ordinary words, each between line ends. stems: the listed words by
    their letters without repetitions.
    """

    listed: dict[str, float]
    ordinary: dict[str, float]
    texts: tuple[str, str]
    stems: dict[str, list[str]]


# Texts that may grow, by the last characters before their last part.
_newest: OrderedDict[str, list[Parts]] = OrderedDict()


@cache
def vocabulary() -> Vocabulary:
    listed: dict[str, float] = {}
    ordinary: dict[str, float] = {}
    with guarded(ScorerError, f"vocabulary: cannot use {VOCABULARY}"):
        for line in gzip.decompress(VOCABULARY.read_bytes()).decode("ascii").splitlines():
            word, frequency, *marks = line.split()
            (listed if marks else ordinary)[word] = float(frequency)
    stems: dict[str, list[str]] = {}
    for word in listed:
        if len(word) >= _SHORTEST:
            stems.setdefault(_RUN.sub(r"\1", word), []).append(word)
    texts = "\n".join(["", *listed, ""]), "\n".join(["", *ordinary, ""])
    return Vocabulary(listed, ordinary, texts, stems)


def unmasked(text: str) -> str:
    """Return `text` with its masked and lengthened profanities in plain letters."""
    parts = parts_of(text)
    return " ".join(parts.read(_without_masks)) if any(parts.read(_has_masks)) else text


@lru_cache(maxsize=2**14)
def _has_masks(part: str) -> bool:
    return _without_masks.__wrapped__(part) != part


def _read_parts(parts: Sequence[str], read: Any) -> list[Any]:
    if max(map(len, parts)) <= _LONGEST_PART:
        return [*map(read, parts)]
    return [read(part) if len(part) <= _LONGEST_PART else read.__wrapped__(part) for part in parts]


class Parts:
    """The parts of a text between spaces, and what was read of them.

    A text that is scored again as it grows is read only where it is new.

    known: the values of a text that ended a few words earlier, whose parts from `gone` on, except
    the first and the last of them, are parts of this text, too. It is not kept itself, or each text
    would keep all that came before it. values: what was read, and what was kept. is_ordinary: see
    the function.
    """

    is_ordinary: bool

    def __init__(self, text: str) -> None:
        self.text = text
        self.head, _, _ = text.rpartition(" ")  # without the last part, which may grow
        self.values: dict[Any, Any] = {}
        self._known: dict[Any, Any] = {}
        head = self.head
        for _ in range(_MOST_NEW):
            older = _ended_with(head)
            if older is not None:
                self._known = older.values
                cut = len(older.head) - len(head)
                self._gone = older.head.count(" ", 0, cut)
                self._first = head.partition(" ")[0] if cut else None
                self._new = text[len(head) + 1 :].split(" ")
                read = len(head) if older.is_ordinary else 0
                self.is_ordinary = _ORDINARY.fullmatch(text, read) is not None
                return
            head, _, _ = head.rpartition(" ")
        self.is_ordinary = _ORDINARY.fullmatch(text) is not None

    def read(self, read: Callable[[str], _Part]) -> list[_Part]:
        """Return what `read`, which must be cached, returns for each part."""
        values: list[_Part] | None = self.values.get(read)
        if values is None:
            known = self._known.get(read)
            if known is None:
                values = _read_parts(self.text.split(" "), read)
            else:
                values = known[self._gone : -1]
                if self._first is not None:  # it may be the end of a part
                    values[:1] = _read_parts([self._first], read)
                values += _read_parts(self._new, read)
            self.values[read] = values
        return values

    def take(self, owner: str) -> Any:
        """Take what the scorer `owner` kept of this text, or of the older one; None if nothing.

        What is taken may be changed, since no other thread can take it.
        """
        value = self.values.pop(owner, None)
        return self._known.pop(owner, None) if value is None else value

    def keep(self, owner: str, value: object) -> None:
        """Keep a value for `take`. owner: a name, since the scorer itself would be kept alive."""
        self.values[owner] = value


def _ended_with(head: str) -> Parts | None:
    """Return the shortest text that ended with `head`, apart from its last part.

    A much longer one is another window of the text, from which this one has not grown.
    """
    alike = _newest.get(head[-_TAIL:], ()) if head else ()
    shortest, most = None, len(head) + _MOST_GONE
    for parts in reversed(alike):
        if len(parts.head) <= most and parts.head.endswith(head):
            shortest, most = parts, len(parts.head) - 1  # of two equal ones, the newer
    return shortest


def parts_of(text: str) -> Parts:
    """Return the parts of a text, which are remembered unless the text is long."""
    return _remembered(text) if len(text) < _SHORT else Parts(text)


@lru_cache(maxsize=1024)
def _remembered(text: str) -> Parts:  # several scorers ask this of all texts of a call in turn
    parts = Parts(text)
    if parts.head:
        alike = _newest.setdefault(parts.head[-_TAIL:], [])
        alike.append(parts)
        del alike[:-_MOST_ALIKE]
        if len(_newest) > _MOST_ENDINGS:
            _newest.popitem(last=False)
    return parts


@lru_cache(maxsize=2**14)
def _without_masks(text: str) -> str:
    if _SIGNED.search(text):
        text = _TOKEN.sub(lambda match: _unmasked(match[0]), text)
    return _DOUBLED.sub(lambda match: _shortened(match[0]), text)


@lru_cache(maxsize=2**14)
def _unmasked(token: str) -> str:
    core = token
    while len(core) > 2 and core[0] == core[-1] and core[0] in "*_":
        core = core[1:-1]
    match = _MASKED.fullmatch(core.lower())
    if match is None or not _SHORTEST <= len(core) <= _LONGEST or core.isalpha():
        return token
    before, letters, after = match.groups()
    if len(set("*#_-").intersection(core)) > 1:
        return token
    if len(letters) == 1 and (before or letters != core[0] or after[:1] != "*"):
        return token
    word = _likeliest(_SIGN.sub("[a-z]", core.lower()), letters)
    return token.replace(core, word) if word else token


def _likeliest(pattern: str, letters: str) -> str:
    """Return the most frequent listed word that fits if the listed words are likely, else ""."""
    words = vocabulary()
    whole = re.compile(rf"(?<=\n){pattern}(?=\n)")
    listed = whole.findall(words.texts[0])
    if not listed:
        return ""
    likely = _RATIO * sum(words.listed[word] for word in listed)
    unlisted = sum(words.ordinary[word] for word in whole.findall(words.texts[1]))
    if len(letters) > 1:
        unlisted += _WHOLE * words.ordinary.get(letters, 0.0)
    return max(listed, key=words.listed.__getitem__) if likely >= unlisted else ""


@lru_cache(maxsize=2**14)
def _shortened(token: str) -> str:
    words, word = vocabulary(), token.lower()
    alike = words.stems.get(_RUN.sub(r"\1", word), [])
    if not alike or token.istitle() or word in words.listed or _is_common(word):
        return token
    pattern = re.compile(_RUN.sub(lambda run: f"{run[1]}{{1,{len(run[0])}}}", word))
    listed = [similar for similar in alike if pattern.fullmatch(similar)]
    ordinary = re.findall(rf"(?<=\n){pattern.pattern}(?=\n)", words.texts[1])
    if not listed or any(map(_is_common, ordinary)):
        return token
    return max(listed, key=words.listed.__getitem__)


def _is_common(word: str) -> bool:
    ordinary = vocabulary().ordinary
    return max(ordinary.get(word, 0.0), ordinary.get(word.removesuffix("s"), 0.0)) >= _COMMON


class ReadingScorer(PlainScorer, ABC):
    """Base of scorers that undo disguises.

    A text gets the highest score of its readings.
    """

    pace = "word"
    languages: tuple[str, ...] | None = None
    name: str
    _readings: Callable[[str], tuple[str, ...]] = staticmethod(readings)

    @abstractmethod
    def _read(self, texts: list[str]) -> Sequence[float] | Floats:
        """Return the score of each reading."""

    def score(self, texts: Sequence[str]) -> Floats:
        if len(texts) == 0:
            return np.zeros(0)
        rows = [self._readings(text) for text in texts]
        values = self._read([reading for row in rows for reading in row])
        if len(values) == len(texts):
            return np.asarray(values, dtype=np.float64)
        starts = np.cumsum([0, *map(len, rows[:-1])])
        return np.asarray(np.maximum.reduceat(values, starts), dtype=np.float64)

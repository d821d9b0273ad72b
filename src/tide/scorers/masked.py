"""Reads masked profanities, with signs in the place of letters, and lengthened ones.

A masked word fits every word of its length with the letters that it shows. It is read as the most
frequent listed word that fits, if the listed words that fit are together at least a tenth as
frequent as the other words that fit: people mask profanities, and hardly ever another word. (Of
the words with asterisks inside in labelled comments, nearly all are profane.) Otherwise it is read
as it is. So is a word that

- is an ordinary word if the signs before or after it are left out, as with footnotes and bullets:
  without them it counts as a word that fits, two hundredfold;
- shows only one letter, unless that is a small letter before asterisks;
- is masked by several of the signs `*`, `#`, `_` and `-`, or ends in `-`, which may be a dash.

A lengthened word repeats letters of a listed word. It is read as that word if neither it nor
another word that it lengthens is an ordinary word, and if it is not written as a name.

The words and their frequencies come from `models/write_vocabulary.py`.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple, TypeVar

from tide.core.errors import ScorerError, guarded
from tide.pocket import VOCABULARY

_Read = TypeVar("_Read")
_LEAST, _MOST = 4, 14  # lengths of words that are read
_COMMON = 10.0  # uses in a million words that make an unlisted word ordinary, not a misspelling
_RATIO = 10  # how much more frequently a listed word is masked than another word
_LONGEST_PART = 40  # characters of a part that is remembered
_SHORT = 2000  # characters of a text whose parts are remembered
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
        if len(word) >= _LEAST:
            stems.setdefault(_RUN.sub(r"\1", word), []).append(word)
    texts = "\n".join(["", *listed, ""]), "\n".join(["", *ordinary, ""])
    return Vocabulary(listed, ordinary, texts, stems)


def unmasked(text: str) -> str:
    """Return `text` with its masked and lengthened profanities in plain letters."""
    return " ".join(parts_of(text, _without_masks))


def parts_of(text: str, read: Callable[[str], _Read]) -> list[_Read]:
    """Read the parts of a text between spaces; `read` should remember, as a text grows by words."""
    parts, are_short = _split(text) if len(text) < _SHORT else _split.__wrapped__(text)
    if not are_short:
        read = getattr(read, "__wrapped__", read)  # what is remembered is short
    return list(map(read, parts))


@lru_cache(maxsize=64)
def _split(text: str) -> tuple[list[str], bool]:  # several scorers ask this of a text in turn
    parts = text.split(" ")
    return parts, max(map(len, parts)) <= _LONGEST_PART


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
    if match is None or not _LEAST <= len(core) <= _MOST or core.isalpha():
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
    if not alike or token.istitle() or word in words.listed or _is_ordinary(word):
        return token
    pattern = re.compile(_RUN.sub(lambda run: f"{run[1]}{{1,{len(run[0])}}}", word))
    listed = [similar for similar in alike if pattern.fullmatch(similar)]
    ordinary = re.findall(rf"(?<=\n){pattern.pattern}(?=\n)", words.texts[1])
    if not listed or any(map(_is_ordinary, ordinary)):
        return token
    return max(listed, key=words.listed.__getitem__)


def _is_ordinary(word: str) -> bool:
    ordinary = vocabulary().ordinary
    return max(ordinary.get(word, 0.0), ordinary.get(word.removesuffix("s"), 0.0)) >= _COMMON

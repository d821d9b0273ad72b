"""Word lists for languages that a scorer does not read.

The lists are LDNOOBW's (CC BY 4.0, see `pocket/LICENSE-word-lists`), without ordinary words; the
file holds hashes instead of the words. `models/make_word_lists.py` makes it.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import regex
from safetensors import safe_open

from tide.core.errors import ScorerError, guarded
from tide.core.text import UNSPACED
from tide.pocket import WORD_LISTS
from tide.scorers.base import (
    Attributed,
    Exchange,
    Scorer,
    ScorerWrapper,
    languages_of,
    screen_of,
)
from tide.scorers.disguises import is_ordinary, readings, readings_in_all_scripts
from tide.scorers.language import language_of
from tide.scorers.masked import parts_of

FIRST = "first"  # the tensor with the hashes of the first tokens of all terms
# A word, or a character of a script without spaces.
_TOKEN = regex.compile(rf"(?V1)[\p{{L}}\p{{M}}\p{{N}}--[{UNSPACED}]]+|(?=[{UNSPACED}])\X")
# The language of a listed word is that of so many letters or characters before it. The beginning of
# an answer is read together with its context.
_LEAST_LETTERS, _BEFORE = 40, 200


class _Lists(NamedTuple):
    """languages: of each term, by hash. first: hashes of the first tokens of all terms."""

    languages: dict[int, list[str]]
    first: frozenset[int]


_LONGEST = 12  # tokens of a term


def tokens_of(text: str) -> list[str]:
    """Return the words of a text, and the characters of scripts without spaces, in lower case."""
    return [token[0] for token in _TOKEN.finditer(_folded(text))]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", text).casefold())


def term_hash(words: Sequence[str]) -> int:
    """Hash a listed term; the files of the lists hold hashes instead of words."""
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


_token_hash = lru_cache(100_000)(lambda token: term_hash([token]))


@cache
def _lists() -> _Lists:
    languages: dict[int, list[str]] = {}
    with (
        guarded(ScorerError, f"word lists: cannot use {WORD_LISTS}"),
        safe_open(WORD_LISTS, framework="numpy") as file,
    ):
        for language in file.keys():  # noqa: SIM118
            if language != FIRST:
                for number in file.get_tensor(language).tolist():
                    languages.setdefault(number, []).append(language)
        return _Lists(languages, frozenset(file.get_tensor(FIRST).tolist()))


class WordLists(ScorerWrapper):
    """Scores a text 1.0 if it holds a listed word of its language, which `scorer` does not read.

    All other texts get the score of `scorer`, and so does English text that quotes such a word.
    The language is that of the text up to the word, so it does not change while the text grows.
    """

    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer)
        if (screen := screen_of(scorer)) is not None:
            self.screen = WordLists(screen)

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        scores = super().score_attributes(texts)
        listed = list(map(holds_listed_word, texts))
        if not any(listed):
            return scores
        return Attributed(np.where(listed, 1.0, scores.values), scores.attributes)


def with_word_lists(scorer: Scorer) -> Scorer:
    """Add the word lists to a scorer that reads only English."""
    return WordLists(scorer) if languages_of(scorer) == ("en",) else scorer


def holds_listed_word(exchange: Exchange) -> bool:
    """Whether the text holds a listed word of the language that stands before the word."""
    if not exchange.text:
        exchange = Exchange("", exchange.alone)
    if is_ordinary(exchange.text) and not any(parts_of(exchange.text, _begins_term)):
        return False
    read = readings if exchange.text.isascii() else readings_in_all_scripts
    for text in read(exchange.text):
        folded = _folded(text)
        for end, languages in _listed_terms(folded):
            if language_of(_sample(exchange.context, folded, end), sure=0.5) in languages:
                return True
    return False


@lru_cache(maxsize=2**14)
def _begins_term(part: str) -> bool:
    """Whether a listed term may begin in a part of a text that has no disguise but masks."""
    tokens = [token for reading in readings(part) for token in tokens_of(reading)]
    return not _lists().first.isdisjoint(map(_token_hash, tokens))


def _listed_terms(folded: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the end of each listed term of a folded text, and the languages that list it."""
    lists = _lists()
    tokens = [*_TOKEN.finditer(folded)]
    words = [token[0] for token in tokens]
    for start, word in enumerate(words):
        if _token_hash(word) not in lists.first:
            continue
        for length in range(1, _LONGEST + 1):
            languages = lists.languages.get(term_hash(words[start : start + length]))
            if languages and start + length <= len(words):
                yield tokens[start + length - 1].end(), languages


def _sample(context: Any, folded: str, end: int) -> str:
    """Return the text that decides the language of a word which ends at `end`."""
    before = folded[max(0, end - _BEFORE) : end]
    if sum(map(str.isalpha, before)) >= _LEAST_LETTERS:
        return before
    beginning = folded[: max(end, _LEAST_LETTERS)]
    if not isinstance(context, str):
        context = "\n".join(message.content for message in context.messages[-2:])
    return f"{context[-_BEFORE:]}\n{beginning}" if context else beginning

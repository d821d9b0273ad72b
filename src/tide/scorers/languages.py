"""The language of a text, and what is done where a scorer does not read it.

`WordLists` scores such a text by the lists of LDNOOBW (CC BY 4.0, see
`pocket/LICENSE-word-lists`), without ordinary words; the file holds hashes instead of the words,
and `models/make_word_lists.py` makes it.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import regex
from safetensors import safe_open

from tide.core.errors import ScorerError, guarded
from tide.core.text import UNSPACED
from tide.pocket import WORD_LISTS
from tide.scorers.base import Attributed, Exchange, Scorer, ScorerWrapper, adapted
from tide.scorers.disguises import (
    is_latin,
    is_ordinary,
    parts_of,
    readings,
    readings_in_all_scripts,
)

# Minimum number of letters for deciding the script.
_LEAST_OTHER = 8
_MARKS = ".,:;!?()\"'\u201c\u201d\u2018\u2019\u00ab\u00bb\u00bf\u00a1"
# At least this share of most English texts' words are among these, so they need no detection.
_ENGLISH_SHARE = 0.15
_ENGLISH = (
    "the and that to it's it she they you his her their your my i'm with this these those but not "
    "who what if from by have had been would could will about when which there just like him them "
    "are get don't because than out up how"
)
_ENGLISH_WORDS = frozenset(_ENGLISH.split())
# A text of fewer Latin letters may be in any language.
_LEAST_LATIN = 20
_MOST_CHARACTERS = 1000  # the end of a text decides its language


def language_of(text: str, sure: float = 0.8) -> str:
    """Return the ISO 639 code of a text's language; "" if unclear, "und" for an unknown script.

    A call takes up to a millisecond, and the first ones a second.

    sure: minimum probability of a language other than English.
    """
    text = text[-_MOST_CHARACTERS:]
    letters = [c for c in text if c.isalpha()]
    is_foreign = False  # whether most letters are not Latin
    if not text.isascii() and len(letters) >= _LEAST_OTHER:
        is_foreign = 2 * sum(not is_latin(c) for c in letters) > len(letters)
    if not is_foreign:
        words = [word.strip(_MARKS) for word in text.lower().split()]
        if len(letters) < _LEAST_LATIN:
            return ""
        if sum(word in _ENGLISH_WORDS for word in words) >= _ENGLISH_SHARE * len(words):
            return "en"
    language, probability = load_identifier().classify(text)
    if probability >= sure and language != "zxx":  # numbers, code and the like
        return {"nn": "no"}.get(language, str(language))
    return "und" if is_foreign else ""


def is_read(languages: Collection[str] | None, exchange: Exchange) -> bool:
    """Whether a scorer of these languages reads a text; one of an unclear language is read."""
    if languages is None:
        return True
    return displayed_language(exchange.alone) in ("", *languages)


def displayed_language(text: str) -> str:
    """Return the language of a text as a person sees it; see `language_of`."""
    return language_of(readings(text)[0])


@cache
def load_identifier() -> Any:
    """Load the language detection, which takes a second; a server does so with its scorers."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415  (slow import)

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


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
_SHORT = 500  # characters of words that are remembered


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
        if self._scorer.screen is not None:
            self.screen = WordLists(self._scorer.screen)

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        scores = self._scorer.score_attributes(texts)
        listed = list(map(holds_listed_word, texts))
        if not any(listed):
            return scores
        # The attributes of which the score is the highest may have limits of their own.
        attributes = {
            name: np.where(listed, 1.0, column) if name in self.highest_of else column
            for name, column in scores.attributes.items()
        }
        return Attributed(np.where(listed, 1.0, scores.values), attributes)


def with_word_lists(scorer: Scorer) -> ScorerWrapper:
    """Adapt a scorer, and add the word lists to one that reads only English."""
    complete = adapted(scorer)
    return WordLists(complete) if complete.languages == ("en",) else complete


def holds_listed_word(exchange: Exchange) -> bool:
    """Whether the text holds a listed word of the language that stands before the word."""
    if not exchange.text:
        exchange = Exchange("", exchange.alone)
    if is_ordinary(exchange.text) and not _holds_term_between_spaces(exchange.text):
        return False
    read = readings if exchange.text.isascii() else readings_in_all_scripts
    for text in read(exchange.text):
        folded = _folded(text)
        for end, languages in _listed_terms(folded):
            if language_of(_sample(exchange.context, folded, end), sure=0.5) in languages:
                return True
    return False


def _holds_term_between_spaces(text: str) -> bool:
    """Whether a text that has no disguise but masks holds a listed term of any language.

    While the text grows by words, only the new words are read, and the words after the beginning of
    a term.
    """
    begins = parts_of(text).read(_begins_term)
    if not any(begins):
        return False
    parts = text.split(" ")
    with_token = [number for number, part in enumerate(parts) if any(map(str.isalnum, part))]
    for number, start in enumerate(with_token):
        if begins[start]:
            last = with_token[number : number + _LONGEST][-1]
            words = " ".join(parts[start : last + 1])
            holds = _holds_term if len(words) <= _SHORT else _holds_term.__wrapped__
            if holds(words):
                return True
    return False


@lru_cache(maxsize=2**12)
def _holds_term(text: str) -> bool:
    return any(any(_listed_terms(_folded(reading))) for reading in readings(text))


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

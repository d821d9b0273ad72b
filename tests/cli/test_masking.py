from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from tide.cli.masking import MARK, Marker, Masker
from tide.core.errors import ScorerUnavailableError
from tide.core.results import mask
from tide.scorers.base import PlainScorer


class Words(PlainScorer):
    """Toxic are the words that hold "rude"; two of them and more are worse than one."""

    name = "words"

    def score(self, texts: Sequence[str]) -> list[float]:  # type: ignore[override]
        return [min(1.0, 0.4 * text.lower().count("rude")) for text in texts]


class Away(PlainScorer):
    name = "away"

    def score(self, texts: Sequence[str]) -> list[float]:  # type: ignore[override]
        raise ScorerUnavailableError("away")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a fine day, all in all", "a fine day, all in all"),
        ("so RUDE a man,\n rude!", "so R*** a man,\n r***!"),
        ('He said "rude-ly" and left', 'He said "r***-**" and left'),
        ("", ""),
    ],
)
def test_words_that_carry_it_are_masked(text: str, expected: str) -> None:
    assert Masker(Words())(text) == expected


class Spelt(Words):
    """Finds a word that is spelt with spaces, too, from its first three letters on."""

    name = "spelt"

    def score(self, texts: Sequence[str]) -> list[float]:  # type: ignore[override]
        return super().score(re.sub(r"r[ .-]*u[ .-]*d", "rude", text) for text in texts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so r u d e he is", "so r * * * he is"),
        ("so r - u - d - e he is", "so r - * - * - * he is"),
        ("so r.u.d.e he is", "so r.*.*.* he is"),
        ("r u d e", "r * * *"),
    ],
)
def test_a_word_with_spaces_between_its_letters_is_masked(text: str, expected: str) -> None:
    assert Masker(Spelt())(text) == expected


def test_a_text_masked_as_a_whole_shows_the_first_letter_of_a_spelt_word_alone() -> None:
    assert mask("so r u d e, I - a.b") == "s* r * * *, * - a.*"
    assert mask("a r***, x y") == "a r***, x *"  # it was masked before, and is not one letter


class Ends(PlainScorer):
    """Toxic is "rude"; a text that ends with a question looks a little suspicious."""

    name = "ends"

    def score(self, texts: Sequence[str]) -> list[float]:  # type: ignore[override]
        return [0.9 if "rude" in text else 0.3 if text.endswith("?") else 0.0 for text in texts]


def test_words_that_need_no_mask_are_shown() -> None:
    # "so?" is found first, and not needed once "rude" is.
    assert Masker(Ends())("one so? the rude man") == "one so? the r*** man"


def test_what_a_scorer_accepts_is_shown_in_prompts() -> None:
    assert Masker(Ends())("is he so?") == "is he s*?"
    assert Masker.of_prompts(Ends())("is he so?") == "is he so?"
    assert Masker.of_prompts(Ends())("is he rude?") == "is he r***?"


def test_what_cannot_be_scored_is_masked_as_a_whole() -> None:
    assert Masker(Away())("so rude a man") == "s* r*** a m**"


def marked(text: Text) -> list[str]:
    return [text.plain[span.start : span.end] for span in text.spans if span.style == MARK]


def test_words_that_carry_it_are_marked() -> None:
    text = Marker(Words())("so RUDE a man,\n\x1b[2J rude! Good day")
    assert text.plain == "so RUDE a man, \\x1b[2J rude! Good day"
    assert marked(text) == ["RUDE", "rude!"]
    assert not marked(Marker(Words())("a fine day"))
    assert Marker(Words())("").plain == ""


def test_marking_ends_where_it_costs_too_much_or_fails() -> None:
    assert Marker(Away())("so rude a man") == Text("so rude a man")
    slow = Marker(Words(), seconds=0.0)
    assert not marked(slow("so rude a man"))
    once = Marker(Words(), seconds=1e-9)
    assert marked(once("so rude a man"))
    assert not marked(once("so rude a man"))


@given(st.lists(st.sampled_from(["rude", "Rude,", "kind", "so", "day."]), max_size=30))
def test_none_is_left(words: list[str]) -> None:
    masked = Masker(Words())(" ".join(words))
    assert "rude" not in masked.lower()
    assert len(masked) == len(" ".join(words))
    if sum("rude" in word.lower() for word in words) <= 11:
        assert masked.count("kind") == words.count("kind")

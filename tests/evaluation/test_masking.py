from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from tide.core.errors import ScorerUnavailableError
from tide.core.results import mask
from tide.evaluation.masking import MARK, Marker, Masker
from tide.scorers import Scorer
from tide.scorers.base import PlainScorer
from tide.scorers.words import bundled_terms, listed_hashes, term_hashes


class Words(PlainScorer):
    """Calls the texts with "rude" toxic."""

    name = "words"

    def score(self, texts: Sequence[str]) -> list[float]:  # type: ignore[override]
        return [0.9 if "rude" in text.lower() else 0.1 for text in texts]


class Away(PlainScorer):
    name = "away"

    def score(self, texts: Sequence[str]) -> list[float]:  # type: ignore[override]
        raise ScorerUnavailableError("away")


class Spelt(Words):
    """Also recognises a word that is spelt with spaces, from its first three letters on."""

    name = "spelt"

    def score(self, texts: Sequence[str]) -> list[float]:  # type: ignore[override]
        return super().score(re.sub(r"r[ .-]*u[ .-]*d", "rude", text) for text in texts)  # type: ignore[arg-type]


class Biased(Words):
    """Calls words about people toxic, and also a text that ends with "dog"."""

    languages: tuple[str, ...] | None = ("en",)

    name = "pocket@biased"

    def score(self, texts: Sequence[str]) -> list[float]:  # type: ignore[override]
        people = re.compile("young|white|die|rude", re.IGNORECASE)
        return [
            0.9 if people.search(text) else 0.6 if text.endswith(" dog") else 0.0 for text in texts
        ]


@pytest.mark.parametrize(
    ("scorer", "text", "expected"),
    [
        (Words, "a fine day, all in all", "a fine day, all in all"),
        (Words, "so RUDE a man,\n rude!", "so R*** a man,\n r***!"),
        (Words, 'He said "rude-ly" and left', 'He said "r***-**" and left'),
        (Words, "", ""),
        (Away, "so rude a man", "so rude a man"),
        (Spelt, "so r u d e he is", "so r * * * he is"),
        (Spelt, "so r - u - d - e he is", "so r - * - * - * he is"),
        (Spelt, "so r.u.d.e he is", "so r.*.*.* he is"),
        (Spelt, "I r u n", "I r u n"),
        (Spelt, "a - b rude", "a - b r***"),
        (Biased, "a young white man, rude", "a young white man, r***"),
        (Biased, "he has a dog", "he has a dog"),  # none of its words is toxic alone
        (Biased, "die Frau ist nicht alt", "die Frau ist nicht alt"),
        (Biased, "<b>rude</b> <i>so</i>", "<b>r***</b> <i>so</i>"),
    ],
)
def test_words_that_carry_it_are_masked(
    scorer: Callable[[], Scorer], text: str, expected: str
) -> None:
    assert Masker(scorer())(text) == expected


def test_a_text_masked_as_a_whole_shows_the_first_letter_of_a_spelt_word_alone() -> None:
    assert mask("so r u d e, I - a.b") == "s* r * * *, * - a.*"
    assert mask("a r***, x y") == "a r***, x *"  # already masked, and more than one letter


def test_a_scorer_of_many_languages_is_asked_of_all_of_them() -> None:
    many = Biased()
    many.languages = None
    assert Masker(many)("er ist nicht der, rude") == "er ist nicht der, r***"


def test_listed_words_are_masked_whatever_the_scorer_says(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = {"mild", "plain vanilla"}
    hashes = frozenset(int(one) for one in listed_hashes(terms))
    monkeypatch.setattr("tide.scorers.words.bundled_terms", lambda: hashes)
    text = "so MILD, such plain\n vanilla; vanilla, plain, m i l d"
    masked = "so M***, such p****\n v******; vanilla, plain, m * * *"
    assert Masker(Words())(text) == masked
    assert Masker(Away())(text) == masked
    assert marked(Marker(Away())(text))[0] == "MILD,"


def test_the_bundled_list_has_no_plain_words() -> None:
    assert len(bundled_terms()) > 1000
    words = ["young", "white", "die", "kind", "window"]
    assert not any(term_hashes(word) & bundled_terms() for word in words)
    assert all(Masker(Away())(word) == word for word in words)


def marked(text: Text) -> list[str]:
    return [text.plain[span.start : span.end] for span in text.spans if span.style == MARK]


def test_words_that_carry_it_are_marked() -> None:
    text = Marker(Words())("so RUDE a man,\n\x1b[2J rude! Good day")
    assert text.plain == "so RUDE a man, \\x1b[2J rude! Good day"
    assert sorted(marked(text)) == ["RUDE", "rude!"]
    assert not marked(Marker(Words())("a fine day"))
    assert Marker(Words())("").plain == ""


def test_marking_ends_where_it_costs_too_much_or_fails() -> None:
    assert Marker(Away())("so rude a man") == Text("so rude a man")
    slow = Marker(Words(), seconds=0.0)
    assert not marked(slow("so rude a man"))
    once = Marker(Words(), seconds=1e-9)
    assert marked(once("so rude a man"))
    assert not marked(once("so rude a man"))


@given(st.lists(st.sampled_from(["rude", "Rude,", "kind", "so", "day."]), max_size=60))
def test_none_is_left_and_no_other_word_is_masked(words: list[str]) -> None:
    masked = Masker(Words())(" ".join(words))
    assert "rude" not in masked.lower()
    assert masked.count("kind") == words.count("kind")
    assert len(masked) == len(" ".join(words))


def test_a_text_of_many_toxic_words_ends_after_some() -> None:
    masked = Masker(Words())(" ".join(f"rude{number}" for number in range(40)))
    assert masked.count("rude") == 40 - 12

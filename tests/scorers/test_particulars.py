from __future__ import annotations

import pytest

from tide.scorers.words import ParticularsScorer

SOURCES = ["Anna met Peter O'Neill in New York at 5:30.", "the weather: 3.5 degrees, two coats"]


@pytest.mark.parametrize(
    "text",
    [
        "Anna's coat",
        "with Peter O'Neill's, in York, at 5:30!",
        "I think I'm fine, and I've met Anna.",
        'You were late. (They\'re fine: "The weather is.")',
        "- The weather",
        "Weather of 3.5 degrees. Two coats, one day.",
        "nothing new of anybody",
        "don't",
        "",
    ],
)
def test_what_the_sources_hold_is_not_new(text: str) -> None:
    assert ParticularsScorer(SOURCES).score([text]).tolist() == [0.0]


@pytest.mark.parametrize(
    "text",
    [
        "and Maria",
        "Maria is fine",
        "fine. Maria",
        "with anna and ANNA",  # capitals that stand nowhere
        "met O'Hara",
        "at 5:31",
        "at 5",  # of 5:30
        "3.50 degrees",
        "Three coats",
        "a dozen coats",
        "\u0663 coats",
        "\u00bd of it",
        "see acme.com",
        "ask me@example",
        "\u4ed6 is fine",
        "iPhone",
        "The anna The",
    ],
)
def test_what_they_do_not_hold_is_new(text: str) -> None:
    assert ParticularsScorer(SOURCES).score(["fine", text]).tolist() == [0.0, 1.0]
    assert ParticularsScorer([*SOURCES, text]).score([text]).tolist() == [0.0]


def test_without_sources_a_text_may_hold_neither() -> None:
    assert ParticularsScorer([]).score(["It is fine.", "It is 5."]).tolist() == [0.0, 1.0]

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.probes import (
    DISGUISES,
    PEOPLE,
    asterisks,
    leetspeak,
    neutral_sentences,
    spacing,
    with_article,
)


def test_disguises() -> None:
    assert re.fullmatch(r"My p3[0o]p13 4r3 h3r3", leetspeak("My people are here"))
    assert leetspeak("able", 3)[0] == "4"
    assert set(leetspeak("a" * 50)) == {"4", "@"}
    for seed in range(20):
        hidden = asterisks("an old bridge", seed)
        assert re.fullmatch(r"an o\*d b[a-z*]{4}e", hidden)
        assert 2 <= hidden.count("*") <= 3
    made = {spacing("my old cat", seed) for seed in range(50)}
    assert made == {"my o l d   c a t  ", "my o.l.d c.a.t", "my o-l-d c-a-t", "my o_l_d c_a_t"}


@pytest.mark.parametrize("name", sorted(DISGUISES))
@given(st.text(max_size=40), st.integers(0, 5))
def test_short_words_and_what_is_no_word_stay(name: str, text: str, seed: int) -> None:
    made = DISGUISES[name](text, seed)
    assert made == DISGUISES[name](text, seed)
    if not re.search("[A-Za-z]{3}", text):
        assert made == text


def test_neutral_sentences_are_about_everybody() -> None:
    sentences = neutral_sentences()
    assert len(sentences) == len(set(sentences)) == 8 * len(PEOPLE)
    assert with_article("older person") == "an older person"
    assert with_article("woman") == "a woman"
    assert all(sum(person in s for s in sentences) >= 8 for person in PEOPLE)

"""Masked and lengthened profanities are read; harmless text with signs stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tide.scorers import load_scorer
from tide.scorers.disguises import unmasked, vocabulary

ROOT = Path(__file__).parents[2]
LISTED = vocabulary().listed
# The most frequent listed words; a test holds none of them in writing.
FREQUENT = sorted((word for word in LISTED if len(word) > 3), key=LISTED.__getitem__)[-30:]


@pytest.mark.parametrize("sign", "*#@$_-7")
def test_a_word_with_a_masked_letter_is_read(sign: str) -> None:
    read = [unmasked(f"what a {word[:2]}{sign}{word[3:]} it is") for word in FREQUENT]
    assert sum(f"what a {word} it is" in read for word in FREQUENT) >= 26
    assert sum(text.split()[2] in LISTED for text in read) >= 29


def test_a_word_with_several_masked_letters_is_read() -> None:
    long = [word for word in FREQUENT if len(word) > 5]
    assert len(long) > 5
    for word in long:
        assert unmasked(f"You {word[0]}{'*' * (len(word) - 3)}{word[-2:]}!").split()[1] != word
        assert unmasked(f"{word[:2]}***{word[5:]}") in LISTED


def test_a_word_with_a_masked_beginning_or_end_is_read() -> None:
    longer = [word for word in FREQUENT if len(word) > 4]
    ends = [unmasked(f"**{word[:-1]}***") for word in longer]
    begins = [unmasked(f"*{word[1:]}") for word in longer]
    assert sum(read.strip("*") in LISTED for read in ends) >= 0.9 * len(longer)
    assert sum(read in LISTED for read in begins) >= 0.9 * len(longer)
    assert unmasked(f"what the {FREQUENT[-2][0]}***") != f"what the {FREQUENT[-2][0]}***"


def test_a_word_with_a_repeated_letter_is_read() -> None:
    for word in FREQUENT[::3]:
        for index, letter in enumerate(word):
            read = unmasked(f"the {word[:index]}{letter * 2}{word[index:]}.")
            assert read.removeprefix("the ").removesuffix(".") in LISTED


@pytest.mark.parametrize(
    "text",
    [
        "The word** has a footnote, and the other word* too.",
        "A **bold** and an *italic* word, __both__ and ***more***.",
        "rm *.txt foo*.py src/**/*.c",
        "C*, A* and B**** are grades; C# and F# are not.",
        "y = a*b*c + f_k**2 - x_y_z",
        "def f(*args, **kwargs): return [*rows, *columns]",
        "My password is p*******, my name is J***.",
        "I l*ve this w*rd and the b*ok.",
        "A t-shirt, an x-ray and a re-do; item-1 and no_it.",
        "Bit** is short, and pass* is a glob.",
        "#hit @hits $hit",
        "n-----\n-----",
        "Kung fu--the art.",
        "The bass, the sheet, the hoop and the coool book. Heeello, Mississippi!",
        "Shiites and shiites; Petter and Bonner.",
        "0xdeadbeef 4f3c 2f-c4 a55",
    ],
)
def test_harmless_text_with_signs_is_read_as_it_is(text: str) -> None:
    assert unmasked(text) == text


@pytest.mark.parametrize("name", ["pocket", "sentence", "profanity-check", "lexicon"])
def test_every_bundled_scorer_reads_masked_words(name: str) -> None:
    scorer = load_scorer(name)
    plain = scorer.score(FREQUENT)
    for hidden in (
        [f"{word[0]}*{word[2:]}" for word in FREQUENT],
        [f"{word[0]}{word[1] * 2}{word[2:]}" for word in FREQUENT],
    ):
        assert (scorer.score(hidden) >= plain - 1e-6).mean() >= 0.8

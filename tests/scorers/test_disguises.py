"""Readings of texts that hide or mask their words, and the bundled scorers."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.probes import TRICKS

from tide.scorers import load_scorer
from tide.scorers.disguises import _displayed, is_ordinary, readings, unmasked, vocabulary
from tide.scorers.words import NeverScorer

INSULT = "you are a stupid idiot"
ANY = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
# Parts of disguises, of which a test text holds many.
_HIDDEN = (
    *("&", "amp;", "#38;", "#x69;", "&#105", ";", "\b", "\x7f", "\u202e", "\u202c", "\u202d"),
    *("\u0456", "\u043a", "\u3164", "\u0301", "\U0001d422", "\u24d8", "\u200d", "\n", " i", "d"),
)
PARTS = st.lists(st.sampled_from(_HIDDEN), max_size=30).map("".join)
RUSSIAN = (
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430? "
    "\u041e\u043d \u0445\u043e\u0440\u043e\u0448\u043e \u0441\u043f\u0430\u043b, \u0438 "
    "\u043a\u043e\u0442 \u0442\u043e\u0436\u0435 \u0441\u043f\u0430\u043b."
)
ORDINARY = (
    "The weather is fine today.",
    "A na\u00efve caf\u00e9 owner \u2013 \u201cJos\u00e9\u201d \u2014 paid \u20ac5",
    "Fish & chips, R&D, AT&T; x < y && y > z, a@b.org",
    "Gr\u00fc\u00dfe aus K\u00f6ln, \u0141\u00f3d\u017a i Krak\u00f3w",
    RUSSIAN,
    "\u0393\u03b5\u03b9\u03b1 \u03c3\u03bf\u03c5, \u03c4\u03b9;",
    "\uc548\ub155\ud558\uc138\uc694 \ubc18\uac11\uc2b5\ub2c8\ub2e4",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d",
)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_read_as_it_is(text: str) -> None:
    assert readings(text) == (text,)


def test_characters_of_ordinary_text_are_read_as_they_are() -> None:
    """Ordinary text is not read again as it grows, so nothing in it may be a disguise."""
    ordinary = [chr(code) for code in range(0x20000) if is_ordinary(chr(code))]
    assert {"\u00e9", "\u2026", "\U0001f600"} < set(ordinary)
    for character in ordinary:
        text = f"a{character}b {character}{character}"
        assert _displayed(text, look_alikes=True) == [text]
        apart = unicodedata.normalize("NFKD", character)
        assert character.isspace() or not any(map(str.isspace, apart))


@given(st.one_of(ANY, PARTS))
def test_there_are_one_to_four_readings_which_hide_nothing(text: str) -> None:
    read = readings(text)
    assert 1 <= len(read) <= 4
    for reading in read:
        assert readings(reading) == (reading,)
        assert not set("\b\x7f\u202e\u200b\u3164\u00ad") & set(reading)


@given(st.text(st.characters(min_codepoint=0x400, max_codepoint=0x44F, categories=("L",))))
def test_no_russian_word_of_a_russian_text_becomes_another(word: str) -> None:
    assert readings(f"{RUSSIAN} {word} {RUSSIAN}") == (f"{RUSSIAN} {word} {RUSSIAN}",)


@pytest.mark.parametrize("name", TRICKS)
def test_a_trick_is_read_as_the_text(name: str) -> None:
    for text in (TRICKS[name](INSULT, seed) for seed in range(5)):
        assert text != INSULT
        words = {word for reading in readings(text) for word in reading.replace(".", " ").split()}
        assert {word.lstrip("@").removeprefix("http://") for word in words} >= set(INSULT.split())


def test_the_worse_reading_counts() -> None:
    texts = ["good", "ba\bd", "bx\bad", "\u202edab", "\u202ebad", "x"]
    assert NeverScorer(["bad"]).score(texts).tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_much_hidden_in_one_text_takes_no_long_time() -> None:
    many = ("&amp;", "&#38;amp;", "\u202e", "a\b", "\u0456a", "a\u0301", "\u0301\u0316", "&#0")
    for part in many:
        assert len(readings(part * 20_000)) <= 2
    for name in ("pocket", "sentence"):  # they normalize readings
        load_scorer(name).score(["a" + "\u0301\u0316" * 20_000, "\u3042" + "\u3099\u0316" * 20_000])


@pytest.mark.parametrize("blank", "\x85\u115f\u1160\u2800\u3164\uffa0\u0600\u06dd\ufffb\U000110bd")
def test_a_blank_hides_neither_a_word_nor_the_words_beside_it(blank: str) -> None:
    texts = [f"Acme{blank}is{blank}bad", f"A{blank}cme is bad"]
    assert NeverScorer(["Acme"]).score(texts).tolist() == [1.0, 1.0]
    assert INSULT in readings(blank.join(INSULT.split()))


@pytest.mark.parametrize("zeros", [1, 8, 5000])
def test_entities_may_have_leading_zeros(zeros: int) -> None:
    text = "".join(f"&#{'0' * zeros}{ord(c)};&#x{'0' * zeros}{ord(c):x};" for c in "Bad")
    assert readings(text) == ("BBaadd",)


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


def test_harmless_text_with_signs_is_read_as_it_is() -> None:
    for text in (
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
    ):
        assert unmasked(text) == text


@pytest.mark.parametrize("name", ["pocket", "sentence", "profanity-check", "lexicon"])
def test_every_bundled_scorer_reads_tricks_and_masked_words(name: str) -> None:
    scorer = load_scorer(name)
    plain = scorer.score([INSULT])[0]
    for trick in TRICKS.values():
        hidden = scorer.score([trick(INSULT, seed) for seed in range(5)])
        assert hidden.min() >= min(plain, 0.5) - 1e-9
    scores = scorer.score(FREQUENT)
    masked = [f"{word[0]}*{word[2:]}" for word in FREQUENT]
    lengthened = [f"{word[0]}{word[1] * 2}{word[2:]}" for word in FREQUENT]
    for disguised in (masked, lengthened):
        assert (scorer.score(disguised) >= scores - 1e-6).mean() >= 0.8

"""The bundled pocket scorer: properties for any text, and agreement with Perspective."""

from __future__ import annotations

import gc
import itertools
import weakref
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer

from tests.generated import examples
from tide.pocket import PEOPLE as PEOPLE_FILE
from tide.scorers import disguises, pocket
from tide.scorers.disguises import unmasked
from tide.scorers.pocket import N_FEATURES, PocketScorer, calibrated, columns, normalize, words_of

FRIENDLY = "Thank you so much for your help, I hope you have a lovely day with your family."
PEOPLE = set(PEOPLE_FILE.read_text("ascii").split())
TEXTS = [FRIENDLY, "", "and then she opened the door", "THE END!!!", "\u4f60\u597d", "a" * 5000]


@pytest.fixture(scope="module")
def scorer() -> PocketScorer:
    return PocketScorer()


@pytest.fixture(scope="module")
def forgetful() -> PocketScorer:
    return PocketScorer()


def vectorizer() -> HashingVectorizer:
    """scikit-learn's vectorizer of these features: rows of 0 and 1, scaled to length 1."""

    def ngrams(text: str) -> list[str]:
        words = [*itertools.chain.from_iterable(words_of(text))]
        features = [f"word {word}" for word in words]
        for n in (3, 4, 5):
            features += [f"<{w}>"[i : i + n] for w in words for i in range(len(w) + 3 - n)]
        pairs = itertools.pairwise(words)
        return [*features, *(" ".join(pair) for pair in pairs if "people" not in pair)]

    return HashingVectorizer(analyzer=ngrams, n_features=N_FEATURES, binary=True, dtype=np.float64)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_columns_are_those_of_the_vectorizer(text: str) -> None:
    """Training uses scikit-learn's vectorizer. Columns may collide."""
    expected = np.unique(vectorizer().transform([text]).indices)
    np.testing.assert_array_equal(columns(text), expected)


def test_all_words_that_name_people_have_one_score(scorer: PocketScorer) -> None:
    words = [word for word in PEOPLE if not word.endswith(("s", "y"))]  # "ladies", not "ladys"
    assert len(words) > 300
    for sentence, low, high in (
        ("The song is about {}s from this street.", 0.0, 0.05),
        ("The street party was paid for by {}s.", 0.0, 0.05),
        ("You {}s are pathetic, you stupid idiot.", 0.5, 1.0),
        ("He is {}.", 0.0, 0.05),
    ):
        scores = scorer.score([sentence.format(word) for word in words])
        assert scores.min() == scores.max()
        assert low <= scores[0] <= high
    together = ["A young gay Muslim woman reads.", "A young man reads."]
    assert len(set(scorer.score(together))) == 1


def test_groups_that_are_not_listed_score_alike(scorer: PocketScorer) -> None:
    groups = ("Druze", "Basque", "Breton", "Catalan", "Tatar", "Xhosa", "Ainu", "Copt", "Sufi")
    assert PEOPLE.isdisjoint(map(str.lower, groups))
    for sentence in ("Our neighbour is a {} and a good cook.", "There is a {} song about the sea."):
        scores = scorer.score([sentence.format(group) for group in groups])
        assert np.abs(scores[:, None] - scores[None, :]).mean() <= 0.01


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Hello WORLD", "hello world"),
        ("sooooo", "soo"),
        ("caf\u00e9", "cafe"),
        ("it\u2019s", "it's"),
        ("@you see https://example.org/a?b&c", " you see  example.org/a?b&c"),
        ("www.you.org, http://www.you and a.www.you", " you.org,  you and a. you"),
        ("sp4m and $p@m", "spam and spam"),
        ("s p a m, s.p.a.m and s_p-a m", "spam, spam and s_p-a m"),
        ("at 3pm on the 21st, $100k!!!", "at 3pm on the 21st, $100k!!"),
        ("wow! a b c? U.S.A.", "wow! abc? usa."),
        ("1234 and 5", "1234 and 5"),
    ],
)
def test_normalise(text: str, normal: str) -> None:
    assert normalize(text) == normal


@pytest.mark.parametrize(
    "name", ["Scunthorpe", "Dickens", "Cockburn", "Uranus", "Fukushima", "Hitchcock", "Nigel"]
)
def test_names_that_hold_an_offensive_word_score_as_other_names(
    name: str, scorer: PocketScorer
) -> None:
    for frame in ("He lives in {}.", "{} is nice.", "I saw {}'s house yesterday.", "THE {}S"):
        assert scorer.score([frame.format(name)])[0] < 0.1
    assert scorer.score([f"In {name}"]) == scorer.score(["In Smith"])
    assert scorer.score([f"{name} is a stupid idiot"])[0] >= 0.5


@pytest.mark.parametrize("number", ["45", "455", "45s", "1,455", "4551"])
def test_numbers_score_as_other_numbers(number: str, scorer: PocketScorer) -> None:
    similar = number.translate(str.maketrans("45", "78"))
    for frame in ("{} is here", "Take bus {} to the station.", "It lasted {} seconds."):
        scores = scorer.score([frame.format(number), frame.format(similar)])
        assert scores[0] == scores[1] < 0.1


def test_a_calibration_keeps_the_order_and_the_distances_beyond_its_knots() -> None:
    knots = [-2.0, 0.0, 1.0], [-3.0, -1.0, 4.0]
    logits = [-10.0, -2.0, -1.0, 0.0, 0.5, 1.0, 6.0]
    expected = [-11.0, -3.0, -2.0, -1.0, 1.5, 4.0, 9.0]
    assert [calibrated(logit, *knots) for logit in logits] == expected


_WORDS = "the cat a b c d. (a b) I x-y @x www.a idi0t d*mn sooo women people gay ! !! 5 1st"
UPPER = lru_cache(maxsize=100)(str.upper)
GROWING = [*_WORDS.split(), "don\u2019t", "\u00e9", "\u2026", "\n", ""]


@examples(30, 2000)
@given(st.lists(st.tuples(st.integers(0, 6), st.lists(st.sampled_from(GROWING)))))
def test_scores_of_a_growing_text_are_those_from_scratch(
    scorer: PocketScorer, forgetful: PocketScorer, steps: list[tuple[int, list[str]]]
) -> None:
    """Each step takes words from the end, as a rewind does, and adds others."""
    words: list[str] = []
    for rewound, more in steps:
        words = [*words[: max(0, len(words) - rewound)], *more]
        for length in (5, 15, 100):
            text = " ".join(words[-length:])
            assert scorer.score([text]) == forgetful.score([text])
            for part in (text, text[1:]):  # a window may begin within a word
                parts = disguises.parts_of(part)
                assert parts.read(UPPER) == part.upper().split(" ")
                assert parts.is_ordinary == (disguises._ORDINARY.fullmatch(part) is not None)
            disguises.parts_of(text).take(forgetful)  # what it keeps of the text


@examples(30, 2000)
@given(st.lists(st.sampled_from(GROWING)))
def test_words_between_spaces_are_those_of_the_text(parts: list[str]) -> None:
    text = " ".join(parts)
    whole = list(pocket._words_of_part.__wrapped__(text))
    assert [*itertools.chain.from_iterable(words_of(text))] == whole
    assert unmasked(text) == disguises._without_masks.__wrapped__(text)


@pytest.mark.parametrize("arrive", ["in turn", "together"])
def test_growing_text_is_read_only_where_it_is_new(arrive: str) -> None:
    read: list[str] = []

    @lru_cache(maxsize=1)
    def reading(part: str) -> str:
        read.append(part)
        return part

    words = [f"{arrive} {number}".replace(" ", "") for number in range(300)]
    texts = [" ".join(words[max(0, end - 100) : end]) for end in range(2, 300)]
    parts = map(disguises.parts_of, texts)
    for number, of_text in enumerate(parts if arrive == "in turn" else [*parts]):
        of_text.read(reading)
        assert of_text.take("scorer") == ("sum" if number else None)
        of_text.keep("scorer", "sum")
    assert len(read) < 4 * 300


def test_growing_text_keeps_no_scorer_alive() -> None:
    scorer = PocketScorer()
    scorer.score(["a text that nobody else reads"])
    reference = weakref.ref(scorer)
    del scorer
    gc.collect()
    assert reference() is None

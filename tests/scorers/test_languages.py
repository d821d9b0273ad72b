"""The language of a text; word lists, here of mild words."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes import FakeScorer
from tests.generated import examples
from tide.core.chat import Chat
from tide.core.settings import Settings
from tide.runtime.acceptance import Acceptance
from tide.scorers import languages, load_scorer
from tide.scorers.base import Attributed, Exchange, score_texts
from tide.scorers.disguises import readings
from tide.scorers.languages import (
    holds_listed_word,
    language_of,
    term_hash,
    tokens_of,
)
from tide.scorers.languages import with_word_lists as listed

TERMS = {"de": ["doof", "alte Socke"], "nl": ["doof"], "es": ["tonto"], "zh": ["\u7b28\u86cb"]}
GERMAN = "Ich habe es gestern nicht gesehen, und du bist wirklich doof"
SPANISH = "No s\u00e9 por qu\u00e9 lo dices, pero eres un tonto y lo sabes muy bien"
CHINESE = (
    "\u4ed6\u4eca\u5929\u6ca1\u6709\u6765\uff0c\u5927\u5bb6\u90fd\u8bf4\u4ed6\u662f\u7b28\u86cb"
)
GREEK = (
    "\u03ba\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03c3\u03b5 \u03cc\u03bb\u03bf\u03c5\u03c2"
)
ENGLISH = "The German word doof means deaf in Dutch, and it is not a kind word to say to them"


@pytest.fixture(autouse=True)
def lists(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    by_hash: dict[int, list[str]] = {}
    first = set()
    for language, terms in TERMS.items():
        for term in terms:
            tokens = tokens_of(term)
            by_hash.setdefault(term_hash(tokens), []).append(language)
            first.add(term_hash(tokens[:1]))
    mild = languages._Lists(by_hash, frozenset(first))
    monkeypatch.setattr(languages, "_lists", lambda: mild)
    remembered = (languages._begins_term, languages._holds_term)
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


def english() -> FakeScorer:
    """A scorer that reads English, and gives each text .2."""
    return FakeScorer(lambda text: 0.2, languages=("en",))


@pytest.mark.parametrize("text", [GERMAN, SPANISH, CHINESE, f"{GERMAN[:-4]} eine ALTE\nSocke!"])
def test_a_listed_word_of_the_text_s_language(text: str) -> None:
    assert score_texts(listed(english()), [text, "a text"]).values.tolist() == [1.0, 0.2]


@pytest.mark.parametrize(
    "text",
    [
        ENGLISH,
        GERMAN.replace("doof", "doofer"),
        GERMAN.replace("doof", "tonto"),  # listed in Spanish alone
        SPANISH.replace("tonto", "doof"),
        "doof",  # may be of any language
    ],
)
def test_other_words_get_the_score_of_the_scorer(text: str) -> None:
    assert score_texts(listed(english()), [text]).values.tolist() == [0.2]


def test_a_growing_text_stays_what_it_is() -> None:
    """The language is that of the text before the word, whatever comes later."""
    text = f"{GERMAN}. But then they said that this was not what you should have said to her."
    end = text.index("doof") + len("doof")
    for length in range(end, len(text) + 1):
        assert holds_listed_word(Exchange("", text[:length])), text[:length]
    assert not any(holds_listed_word(Exchange("", text[:length])) for length in range(end))


def test_a_short_answer_is_read_with_its_question() -> None:
    question = Chat.said("Was h\u00e4ltst du eigentlich von mir und von meinem neuen Auto?")
    assert holds_listed_word(Exchange(question, "Du bist doof."))
    assert not holds_listed_word(Exchange(Chat.said("What do you think of that?"), "Du: doof."))
    assert holds_listed_word(Exchange(GERMAN, ""))  # the prompt itself


@pytest.mark.parametrize("read", ["en", ["en"], ("en",)])
def test_languages_of_a_scorer_may_be_a_list_or_a_text(read: Any) -> None:
    assert isinstance(listed(FakeScorer(languages=read)), languages.WordLists)


def test_only_scorers_of_english_and_their_screens_are_wrapped() -> None:
    everything = FakeScorer()
    assert not isinstance(listed(everything), languages.WordLists)
    screen = listed(load_scorer("confirm:pocket,lexicon")).screen
    assert screen is not None
    assert screen.score([GERMAN]) == [1.0]


def test_a_listed_word_reaches_the_limits_of_single_attributes() -> None:
    scores = np.array([0.2, 0.2])
    insults = FakeScorer(
        languages=("en",),
        attributes=("insult",),
        highest_of=("insult",),
        score_attributes=lambda texts: Attributed(scores, {"insult": scores}),
    )
    scorer = listed(insults)
    acceptance = Acceptance(Settings(thresholds={"insult": 0.5}), scorer.highest_of)
    german, english = score_texts(scorer, [GERMAN, ENGLISH])
    assert acceptance.failed(german) == ("insult",)
    assert acceptance.passes(english)


WORDS = ["alte", "Socke", "Alte-Socke", "doof", "d**f", "s", "it's", "\u2014", "", "a\nb", "AND"]


@settings(examples(100, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=30))
def test_words_between_spaces_hold_the_terms_of_the_text(words: list[str]) -> None:
    text = " ".join(words)
    read = [languages._folded(reading) for reading in readings(text)]
    holds = any(any(languages._listed_terms(reading)) for reading in read)
    assert languages._holds_term_between_spaces(text) == holds


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Ich habe gestern mit meiner Nachbarin gesprochen und sie war sehr freundlich", "de"),
        ("ME DIJO QUE NO SE LO IBA A DECIR A NADIE EN LA CASA", "es"),
        ("Jag har en katt som heter Molly och hon \u00e4r inte arg", "sv"),
        ("Ich habe es", ""),  # too short to tell
        ("They went to Los Angeles and then to La Paz, de facto en route", "en"),
        (GREEK, "el"),
        (f"{GREEK} and that is much more than what they would have said in English", "en"),
        ("\u4f60\u597d", ""),
        ("for (i = 0; i < 10; i++) { x[i] += y[i] * 2; }", ""),
        ("", ""),
    ],
)
def test_language_of_a_text(text: str, language: str) -> None:
    assert language_of(text) == language


def test_encoder_warns_once_of_another_language(caplog: pytest.LogCaptureFixture) -> None:
    scorer = load_scorer("sentence")
    with caplog.at_level(logging.WARNING):
        scorer.score(["an English text"])
        assert caplog.text == ""
        for _ in range(3):
            scorer.score(["an English text", GREEK])
    assert caplog.text.count("mostly in another language") == 1
    assert GREEK not in caplog.text

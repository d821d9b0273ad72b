"""Word lists for languages that a scorer does not read, here with lists of mild words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tide.core.chat import Chat
from tide.scorers import languages, load_scorer, score_texts
from tide.scorers.base import Exchange, Floats, PlainScorer, Scorer, screen_of
from tide.scorers.languages import WordLists, holds_listed_word, term_hash, tokens_of
from tide.scorers.languages import with_word_lists as listed

TERMS = {"de": ["doof", "alte Socke"], "nl": ["doof"], "es": ["tonto"], "zh": ["\u7b28\u86cb"]}
GERMAN = "Ich habe es gestern nicht gesehen, und du bist wirklich doof"
SPANISH = "No s\u00e9 por qu\u00e9 lo dices, pero eres un tonto y lo sabes muy bien"
CHINESE = (
    "\u4ed6\u4eca\u5929\u6ca1\u6709\u6765\uff0c\u5927\u5bb6\u90fd\u8bf4\u4ed6\u662f\u7b28\u86cb"
)
ENGLISH = "The German word doof means deaf in Dutch, and it is not a kind word to say to them"


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hash: dict[int, list[str]] = {}
    first = set()
    for language, terms in TERMS.items():
        for term in terms:
            tokens = tokens_of(term)
            by_hash.setdefault(term_hash(tokens), []).append(language)
            first.add(term_hash(tokens[:1]))
    mild = languages._Lists(by_hash, frozenset(first))
    monkeypatch.setattr(languages, "_lists", lambda: mild)


class English(PlainScorer):
    """Reads English, and gives each text .2."""

    name, languages, quick = "english@1", ("en",), True

    def score(self, texts: Sequence[str]) -> Floats:
        return load_scorer("pocket").score(texts) * 0 + 0.2


@pytest.mark.usefixtures("lists")
@pytest.mark.parametrize("text", [GERMAN, SPANISH, CHINESE, f"{GERMAN[:-4]} eine ALTE\nSocke!"])
def test_a_listed_word_of_the_text_s_language(text: str) -> None:
    scorer = listed(English())
    assert isinstance(scorer, Scorer)
    assert score_texts(scorer, [text, "a text"]).values.tolist() == [1.0, 0.2]


@pytest.mark.usefixtures("lists")
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
    assert score_texts(listed(English()), [text]).values.tolist() == [0.2]


@pytest.mark.usefixtures("lists")
def test_a_growing_text_stays_what_it_is() -> None:
    """The language is that of the text before the word, whatever comes later."""
    text = f"{GERMAN}. But then they said that this was not what you should have said to her."
    end = text.index("doof") + len("doof")
    for length in range(end, len(text) + 1):
        assert holds_listed_word(Exchange("", text[:length])), text[:length]
    assert not any(holds_listed_word(Exchange("", text[:length])) for length in range(end))


@pytest.mark.usefixtures("lists")
def test_a_short_answer_is_read_with_its_question() -> None:
    question = Chat.said("Was h\u00e4ltst du eigentlich von mir und von meinem neuen Auto?")
    assert holds_listed_word(Exchange(question, "Du bist doof."))
    assert not holds_listed_word(Exchange(Chat.said("What do you think of that?"), "Du: doof."))
    assert holds_listed_word(Exchange(GERMAN, ""))  # the prompt itself


@pytest.mark.usefixtures("lists")
def test_the_lists_help_only_scorers_of_english_and_their_screens() -> None:
    everything = load_scorer("lexicon")
    everything.languages = None  # type: ignore[attr-defined]
    assert listed(everything) is everything
    scorer = listed(load_scorer("confirm:pocket,lexicon"))
    screen = screen_of(scorer)
    assert isinstance(scorer, WordLists)
    assert screen is not None
    assert screen.score([GERMAN]) == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        "A senhora Pinto foi ontem ao mercado com o senhor Amador e comprou p\u00e3o",
        "Anita heeft gisteren met haar nicht een kat geaaid en daarna een pot thee gezet",
        "La signora ha comprato del pesce fresco al mercato e una regina di cuori",
    ],
)
def test_the_bundled_lists_pass_names_and_ordinary_words(text: str) -> None:
    assert not holds_listed_word(Exchange("", text))


def test_the_bundled_lists_have_25_languages() -> None:
    listed_in = {code for codes in languages._lists().languages.values() for code in codes}
    assert len(listed_in) == 25
    assert "en" not in listed_in

from __future__ import annotations

import numpy as np
import pytest

from tests.command import tide
from tide.core.errors import InputError, ScorerError
from tide.scorers import REGISTRY, CallableScorer, load_scorer
from tide.scorers.base import Attributed, Floats, PlainScorer, ask_attributes
from tide.scorers.wrappers.languages import strict

ENGLISH = "They said that it was fine and went home."
RUSSIAN = "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430?"
GERMAN = "Ich habe es nicht gesehen und du hast es nicht gesagt"


class Noting(PlainScorer):
    """Gives every text the same score, and records its texts."""

    attributes = ("noise",)

    def __init__(self, value: float) -> None:
        self.name = f"noting@{value:g}"
        self.threshold = value
        self.asked: list[str] = []
        self.closed = False

    def score(self, texts: list[str]) -> Floats:
        return self.score_attributes(texts).values

    def score_attributes(self, texts: list[str]) -> Attributed:
        self.asked += texts
        values = np.full(len(texts), self.threshold)
        return Attributed(values, {"noise": values})

    def close(self) -> None:
        self.closed = True


def test_each_text_goes_to_the_scorer_of_its_language(monkeypatch: pytest.MonkeyPatch) -> None:
    scorers = {"first": Noting(0.25), "second": Noting(0.75)}
    for name, one in scorers.items():
        monkeypatch.setitem(REGISTRY._targets, name, lambda one=one: one)
    monkeypatch.setitem(
        REGISTRY._targets, "plain", lambda: CallableScorer(lambda t: [0.5] * len(t))
    )
    scorer = load_scorer("language:en=first,other=second")
    assert scorer.score([ENGLISH, RUSSIAN, "hi", GERMAN]).tolist() == [0.25, 0.75, 0.25, 0.75]
    assert scorers["first"].asked == [ENGLISH, "hi"]
    assert scorers["second"].asked == [RUSSIAN, GERMAN]
    assert (scorer.name, scorer.threshold) == (
        "language:en=noting@0.25,other=noting@0.75", 0.25,
    )  # fmt: skip
    assert scorer.score([]).shape == (0,)
    scorer.close()
    assert all(one.closed for one in scorers.values())
    mixed = ask_attributes(load_scorer("language:en=plain,other=second"), [ENGLISH, GERMAN])
    np.testing.assert_array_equal(mixed.attributes["noise"], [np.nan, 0.75])


@pytest.mark.parametrize("text", [RUSSIAN, GERMAN])
def test_without_another_scorer_an_unread_language_is_an_error(text: str) -> None:
    scorer = load_scorer("language:en=pocket")
    with pytest.raises(ScorerError, match=r"mostly in another .* add other=SCORER"):
        scorer.score([ENGLISH, text])
    hidden = "you \u0430re a stup\u0456d \u0456d\u0456\u043et"
    assert scorer.score([hidden]) == pytest.approx(load_scorer("pocket").score([hidden]))


def test_it_stands_around_wrappers_and_inside_them() -> None:
    for spec in (
        "max:language:en=pocket,other=pocket,sentence",
        "cache:language:en=(max:pocket,sentence),other=windows:50:pocket",
    ):
        assert 0.0 <= load_scorer(spec).score([ENGLISH])[0] <= 1.0


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("language:other=pocket", "en: Field required"),
        ("language:pocket", "is not key=value"),
        ("language:en=no-such", "unknown scorer 'no-such'"),
        ("language:en=(cache:language:en=pocket)", "cannot be nested in another"),
        ("language:en=pocket,de=pocket", "no option 'de'"),
    ],
)
def test_what_is_wrong_is_said(spec: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_scorer(spec)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("pocket", "language:en=(pocket)"),
        ("max:lexicon,hf:some/model", "language:en=(max:lexicon,hf:some/model)"),
        ("detoxify:original", "language:en=(detoxify:original)"),
        ("detoxify:original#threat", "language:en=(detoxify:original#threat)"),
        ("detoxify:multilingual", "detoxify:multilingual"),
        ("hf:some/model#a,b", "hf:some/model#a,b"),
        ("lexicon:words.txt", "lexicon:words.txt"),
        ("language:en=pocket,other=perspective", "language:en=pocket,other=perspective"),
    ],
)  # fmt: skip
def test_strict_puts_it_around_scorers_that_read_english_alone(spec: str, expected: str) -> None:
    assert strict(spec) == expected


def test_strict_language_from_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("score", RUSSIAN) == 0
    assert tide("score", ENGLISH, "--strict-language") == 0
    capsys.readouterr()
    assert tide("score", RUSSIAN, "--strict-language") == 1
    assert "mostly in another script" in capsys.readouterr().err

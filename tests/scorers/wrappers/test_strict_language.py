from __future__ import annotations

import pytest

from tide.core.errors import ScorerError
from tide.scorers import REGISTRY, CallableScorer, load_scorer
from tide.scorers.base import screen_of

ENGLISH = "They said that it was fine and went home."
RUSSIAN = "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430?"
GERMAN = "Ich habe es nicht gesehen und du hast es nicht gesagt"


@pytest.mark.parametrize("text", [RUSSIAN, GERMAN])
@pytest.mark.parametrize("spec", ["pocket", "max:pocket,(windows:50:lexicon)", "cache:pocket"])
def test_strict_language_refuses_other_languages(spec: str, text: str) -> None:
    scorer = load_scorer(f"strict-language:{spec}")
    assert scorer.name == f"strict-language:{load_scorer(spec).name}"
    with pytest.raises(ScorerError, match=r"reads only English, and a text is mostly in another"):
        scorer.score([ENGLISH, text])
    hidden = "you \u0430re a stup\u0456d \u0456d\u0456\u043et"
    assert scorer.score([hidden]) == pytest.approx(load_scorer(spec).score([hidden]))
    assert scorer.score([]).shape == (0,)


def test_strict_language_leaves_scorers_of_all_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    reads_all = CallableScorer(lambda texts: [0.25] * len(texts), "all@1")
    monkeypatch.setitem(REGISTRY._targets, "all", lambda: reads_all)
    scorer = load_scorer("strict-language:all")
    assert scorer.name == reads_all.name
    assert scorer.score([RUSSIAN, GERMAN]).tolist() == [0.25, 0.25]


def test_strict_language_refuses_in_the_screen_of_confirm() -> None:
    screen = screen_of(load_scorer("strict-language:confirm:pocket,lexicon"))
    assert screen is not None
    assert screen.score([ENGLISH]) == load_scorer("pocket").score([ENGLISH])
    with pytest.raises(ScorerError, match="mostly in another language"):
        screen.score([GERMAN])

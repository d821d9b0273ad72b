from __future__ import annotations

import logging

import pytest

from tide.scorers import language, load_scorer
from tide.scorers.language import is_not_latin

GREEK = (
    "\u03ba\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03c3\u03b5 \u03cc\u03bb\u03bf\u03c5\u03c2"
)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("plain English text", False),
        ("caf\u00e9 na\u00efve \u0142\u00f3d\u017a \u00fcber alles gut", False),
        (GREEK, True),
        (f"{GREEK} and much more than that in English", False),
        ("\u4f60\u597d", False),  # too short to tell
        ("\u4eca\u5929\u5929\u6c14\u5f88\u597d\u5927\u5bb6\u90fd\u51fa\u53bb\u4e86", True),
        ("\U0001f600 \U0001f600 12345 !!!", False),
        ("", False),
    ],
)
def test_which_texts_are_mostly_in_another_script(text: str, other: bool) -> None:
    assert is_not_latin(text) is other


def test_it_is_said_once_for_each_scorer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(language, "_warned", set())
    scorer = load_scorer("pocket")
    with caplog.at_level(logging.WARNING):
        scorer.score(["an English text"])
        assert caplog.text == ""
        for _ in range(3):
            scorer.score(["an English text", GREEK])
    assert caplog.text.count("mostly in another script") == 1
    assert "detoxify:multilingual" in caplog.text
    assert GREEK not in caplog.text

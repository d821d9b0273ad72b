from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tide.data.texts import read_rows
from tide.scorers import load_scorer
from tide.scorers.languages import is_not_latin, language_of

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


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Ich habe gestern mit meiner Nachbarin gesprochen und sie war sehr freundlich", "de"),
        ("Er sagte, so was in der Art habe er noch nicht gesehen und gelesen", "de"),
        ("La casa de mi abuela es muy grande y tiene un jard\u00edn con flores", "es"),
        ("ME DIJO QUE NO SE LO IBA A DECIR A NADIE EN LA CASA", "es"),
        ("Le chat de la voisine dort sur le canap\u00e9 pendant que nous mangeons", "fr"),
        ("Il gatto di mia sorella dorme sul divano e non vuole mangiare", "it"),
        ("Mijn buurman zei dat hij morgen niet met een van ons mee wil", "nl"),
        ("Jag har en katt som heter Molly och hon \u00e4r inte arg", "sv"),
        ("Ich habe es", ""),  # too short to tell
        ("They went to Los Angeles and then to La Paz, de facto en route", "en"),
        (GREEK, "el"),
        ("T\u00e4m\u00e4 on aivan tavallinen lause, jossa ei ole mit\u00e4\u00e4n pahaa", "fi"),
        ("for (i = 0; i < 10; i++) { x[i] += y[i] * 2; }", ""),
        ("", ""),
    ],
)
def test_language_of_a_text(text: str, language: str) -> None:
    assert language_of(text) == language


def test_english_prompts_are_taken_as_english(shared_data: Path) -> None:
    prompts = read_rows(shared_data / "benchmarks" / "rtp_challenging.jsonl")
    assert {language_of(row.text) for row in prompts} <= {"", "en"}


def test_encoder_warns_once_of_another_language(caplog: pytest.LogCaptureFixture) -> None:
    scorer = load_scorer("sentence")
    with caplog.at_level(logging.WARNING):
        scorer.score(["an English text", "Idiots, morons, fools: big red angry shouting people"])
        assert caplog.text == ""
        for _ in range(3):
            scorer.score(["an English text", GREEK])
    assert caplog.text.count("mostly in another language") == 1
    assert "detoxify:multilingual" in caplog.text
    assert GREEK not in caplog.text

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tide.core.errors import InputError, MissingDependencyError, ScorerError
from tide.scorers import load_scorer
from tide.scorers.base import score_groups


def test_a_text_that_a_pattern_matches(tmp_path: Path) -> None:
    path = tmp_path / "forms.txt"
    path.write_text("# addresses\n\n[\\w.+-]+@[\\w-]+\\.\\w+\nAC-\\d{4}\n")
    scorer = load_scorer(f"regex:{path}")
    texts = ["ask me@example.org", "ask me&#64;example.org", "of ac-1234.", "AC-12", "fine", ""]
    assert scorer.score(texts).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert scorer.name.startswith("regex@")
    both = load_scorer(f"max:pocket,regex:{path}")
    assert both.score(["a fine day", "AC-1234"])[1] == 1.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("fine\n(", "line 2 is not a regular expression"),
        ("\n#\n", "holds no patterns"),
        ("x*", "line 1 matches an empty text"),
    ],
)
def test_what_is_no_file_of_patterns(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "forms.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=f"scorer regex: .*{said}"):
        load_scorer(f"regex:{path}")
    with pytest.raises(InputError, match="needs an argument"):
        load_scorer("regex")
    with pytest.raises(InputError, match="no such file"):
        load_scorer(f"regex:{path}.none")


def test_a_pattern_that_takes_too_long_is_an_error_of_that_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tide.scorers.patterns._SECONDS", 0.05)
    path = tmp_path / "forms.txt"
    path.write_text("(a|aa|aaa)+$b")
    scorer = load_scorer(f"regex:{path}")
    good, bad = score_groups(scorer, [["fine"], ["a" * 60 + "!"]], "score")
    assert not isinstance(good, ScorerError)
    assert isinstance(bad, ScorerError)
    assert "line 1 takes more than 0.05 s" in str(bad)


CARD = "4111 1111 1111 1111"


def test_presidio_s_options_and_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("entities=PERSON|", "entities=email", "language=english", "size=1"):
        with pytest.raises(InputError, match=f"scorer presidio: .*{option.partition('=')[0]}"):
            load_scorer(f"presidio:{option}")
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(MissingDependencyError, match=r"\[presidio\]"):
        load_scorer("presidio")


class TestWithPresidio:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("presidio_analyzer")

    def test_the_highest_confidence_counts(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also checks that the network is not used."""

        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("asked the network")

        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        expected = {
            "ask ann@example.org.": 1.0,
            "ask ann&#64;example.org": 1.0,  # the reading has "@"
            "ann@example.co.uk": 1.0,
            "ask ann@example": 0.0,
            f"my card: {CARD}": 1.0,
            "no card: 4111 1111 1111 1112": 0.0,
            "GB82 WEST 1234 5698 7654 32": 1.0,
            "call (212) 555-0123": 0.4,
            "call (212) 555-0123 or ann@example.org": 1.0,
            "from 10.0.0.1": 0.0,  # IP addresses are not among the entities
            "The weather is fine on 3 May.": 0.0,
            "": 0.0,
        }
        with caplog.at_level(logging.WARNING):
            scores = load_scorer("presidio").score([*expected])
        assert scores.tolist() == [*expected.values()]
        assert not caplog.records

    def test_only_what_patterns_find_and_is_asked_for(self) -> None:
        scorer = load_scorer("presidio:entities=IP_ADDRESS|URL,language=de")
        assert scorer.name.startswith("presidio:entities=(IP_ADDRESS|URL),language=de@")
        assert scorer.score(["10.0.0.1", f"{CARD} (212) 555-0123"]).tolist() == [0.6, 0.0]
        message = "entities: no pattern for PERSON in 'en'; there are patterns for CREDIT_CARD"
        with pytest.raises(InputError, match=message):
            load_scorer("presidio:entities=URL|PERSON")

    def test_a_finding_anywhere_in_a_long_text(self) -> None:
        """Also after a text for which a pattern takes quadratic time."""
        scorer = load_scorer("presidio")
        hard = "a." * 30_000 + "@ "
        for before in range(1000, 1100, 7):
            assert scorer.score([f"{'x ' * before}ann@example.org"])[0] == 1.0
        assert scorer.score([hard, f"{hard}{CARD}"]).tolist() == [0.0, 1.0]

from __future__ import annotations

import logging
import socket
import sys
from typing import Any

import pytest

from tide.core.errors import InputError, MissingDependencyError
from tide.scorers import load_scorer

CARD = "4111 1111 1111 1111"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(MissingDependencyError, match=r"\[presidio\]"):
        load_scorer("presidio")


def test_options() -> None:
    for option in ("entities=PERSON|", "entities=email", "language=english", "size=1"):
        with pytest.raises(InputError, match=f"scorer presidio: .*{option.partition('=')[0]}"):
            load_scorer(f"presidio:{option}")


class TestWithPresidio:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("presidio_analyzer")

    @pytest.mark.parametrize(
        ("text", "score"),
        [
            ("ask ann@example.org.", 1.0),
            ("ask ann&#64;example.org", 1.0),  # as it is read
            ("ask ann@example", 0.0),
            (f"my card: {CARD}", 1.0),
            ("no card: 4111 1111 1111 1112", 0.0),
            ("GB82 WEST 1234 5698 7654 32", 1.0),
            ("call (212) 555-0123", 0.4),
            ("call (212) 555-0123 or ann@example.org", 1.0),
            ("from 10.0.0.1", 0.0),  # not asked for
            ("The weather is fine on 3 May.", 0.0),
            ("", 0.0),
        ],
    )
    def test_the_highest_confidence_counts(self, text: str, score: float) -> None:
        assert load_scorer("presidio").score(["fine", text]).tolist() == [0.0, score]

    def test_only_what_is_asked_for(self) -> None:
        scorer = load_scorer("presidio:entities=IP_ADDRESS|URL,language=de")
        assert scorer.name.startswith("presidio:entities=(IP_ADDRESS|URL),language=de@")
        assert scorer.score(["10.0.0.1", f"{CARD} (212) 555-0123"]).tolist() == [0.6, 0.0]
        both = load_scorer("max:pocket,presidio:entities=CREDIT_CARD")
        assert both.score(["a fine day", CARD])[1] == 1.0

    @pytest.mark.parametrize("entity", ["PERSON", "LOCATION", "NAME"])
    def test_what_patterns_do_not_find_is_refused(self, entity: str) -> None:
        message = f"entities: {entity} is not found by patterns in 'en'; these are: CREDIT_CARD"
        with pytest.raises(InputError, match=message):
            load_scorer(f"presidio:entities=URL|{entity}")

    def test_a_finding_anywhere_in_a_long_text(self) -> None:
        """Also after what a pattern takes the square of its length for."""
        scorer = load_scorer("presidio")
        hard = "a." * 30_000 + "@ "
        for before in range(1000, 1100, 7):
            assert scorer.score([f"{'x ' * before}ann@example.org"])[0] == 1.0
        assert scorer.score([hard, f"{hard}{CARD}"]).tolist() == [0.0, 1.0]

    def test_the_network_is_not_asked(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("asked the network")

        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        with caplog.at_level(logging.WARNING):
            assert load_scorer("presidio").score(["ann@example.co.uk"]).tolist() == [1.0]
        assert not caplog.records

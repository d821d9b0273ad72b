"""Answers in languages that the scorer does not read."""

from __future__ import annotations

import pytest

from tests.fakes import FakeEngine, FakeScorer
from tests.server.running import Running, running

GERMAN = "Das Wetter ist heute sehr sch\u00f6n und wir gehen in den Garten"
COUNTER = 'tide_unread_answers_total{language="de"}'


def ask(server: Running) -> dict[str, object]:
    (choice,) = server.ask(max_tokens=16).json()["choices"]
    tide: dict[str, object] = choice["tide"]
    return tide


@pytest.mark.parametrize(
    ("languages", "text", "language"),
    [(("en",), GERMAN, "de"), (None, GERMAN, None)],
)
def test_an_answer_names_a_language_that_the_scorer_does_not_read(
    languages: tuple[str, ...] | None, text: str, language: str | None
) -> None:
    with running(FakeEngine(text), FakeScorer(languages=languages)) as server:
        assert ask(server).get("language") == language
        assert server.metric(COUNTER) == (language is not None)

"""The arithmetic of `benchmarks/ordinary.py`; no model is measured here."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from benchmarks.ordinary import Answer, Question, Set, pairs, questions_of
from rich.console import Console

from benchmarks import ordinary
from tests.scripted_engine import ScriptedEngine
from tide import Trial
from tide.core.results import ScoredCompletion
from tide.evaluation.metrics import Share

OWN, OTHER = "A gay man waters the plants.", "A man waters the plants."


def trial(text: str, toxicity: float, *, refused: bool = False, **more: Any) -> Trial:
    """more: further fields of its one completion."""
    fields = {"text": text, "toxicity": toxicity, "finish_reason": "stop", **more}
    completion = ScoredCompletion.model_construct(**fields)
    return Trial.model_construct(
        accepted=not refused, refused=refused, chosen=0, trace=(completion,)
    )


ABOUT_IDENTITY = Question("1", "identity", "Who?", "gay")
CONTROL = Question("2", "control", "Who?", "tall")
UNCHANGED = trial(OWN, 0.2)
ANSWERS = [
    Answer(ABOUT_IDENTITY, trial(OWN, 0.05), trial(OTHER, 0.01, finish_reason="content_filter")),
    Answer(ABOUT_IDENTITY, UNCHANGED, trial(OWN, 0.2, failed=("toxicity",))),
    Answer(ABOUT_IDENTITY, UNCHANGED, trial(OWN, 0.2, refused=True)),
    Answer(CONTROL, UNCHANGED, UNCHANGED),
]


def test_altered_blocked_and_passing_answers_are_counted() -> None:
    identity, control, together = ordinary.kind_rows(ANSWERS, 0.1)
    kind, answers, altered, ended, blocked, flagged, passing = identity
    assert (kind, answers, ended, blocked, flagged) == ("identity", 3, 1, 1, 1)
    assert isinstance(altered, Share)
    assert isinstance(passing, Share)
    # A blocked answer shows no text.
    assert (altered.value, passing.value) == (pytest.approx(2 / 3), 0.5)
    assert control[6] is None
    assert together[:2] == ["all", 4]
    row = ordinary.row_of("backtrack", ANSWERS[0])
    assert (row["own"], row["text"], row["altered"], row["blocked"]) == (OWN, OTHER, True, False)


def test_difference_has_newcombe_interval() -> None:
    """The example of Newcombe (1998), method 10: 56/70 and 48/80."""
    gap = ordinary.difference(56, 70, 48, 80)
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_identities_are_compared_and_words_counted() -> None:
    shown = StringIO()
    ordinary.show_identities(Console(file=shown, width=80), ANSWERS)
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert "identity gay 3 3 1" in lines
    assert "control all 1 0 0" in lines
    assert any(re.match(r"\+0\.667 \[.*\] 1\.000", line) for line in lines)
    assert max(map(len, shown.getvalue().splitlines())) <= 80
    # Words are counted as beginnings of words.
    assert ordinary.names("Gays and others", "gay")
    assert not ordinary.names("a nosegay", "gay")


def test_own_answers_are_those_of_the_model_alone() -> None:
    """Only questions whose first draft failed are asked again."""
    engine = ScriptedEngine(lambda x, seed: "you stupid idiot" if seed % 2 else "a kind word")
    questions = [Question(str(number), "hard", f"question {number}") for number in range(8)]
    prompts = [question.text for question in questions]
    alone = ordinary.run(engine, "resample:max_iterations=1", "pocket", prompts, 0.5, "relative")
    (answers,) = ordinary.answers_of(
        engine, ["backtrack"], "pocket", questions, 0.5, as_chats=False
    ).values()
    assert [answer.own.text for answer in answers] == [trial.text for trial in alone]
    kind = [answer for answer in answers if answer.own.text == "a kind word"]
    assert 0 < len(kind) < len(answers)
    assert [answer for answer in answers if not answer.altered] == kind
    assert all(answer.own is answer.trial for answer in kind)


COUNTS = {Set.EVERYDAY: 100, Set.ORDINARY: 200, Set.HARD: 300, Set.IDENTITY: 200}


@pytest.mark.parametrize(("name", "count"), [*COUNTS.items(), (Set.PROVOKING, 100)])
def test_questions_are_distinct(name: Set, count: int) -> None:
    questions = questions_of(name)
    assert len({question.id for question in questions}) == count
    assert len({question.text for question in questions}) == count


def test_identity_questions_are_matched() -> None:
    """A control is the question about an identity with another word."""

    def frame(question: Question) -> str:
        return re.sub(rf"\b(an? )?{question.word}", "...", question.text, flags=re.IGNORECASE)

    questions = questions_of(Set.IDENTITY)
    for identity, control in zip(questions[::2], questions[1::2], strict=True):
        assert (identity.kind, control.kind) == ("identity", "control")
        assert frame(identity) == frame(control)
    both = set(pairs())
    assert len(both) == 100
    assert all(first != second for first, second in both)

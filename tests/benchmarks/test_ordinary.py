"""The arithmetic of `benchmarks/ordinary.py`; no model is measured here."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from benchmarks.ordinary import (
    Answer,
    Question,
    Set,
    answers_of,
    difference,
    kind_rows,
    names,
    pairs,
    questions_of,
    row_of,
    run,
    show_identities,
)
from rich.console import Console

from tests.scripted_engine import ScriptedEngine
from tide import Trial
from tide.core.results import EndReason, ScoredCompletion
from tide.evaluation.metrics import Share

OWN, OTHER = "A gay man waters the plants.", "A man waters the plants."


def trial(
    text: str,
    toxicity: float,
    *,
    refused: bool = False,
    reason: EndReason = "stop",
    failed: tuple[str, ...] = (),
) -> Trial:
    completion = ScoredCompletion(
        round=1, iteration=1, role="initial", text=text, toxicity=toxicity, empty=False,
        cosine=1.0, displacement=0.0, num_tokens=6, finish_reason=reason, failed=failed,
    )  # fmt: skip
    return Trial(
        number=0, seed=0, accepted=not refused, refused=refused, chosen=0, iterations=1,
        scorer_calls=1, trace=(completion,), prompt_tokens=1, generated_tokens=6,
    )  # fmt: skip


def answer(kind: str, own: Trial, shown: Trial, word: str = "") -> Answer:
    return Answer(Question("1", kind, "Who?", word), own, shown)


UNCHANGED = trial(OWN, 0.2)
ANSWERS = [
    answer("identity", trial(OWN, 0.05), trial(OTHER, 0.01, reason="content_filter"), "gay"),
    answer("identity", UNCHANGED, trial(OWN, 0.2, failed=("toxicity",)), "gay"),
    answer("identity", UNCHANGED, trial(OWN, 0.2, refused=True), "gay"),
    answer("control", UNCHANGED, UNCHANGED, "tall"),
]


def test_kind_rows_count_altered_blocked_and_passing_answers() -> None:
    identity, control, together = kind_rows(ANSWERS, 0.1)
    assert identity[:2] == ["identity", 3]
    assert identity[3:6] == [1, 1, 1]  # ended, blocked, flagged
    assert isinstance(identity[2], Share)
    assert isinstance(identity[6], Share)
    # A blocked answer shows no text.
    assert identity[2].value == pytest.approx(2 / 3)
    assert identity[6].value == 0.5
    assert control[6] is None
    assert together[:2] == ["all", 4]


def test_difference_has_newcombe_interval() -> None:
    """The example of Newcombe (1998), method 10: 56/70 and 48/80."""
    gap = difference(56, 70, 48, 80)
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_identities_are_compared_and_words_counted() -> None:
    shown = StringIO()
    show_identities(Console(file=shown, width=80), ANSWERS)
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert "identity gay 3 3 1" in lines
    assert "control all 1 0 0" in lines
    assert any(re.match(r"\+0\.667 \[.*\] 1\.000", line) for line in lines)
    assert max(map(len, shown.getvalue().splitlines())) <= 80


def test_words_are_counted_as_beginnings_of_words() -> None:
    assert names("Gays and others", "gay")
    assert not names("a nosegay", "gay")


def test_own_answers_are_those_of_the_model_alone() -> None:
    """Only questions whose first draft failed are asked again."""
    engine = ScriptedEngine(lambda x, seed: "you stupid idiot" if seed % 2 else "a kind word")
    questions = [Question(str(number), "hard", f"question {number}") for number in range(8)]
    prompts = [question.text for question in questions]
    alone = run(engine, "resample:n=1", "pocket", prompts, 0.5, "relative")
    by_method = answers_of(engine, ["backtrack"], "pocket", questions, 0.5, as_chats=False)
    answers = by_method["backtrack"]
    assert [answer.own.text for answer in answers] == [trial.text for trial in alone]
    kind = [answer for answer in answers if answer.own.text == "a kind word"]
    assert 0 < len(kind) < len(answers)
    assert [answer for answer in answers if not answer.altered] == kind
    assert all(answer.own is answer.trial for answer in kind)


def test_rows_hold_both_answers() -> None:
    row = row_of("backtrack", ANSWERS[0])
    assert (row["own"], row["text"], row["altered"], row["blocked"]) == (OWN, OTHER, True, False)


@pytest.mark.parametrize(
    ("name", "count"),
    [(Set.EVERYDAY, 100), (Set.ORDINARY, 200), (Set.HARD, 300), (Set.IDENTITY, 200),
     (Set.PROVOKING, 100)],
)  # fmt: skip
def test_questions_are_distinct(name: Set, count: int) -> None:
    questions = questions_of(name)
    assert len({question.id for question in questions}) == count
    assert len({question.text for question in questions}) == count


def test_identity_questions_are_matched() -> None:
    """A control is the question about an identity with another word."""
    questions = questions_of(Set.IDENTITY)
    for identity, control in zip(questions[::2], questions[1::2], strict=True):
        assert (identity.kind, control.kind) == ("identity", "control")
        assert frame(identity) == frame(control)


def frame(question: Question) -> str:
    return re.sub(rf"\b(an? )?{question.word}", "...", question.text, flags=re.IGNORECASE)


def test_pairs_differ_in_the_group() -> None:
    both = list(pairs())
    assert len(both) == len(set(both)) == 100
    assert all(first != second for first, second in both)

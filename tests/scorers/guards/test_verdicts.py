"""The verdict in an answer: its place and its probability."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tide.scorers.guards import FAMILIES, Token, read_verdict

LLAMA = FAMILIES["llama-guard"].verdicts
QWEN = FAMILIES["qwen3guard"]


def token(*likeliest: tuple[str, float], chosen: str | None = None) -> Token:
    """A token with these probabilities; by default the first was chosen."""
    return Token(
        likeliest[0][0] if chosen is None else chosen, [(t, math.log(p)) for t, p in likeliest]
    )


@pytest.mark.parametrize(
    ("answer", "verdicts", "score", "before"),
    [
        ([token(("safe", 0.9), ("unsafe", 0.05), ("The", 0.05))], LLAMA, 0.05 / 0.95, ""),
        (  # "un" begins "unsafe", and a leading space changes no verdict
            [token((" un", 0.5), (" safe", 0.2), ("unsafe", 0.1), ("safe", 0.1), ("x", 0.1))],
            LLAMA, 0.6 / 0.9, "",
        ),
        (
            [token(("\n\n", 0.99), ("safe", 0.01)), token(("unsafe", 0.8), ("safe", 0.2)),
             token(("\n", 1.0))],
            LLAMA, 0.8, "\n\n",
        ),
        # Another word is chosen, but verdicts are likely: their probabilities count.
        ([token(("I", 0.4), ("unsafe", 0.3), ("safe", 0.3))], LLAMA, 0.5, ""),
        # All tokens that are not listed may be spellings of "unsafe".
        ([token(("safe", 0.9))], LLAMA, 0.1, ""),
        ([token(("safe", 0.9), ("The", 0.04))], LLAMA, 0.0625, ""),
        ([token(("safe", 0.6), ("unsafe", 0.3))], LLAMA, 0.4, ""),
        ([token(("unsafe", 0.9))], LLAMA, 1.0, ""),
        # Either of two about equally likely verdicts may be chosen.
        ([token(("safe", 0.41), ("unsafe", 0.4), chosen="safe")], LLAMA, 0.59, ""),
        ([token(("safe", 0.41), ("unsafe", 0.4), chosen="unsafe")], LLAMA, 0.59, ""),
    ],
)  # fmt: skip
def test_a_verdict_is_read(
    answer: list[Token], verdicts: dict[str, float], score: float, before: str
) -> None:
    verdict = read_verdict(answer, verdicts)
    assert verdict is not None
    assert (verdict.score, verdict.before) == (pytest.approx(score), before)


def test_after_a_lead() -> None:
    answer = [token(("Safety", 1.0)), token((":", 1.0)),
              token((" Controversial", 0.5), (" Safe", 0.3), (" Unsafe", 0.2))]  # fmt: skip
    score = pytest.approx(0.7)
    assert read_verdict(answer, QWEN.verdicts, QWEN.lead) == (score, "Safety:")
    assert read_verdict(answer[2:], QWEN.verdicts, QWEN.lead, "Safety:") == (score, "")
    # "Safe" and "Safety" differ: the word before the lead is not a verdict.
    assert read_verdict(answer[:2], QWEN.verdicts, QWEN.lead) is None


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [token(("I", 0.995), ("safe", 0.005))],
        [token(("\n", 1.0))] * 3,
        [token((" ", 1.0)), token(("I", 1.0)), token((" cannot", 1.0))],
        # A token that may begin either of two verdicts decides nothing.
        [token(("s", 1.0))],
        # A list in which another token is much likelier than the chosen one is refused.
        [token(("safe", 0.99), chosen="un")],
        [token(("safe", 0.99), ("unsafe", 0.01), chosen="unsafe")],
        [token(("safe", 0.99), chosen="The")],
        [token(("The", 0.99), chosen="safe"), token(("safe", 1.0))],
    ],
)
def test_no_verdict(answer: list[Token]) -> None:
    assert read_verdict(answer, {**LLAMA, "so-so": 0.5}) is None


def test_a_verdict_is_read_to_its_end() -> None:
    """`N/A` begins like `No`; a verdict may be followed by a reason, or cut at the end."""
    verdicts = {"Yes": 1.0, "No": 0.0}
    start = token(("N", 0.9), ("Yes", 0.1))
    assert read_verdict([start, token(("/A", 1.0))], verdicts) is None
    for rest in ([], [token(("o", 1.0))], [token(("o", 1.0)), token((", it is kind", 1.0))]):
        verdict = read_verdict([start, *rest], verdicts)
        assert verdict is not None
        assert verdict.score == pytest.approx(0.1)


@given(st.lists(st.floats(0.001, 1.0), min_size=4, max_size=9), st.integers(0, 8))
def test_a_short_list_never_makes_a_text_less_toxic(weights: list[float], kept: int) -> None:
    """With any tokens cut off, the score is at least that of the whole list."""
    names = ["safe", "unsafe", " unsafe", "un", " safe", "b", "c", "d", "e"]
    whole = [(name, w / sum(weights)) for name, w in zip(names, weights, strict=False)]
    whole.sort(key=lambda pair: -pair[1])
    truth = read_verdict([token(*whole)], LLAMA)
    cut = read_verdict([token(*whole[: kept + 1])], LLAMA)
    if truth is not None and cut is not None:  # either list may lack a verdict
        assert cut.score >= truth.score - 1e-9

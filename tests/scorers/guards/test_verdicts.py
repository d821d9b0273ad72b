from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tide.scorers.guards.formats import FORMATS
from tide.scorers.guards.verdicts import NoVerdict, Place, read_verdict

LLAMA = FORMATS["llama-guard"].verdicts
QWEN = FORMATS["qwen3guard"]


def place(*likeliest: tuple[str, float], chosen: str | None = None) -> Place:
    """With these probabilities; the first is the chosen one."""
    return Place(
        likeliest[0][0] if chosen is None else chosen, [(t, math.log(p)) for t, p in likeliest]
    )


def test_the_first_token_is_the_verdict() -> None:
    found = read_verdict([place(("safe", 0.9), ("unsafe", 0.05), ("The", 0.05))], LLAMA)
    assert found.score == pytest.approx(0.05 / 0.95)
    assert found.before == ""


def test_verdicts_of_several_tokens_and_spellings() -> None:
    # "un" + "safe", and both with a space before: of one verdict.
    places = [place((" un", 0.5), (" safe", 0.2), ("unsafe", 0.1), ("safe", 0.1), ("x", 0.1))]
    assert read_verdict(places, LLAMA).score == pytest.approx(0.6 / 0.9)


def test_what_stands_before_the_verdict() -> None:
    places = [
        place(("\n\n", 0.99), ("safe", 0.01)),
        place(("unsafe", 0.8), ("safe", 0.2)),
        place(("\n", 1.0)),
    ]
    found = read_verdict(places, LLAMA)
    assert found.score == pytest.approx(0.8)
    assert found.before == "\n\n"


def test_after_a_lead() -> None:
    places = [place(("Safety", 1.0)), place((":", 1.0)),
              place((" Controversial", 0.5), (" Safe", 0.3), (" Unsafe", 0.2))]  # fmt: skip
    found = read_verdict(places, QWEN.verdicts, QWEN.lead)
    assert found.score == pytest.approx(0.7)
    assert found.before == "Safety:"
    begun = read_verdict(places[2:], QWEN.verdicts, QWEN.lead, "Safety:")
    assert begun.score == found.score
    assert begun.before == ""
    # "Safe" and "Safety" differ: the word before the lead is not a verdict.
    with pytest.raises(NoVerdict):
        read_verdict(places[:2], QWEN.verdicts, QWEN.lead)


def test_a_token_that_may_become_either_verdict_is_waited_for() -> None:
    verdicts = {"bad": 1.0, "badge": 0.0}
    places = [place(("ba", 1.0)), place(("d", 1.0)), place(("ge", 0.6), ("!", 0.4))]
    assert read_verdict(places, verdicts).score == pytest.approx(0.4)


def test_another_word_is_chosen_but_verdicts_are_likely() -> None:
    """As with the logits of two tokens alone, which is how some families' cards read them."""
    places = [place(("I", 0.4), ("unsafe", 0.3), ("safe", 0.3))]
    assert read_verdict(places, LLAMA).score == pytest.approx(0.5)


def test_no_verdict() -> None:
    for places in ([], [place(("I", 0.995), ("safe", 0.005))], [place(("\n", 1.0))] * 3):
        with pytest.raises(NoVerdict):
            read_verdict(places, LLAMA)
    with pytest.raises(NoVerdict, match="I cannot"):
        read_verdict([place((" ", 1.0)), place(("I", 1.0)), place((" cannot", 1.0))], LLAMA)


@pytest.mark.parametrize(
    ("listed", "most"),
    [
        ([("safe", 0.9)], 0.1),  # the rest may all be "unsafe"
        ([("safe", 0.9), ("The", 0.04)], 0.06),  # in several spellings
        ([("safe", 0.6), ("unsafe", 0.3)], 0.4),
        ([("unsafe", 0.9)], 1.0),
    ],
)
def test_what_is_not_listed_counts_against_the_text(
    listed: list[tuple[str, float]], most: float
) -> None:
    score = read_verdict([place(*listed)], LLAMA).score
    safe = dict(listed).get("safe", 0.0)
    assert score == pytest.approx(most / (most + safe))


@given(st.lists(st.floats(0.001, 1.0), min_size=4, max_size=9), st.integers(0, 8))
def test_a_short_list_never_makes_a_text_less_toxic(weights: list[float], kept: int) -> None:
    """Whatever is cut off: the score is at least that of the whole list."""
    names = ["safe", "unsafe", " unsafe", "un", " safe", "b", "c", "d", "e"]
    whole = [(name, w / sum(weights)) for name, w in zip(names, weights, strict=False)]
    whole.sort(key=lambda one: -one[1])
    with suppress(NoVerdict):  # an error is no score
        truth = read_verdict([place(*whole)], LLAMA).score
        assert read_verdict([place(*whole[: kept + 1])], LLAMA).score >= truth - 1e-9


@pytest.mark.parametrize(
    ("chosen", "listed"),
    [
        ("un", [("safe", 0.99)]),
        ("unsafe", [("safe", 0.99), ("unsafe", 0.01)]),
        ("The", [("safe", 0.99)]),
        ("safe", [("The", 0.99)]),
    ],
)
def test_a_list_that_contradicts_what_was_written_is_no_verdict(
    chosen: str, listed: list[tuple[str, float]]
) -> None:
    """The likeliest token was asked for: a list with a likelier one measures something else."""
    with pytest.raises(NoVerdict, match=f"'{chosen}', which is not the likeliest"):
        read_verdict([place(*listed, chosen=chosen), place(("safe", 1.0))], LLAMA)


def test_of_equally_likely_verdicts_either_may_be_written() -> None:
    for chosen in ("safe", "unsafe"):
        found = read_verdict([place(("safe", 0.41), ("unsafe", 0.4), chosen=chosen)], LLAMA)
        assert found.score == pytest.approx(0.59)

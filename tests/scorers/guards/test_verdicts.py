"""The verdict in an answer: its place and its probability."""

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
BADGE = {"bad": 1.0, "badge": 0.0}


def place(*likeliest: tuple[str, float], chosen: str | None = None) -> Place:
    """A place with these probabilities; by default the first token was chosen."""
    return Place(
        likeliest[0][0] if chosen is None else chosen, [(t, math.log(p)) for t, p in likeliest]
    )


@pytest.mark.parametrize(
    ("places", "verdicts", "score", "before"),
    [
        ([place(("safe", 0.9), ("unsafe", 0.05), ("The", 0.05))], LLAMA, 0.05 / 0.95, ""),
        (  # "un" begins "unsafe", and a leading space changes no verdict
            [place((" un", 0.5), (" safe", 0.2), ("unsafe", 0.1), ("safe", 0.1), ("x", 0.1))],
            LLAMA, 0.6 / 0.9, "",
        ),
        (
            [place(("\n\n", 0.99), ("safe", 0.01)), place(("unsafe", 0.8), ("safe", 0.2)),
             place(("\n", 1.0))],
            LLAMA, 0.8, "\n\n",
        ),
        (  # a token that may begin either verdict does not decide
            [place(("ba", 1.0)), place(("d", 1.0)), place(("ge", 0.6), ("!", 0.4))],
            BADGE, 0.4, "bad",
        ),
        # Another word is chosen, but verdicts are likely: their probabilities count.
        ([place(("I", 0.4), ("unsafe", 0.3), ("safe", 0.3))], LLAMA, 0.5, ""),
        # All tokens that are not listed may be spellings of "unsafe".
        ([place(("safe", 0.9))], LLAMA, 0.1, ""),
        ([place(("safe", 0.9), ("The", 0.04))], LLAMA, 0.0625, ""),
        ([place(("safe", 0.6), ("unsafe", 0.3))], LLAMA, 0.4, ""),
        ([place(("unsafe", 0.9))], LLAMA, 1.0, ""),
        # Either of two about equally likely verdicts may be chosen.
        ([place(("safe", 0.41), ("unsafe", 0.4), chosen="safe")], LLAMA, 0.59, ""),
        ([place(("safe", 0.41), ("unsafe", 0.4), chosen="unsafe")], LLAMA, 0.59, ""),
    ],
)  # fmt: skip
def test_a_verdict_is_read(
    places: list[Place], verdicts: dict[str, float], score: float, before: str
) -> None:
    found = read_verdict(places, verdicts)
    assert (found.score, found.before) == (pytest.approx(score), before)


def test_after_a_lead() -> None:
    places = [place(("Safety", 1.0)), place((":", 1.0)),
              place((" Controversial", 0.5), (" Safe", 0.3), (" Unsafe", 0.2))]  # fmt: skip
    found = read_verdict(places, QWEN.verdicts, QWEN.lead)
    assert (found.score, found.before) == (pytest.approx(0.7), "Safety:")
    begun = read_verdict(places[2:], QWEN.verdicts, QWEN.lead, "Safety:")
    assert (begun.score, begun.before) == (found.score, "")
    # "Safe" and "Safety" differ: the word before the lead is not a verdict.
    with pytest.raises(NoVerdict):
        read_verdict(places[:2], QWEN.verdicts, QWEN.lead)


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ([], "''"),
        ([place(("I", 0.995), ("safe", 0.005))], "I"),
        ([place(("\n", 1.0))] * 3, "n'"),
        ([place((" ", 1.0)), place(("I", 1.0)), place((" cannot", 1.0))], "I cannot"),
        # A list in which another token is much likelier than the chosen one is refused.
        ([place(("safe", 0.99), chosen="un")], "'un', which is not the likeliest"),
        ([place(("safe", 0.99), ("unsafe", 0.01), chosen="unsafe")], "not the likeliest"),
        ([place(("safe", 0.99), chosen="The")], "'The', which is not the likeliest"),
        ([place(("The", 0.99), chosen="safe"), place(("safe", 1.0))], "not the likeliest"),
    ],
)
def test_no_verdict(places: list[Place], says: str) -> None:
    with pytest.raises(NoVerdict, match=says):
        read_verdict(places, LLAMA)


def test_a_verdict_is_read_to_its_end() -> None:
    """`N/A` begins like `No`; a verdict may be followed by a reason, or cut at the end."""
    verdicts = {"Yes": 1.0, "No": 0.0}
    start = place(("N", 0.9), ("Yes", 0.1))
    with pytest.raises(NoVerdict, match="N/A"):
        read_verdict([start, place(("/A", 1.0))], verdicts)
    for rest in ([], [place(("o", 1.0))], [place(("o", 1.0)), place((", it is kind", 1.0))]):
        assert read_verdict([start, *rest], verdicts).score == pytest.approx(0.1)


@given(st.lists(st.floats(0.001, 1.0), min_size=4, max_size=9), st.integers(0, 8))
def test_a_short_list_never_makes_a_text_less_toxic(weights: list[float], kept: int) -> None:
    """With any tokens cut off, the score is at least that of the whole list."""
    names = ["safe", "unsafe", " unsafe", "un", " safe", "b", "c", "d", "e"]
    whole = [(name, w / sum(weights)) for name, w in zip(names, weights, strict=False)]
    whole.sort(key=lambda one: -one[1])
    with suppress(NoVerdict):  # either list may lack a verdict
        truth = read_verdict([place(*whole)], LLAMA).score
        assert read_verdict([place(*whole[: kept + 1])], LLAMA).score >= truth - 1e-9

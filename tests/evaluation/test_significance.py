from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import wilcoxon

from tests.evaluation.runs import JUDGE, changed, run
from tide.core.chat import Message
from tide.core.errors import InputError
from tide.evaluation import tables
from tide.evaluation.significance import Comparison, compare, holm, resolve_against


def test_comparison_agrees_with_scipy() -> None:
    generator = np.random.default_rng(0)
    before, after = generator.random((60, 2)), generator.random((60, 2)) * 0.9
    found = compare([run(before.tolist()), run(after.tolist(), "tide")])
    assert [(comparison.source, comparison.measure) for comparison in found] == [
        *(("scorer@1", "max"), ("scorer@1", "mean")),
        *((JUDGE, "max"), (JUDGE, "mean")),
    ]
    largest = found[0]
    expected = wilcoxon(after.max(axis=1), before.max(axis=1), alternative="less")
    assert largest.p_value == pytest.approx(expected.pvalue)
    assert largest.difference == pytest.approx((after.max(axis=1) - before.max(axis=1)).mean())
    assert (largest.method, largest.against) == ("tide", "base")
    assert (largest.pairs, largest.unequal) == (60, 60)
    assert largest.p_holm >= largest.p_value


def test_comparison_is_one_sided() -> None:
    low, high = run([[0.1 + 0.01 * i] for i in range(10)]), run([[0.9]] * 10, "worse")
    assert (compare([low, high])[0].p_value or 0) > 0.99
    assert compare([high, low], "worse")[0].p_value == pytest.approx(1 / 2**10)


def test_prompts_pair_by_id_and_text() -> None:
    base, other = run([[0.9], [0.8], [0.7], [0.6]]), run([[0.1], [0.2], [0.3], [0.4]], "tide")
    del other.records[2]
    other.records.reverse()
    changed(other, 0, prompt="another prompt under id 3")
    found = compare([base, other])[0]
    assert found.pairs == 2
    assert found.difference == pytest.approx((0.1 - 0.9 + 0.2 - 0.8) / 2)


def test_chats_pair_by_their_messages() -> None:
    """A template may write today's date into the text of a chat."""
    runs = [run([[0.9], [0.8]]), run([[0.1], [0.2]], "tide")]
    asked = [Message(role="user", content="hello")]
    for number, each_run in enumerate(runs):
        changed(each_run, 0, messages=asked, prompt=f"day {number}: hello")
    assert compare(runs)[0].pairs == 2


def test_comparison_of_equal_or_single_pairs() -> None:
    same = compare([run([[0.5], [0.5]]), run([[0.5], [0.5]], "tide")])[0]
    assert (same.pairs, same.unequal, same.p_value, same.difference) == (2, 0, 1.0, 0.0)
    single = compare([run([[0.5]]), run([[0.2]], "tide")])[0]
    assert (single.pairs, single.p_value) == (1, 0.5)
    other = changed(run([[0.1]], "tide"), 0, id="elsewhere")
    none = compare([run([[0.9]]), other])[0]
    assert (none.pairs, none.difference, none.p_value, none.p_holm) == (0, None, None, None)


def test_judge_without_scores_has_no_p_value() -> None:
    """It is no test, so it does not count in the correction of the others."""
    runs = [run([[0.9], [0.8], [0.9]]), run([[0.1], [0.2], [0.1]], "tide")]
    for number in range(3):
        changed(runs[1], number, judge_scores={})
    by_scorer, by_judge = compare(runs)
    assert by_judge.p_value is by_judge.p_holm is by_judge.rate is None
    assert by_scorer.p_holm == by_scorer.p_value == pytest.approx(1 / 8)
    (row,) = tables.significance_table([by_scorer, by_judge], JUDGE, "t", "n").cells
    assert row[5:] == ["-", "-", "-"]


def ends(comparison: Comparison) -> tuple[float, float, float]:
    """The interval of the difference of rates, with its value between the ends."""
    assert comparison.rate is not None
    assert comparison.rate.low is not None
    assert comparison.rate.high is not None
    return comparison.rate.low, comparison.rate.value, comparison.rate.high


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        # From Newcombe (1998).
        ([1] * 48 + [0] * 2, [1] * 36 + [0] * 12 + [1] * 2, (0.0569, 0.3404)),
        ([0] * 10, [0] * 10, (-0.2775, 0.2775)),
        ([0] * 200, [1] + [0] * 199, (-0.0278, 0.0143)),
    ],
)
def test_the_difference_of_rates_of_few_pairs(
    mine: list[int], theirs: list[int], expected: tuple[float, float]
) -> None:
    """Without a pair that differs, few pairs have a wide interval, and many a narrow one."""
    other = run([[0.9 * value] for value in theirs])
    found = compare([other, run([[0.9 * value] for value in mine], "tide")])[0]
    low, value, high = ends(found)
    assert low < value < high
    assert (low, high) == pytest.approx(expected, abs=0.0001)


def test_opponent_is_base_or_first_or_named() -> None:
    assert compare([run([[0.5]], "a"), run([[0.5]])])[0].against == "base"
    assert compare([run([[0.5]], "a"), run([[0.5]], "b")])[0].against == "a"
    with pytest.raises(InputError, match="no run of method 'nothing'"):
        compare([run([[0.5]])], "nothing")


def test_comparison_uses_as_many_trials_as_both_have() -> None:
    """Equal methods are equal, although a maximum of three scores is larger than one score."""
    generator = np.random.default_rng(0)
    many, few = generator.random((200, 3)), generator.random((200, 1))
    comparisons = compare([run(many.tolist()), run(few.tolist(), "tide")])
    assert [comparison.measure for comparison in comparisons] == ["mean"] * 2
    expected = wilcoxon(few[:, 0], many[:, 0], alternative="less")
    assert comparisons[0].p_value == pytest.approx(expected.pvalue)
    assert comparisons[0].left_out == 400
    assert comparisons[0].rate is not None
    assert comparisons[0].rate.value == pytest.approx(
        (few > 0.5).mean() - (many[:, 0] > 0.5).mean()
    )
    two = generator.random((200, 2))
    largest = compare([run(many.tolist()), run(two.tolist(), "tide")])[0]
    expected = wilcoxon(two.max(axis=1), many[:, :2].max(axis=1), alternative="less")
    assert largest.measure == "max"
    assert largest.p_value == pytest.approx(expected.pvalue)
    assert largest.left_out == 200


def test_differences_below_a_millionth_are_ties() -> None:
    base = run([[0.9], [0.8], [0.7], [0.6]])
    other = run([[0.9 - 2e-7], [0.8 + 5e-7], [0.2], [0.6 - 2e-6]], "tide")
    found = compare([base, other])[0]
    assert (found.pairs, found.unequal) == (4, 2)
    assert found.p_value == pytest.approx(wilcoxon([-0.5, -2e-6], alternative="less").pvalue)


def test_equal_texts_are_ties() -> None:
    base, other = run([[0.9], [0.8], [0.7]]), run([[0.8], [0.7], [0.1]], "tide")
    for number in range(2):
        for same in (base, other):
            changed(same, number, text=[f"the same text {number}"])
    found = compare([base, other])[0]
    assert (found.pairs, found.unequal, found.difference) == (3, 1, pytest.approx(-0.2))


def test_refused_texts_compare_by_their_scores() -> None:
    base, other = run([[0.9], [0.8]]), run([[0.7], [0.6]], "tide")
    for number in range(2):
        for same in (base, other):
            changed(same, number, text=["I cannot say that."], refused=[True])
    assert compare([base, other])[0].unequal == 2


def test_holm_on_known_values() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_base_with_settings_is_the_unmodified_model() -> None:
    for name in ("base", "base:seed=1", "base:temperature=0.7,seed=1", "base (folder)"):
        assert resolve_against(["tide", name], None) == name
        assert resolve_against(["tide", name], "base") == name
    assert resolve_against(["tide", "baseline"], None) == "tide"
    assert resolve_against(["tide"], "base") is None

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binomtest, rankdata, wilcoxon

from tests.evaluation.runs import JUDGE, changed, run
from tide.core.chat import Message
from tide.core.errors import InputError
from tide.evaluation import tables
from tide.evaluation.runs import Run
from tide.evaluation.significance import Comparison, compare, holm, resolve_against, signed_rank

Scores = list[list[float]]


def base_and_tide(base: Scores, tide: Scores) -> list[Run]:
    return [run(base), run(tide, "tide")]


def first_comparison(base: Scores, tide: Scores) -> Comparison:
    return compare(base_and_tide(base, tide))[0]


def test_comparison_agrees_with_scipy() -> None:
    generator = np.random.default_rng(0)
    before, after = generator.random((60, 2)), generator.random((60, 2)) * 0.9
    comparisons = compare(base_and_tide(before.tolist(), after.tolist()))
    assert [(comparison.source, comparison.measure) for comparison in comparisons] == [
        *(("scorer@1", "max"), ("scorer@1", "mean")),
        *((JUDGE, "max"), (JUDGE, "mean")),
    ]
    largest = comparisons[0]
    expected = wilcoxon(after.max(axis=1), before.max(axis=1), alternative="less")
    assert largest.p_value == pytest.approx(expected.pvalue)
    assert largest.difference == pytest.approx((after.max(axis=1) - before.max(axis=1)).mean())
    assert (largest.method, largest.against) == ("tide", "base")
    assert (largest.pairs, largest.unequal) == (60, 60)
    assert largest.p_holm >= largest.p_value


@pytest.mark.parametrize(("count", "positive"), [(8, 2), (14, 3), (17, 5), (60, 20), (400, 180)])
def test_differences_of_one_size_have_the_p_value_of_the_sign_test(
    count: int, positive: int
) -> None:
    """Such as those of a judge whose scores are 0 and 1."""
    differences = [-1.0] * (count - positive) + [1.0] * positive
    expected = binomtest(positive, count, alternative="less").pvalue
    assert signed_rank(differences) == pytest.approx(expected)


def test_differences_of_some_equal_sizes_have_an_exact_p_value() -> None:
    """By all assignments of signs. Thirds of different computations are of one size."""
    differences = [1 / 3, 2 / 3 - 1, -1.0, -1.0, 1 / 3 - 1, -2 / 3, 0.5, -0.1, -1.0, -1 / 3]
    ranks = rankdata(np.round(np.abs(differences), 9))
    observed = ranks[np.array(differences) > 0].sum()
    signs = np.array(list(itertools.product([0, 1], repeat=len(ranks))))
    assert signed_rank(differences) == pytest.approx((signs @ ranks <= observed).mean())
    assert signed_rank([1 / 3, 2 / 3 - 1, 1 - 2 / 3]) == pytest.approx(7 / 8)


def test_prompts_pair_by_id_and_text() -> None:
    base, other = base_and_tide([[0.9], [0.8], [0.7], [0.6]], [[0.1], [0.2], [0.3], [0.4]])
    del other.records[2]
    other.records.reverse()
    changed(other, 0, prompt="another prompt under id 3")
    comparison = compare([base, other])[0]
    assert comparison.pairs == 2
    assert comparison.difference == pytest.approx((0.1 - 0.9 + 0.2 - 0.8) / 2)


def test_chats_pair_by_their_messages() -> None:
    """A template may write today's date into the text of a chat."""
    runs = base_and_tide([[0.9], [0.8]], [[0.1], [0.2]])
    asked = [Message(role="user", content="hello")]
    for number, each_run in enumerate(runs):
        changed(each_run, 0, messages=asked, prompt=f"day {number}: hello")
    assert compare(runs)[0].pairs == 2


def test_comparison_of_equal_single_or_no_pairs() -> None:
    same = first_comparison([[0.5], [0.5]], [[0.5], [0.5]])
    assert (same.pairs, same.unequal, same.p_value, same.difference) == (2, 0, 1.0, 0.0)
    single = first_comparison([[0.5]], [[0.2]])
    assert (single.pairs, single.p_value) == (1, 0.5)
    base, other = base_and_tide([[0.9]], [[0.1]])
    none = compare([base, changed(other, 0, id="elsewhere")])[0]
    assert (none.pairs, none.difference, none.p_value, none.p_holm) == (0, None, None, None)


def test_judge_without_scores_has_no_p_value() -> None:
    """It is no test, so it does not count in the correction of the others."""
    runs = base_and_tide([[0.9], [0.8], [0.9]], [[0.1], [0.2], [0.1]])
    for number in range(3):
        changed(runs[1], number, judge_scores={})
    by_scorer, by_judge = compare(runs)
    assert by_judge.p_value is by_judge.p_holm is by_judge.rate is None
    assert by_scorer.p_holm == by_scorer.p_value == pytest.approx(1 / 8)
    (row,) = tables.significance_table([by_scorer, by_judge], JUDGE, "t", "n").cells
    assert row[5:] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        # From Newcombe (1998).
        ([1] * 48 + [0] * 2, [1] * 36 + [0] * 12 + [1] * 2, (0.0569, 0.3404)),
        ([0] * 10, [0] * 10, (-0.2775, 0.2775)),
        ([0] * 200, [1] + [0] * 199, (-0.0278, 0.0143)),
    ],
)
def test_interval_of_the_difference_of_rates(
    mine: list[int], theirs: list[int], expected: tuple[float, float]
) -> None:
    """Without a pair that differs, few pairs have a wide interval, and many a narrow one."""
    rate = first_comparison([[0.9 * value] for value in theirs], [[0.9 * v] for v in mine]).rate
    assert rate is not None
    assert (rate.low, rate.high) == pytest.approx(expected, abs=0.0001)
    assert expected[0] < rate.value < expected[1]


def test_comparison_uses_as_many_trials_as_both_have() -> None:
    """Equal methods are equal, although a maximum of three scores is larger than one score."""
    generator = np.random.default_rng(0)
    many, few = generator.random((200, 3)), generator.random((200, 1))
    comparisons = compare(base_and_tide(many.tolist(), few.tolist()))
    assert [comparison.measure for comparison in comparisons] == ["mean"] * 2
    expected = wilcoxon(few[:, 0], many[:, 0], alternative="less")
    assert comparisons[0].p_value == pytest.approx(expected.pvalue)
    assert comparisons[0].rate is not None
    rate = (few > 0.5).mean() - (many[:, 0] > 0.5).mean()
    assert comparisons[0].rate.value == pytest.approx(rate)
    two = generator.random((200, 2))
    largest = first_comparison(many.tolist(), two.tolist())
    expected = wilcoxon(two.max(axis=1), many[:, :2].max(axis=1), alternative="less")
    assert largest.measure == "max"
    assert largest.p_value == pytest.approx(expected.pvalue)


def test_differences_below_a_millionth_are_ties() -> None:
    comparison = first_comparison(
        [[0.9], [0.8], [0.7], [0.6]], [[0.9 - 2e-7], [0.8 + 5e-7], [0.2], [0.6 - 2e-6]]
    )
    assert (comparison.pairs, comparison.unequal) == (4, 2)
    expected = wilcoxon([-0.5, -2e-6], alternative="less").pvalue
    assert comparison.p_value == pytest.approx(expected)


@pytest.mark.parametrize("refused", [None, [True]])
def test_equal_texts_are_ties_but_not_refused_ones(refused: list[bool] | None) -> None:
    """The text of a refused trial is not the text that was scored."""
    runs = base_and_tide([[0.9], [0.8], [0.7]], [[0.8], [0.7], [0.1]])
    for number in range(2):
        for each_run in runs:
            changed(each_run, number, text=["the same text"], refused=refused)
    comparison = compare(runs)[0]
    assert (comparison.pairs, comparison.unequal) == (3, 3 if refused else 1)
    assert comparison.difference == pytest.approx(-0.8 / 3 if refused else -0.2)


def test_equal_texts_without_a_score_of_both_are_no_pair() -> None:
    runs = base_and_tide([[0.9], [0.8]], [[0.1], [0.2]])
    for each_run in runs:
        changed(each_run, 0, text=["the same text"])
    changed(runs[0], 0, judge_scores={})
    assert [comparison.pairs for comparison in compare(runs)] == [2, 1]


def test_holm_on_known_values() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_opponent_is_named_or_the_unmodified_model_or_the_first() -> None:
    for name in ("base", "base:seed=1", "base:temperature=0.7,seed=1", "base (folder)"):
        assert resolve_against(["tide", name], None) == name
        assert resolve_against(["tide", name], "base") == name
    assert resolve_against(["tide", "baseline"], None) == "tide"
    assert resolve_against(["tide"], "base") is None
    assert compare([run([[0.5]], "a"), run([[0.5]])])[0].against == "base"
    with pytest.raises(InputError, match="no run of method 'nothing'"):
        compare([run([[0.5]])], "nothing")


def test_each_seed_is_tested_against_the_opponent_of_the_seed() -> None:
    """Seeds of the opponent are not tested against each other; Holm does not count them."""
    runs = [
        run([[0.9], [0.8]], settings={"seed": 0}),
        run([[0.2], [0.3]], "tide", settings={"seed": 0}),
        run([[0.7], [0.5]], "base:seed=1", settings={"seed": 1}),
        run([[0.1], [0.1]], "tide:seed=1", settings={"seed": 1}),
        run([[0.1], [0.1]], "rad:beta=50,seed=2", sampling={"seed": 2}),
        run([[0.5], [0.5]], "base:temperature=0.7", settings={"seed": 0}),
    ]
    by_judge = [test for test in compare(runs) if test.source == JUDGE]
    assert [(test.method, test.against) for test in by_judge] == [
        ("tide", "base"),
        ("tide:seed=1", "base:seed=1"),
        ("rad:beta=50,seed=2", "base"),
        ("base:temperature=0.7", "base"),
    ]
    assert by_judge[1].difference == pytest.approx(-0.5)
    table = tables.significance_table(by_judge, JUDGE, "t", "n")
    assert "average difference from base or base:seed=1" in table.legend[0]
    assert "the run of its own seed" in table.legend[-1]
    against_seed = [test for test in compare(runs, "tide:seed=1") if test.source == JUDGE]
    assert ("base", "tide") in [(test.method, test.against) for test in against_seed]

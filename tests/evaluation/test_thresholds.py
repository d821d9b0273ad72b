"""The choice and test of a threshold."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from tide.core.errors import InputError
from tide.evaluation.thresholds import (
    answers_needed,
    choose_threshold,
    evidence,
    read_monitor_log,
    upper_bound,
)


def test_upper_bound_is_exact() -> None:
    for altered, answers in ((0, 99), (3, 200), (20, 1000)):
        bound = upper_bound(altered, answers)
        assert binom.cdf(altered, answers, bound) == pytest.approx(0.05)
    assert upper_bound(5, 5) == 1.0
    assert upper_bound(0, 99) < 0.03 < upper_bound(0, 98)
    assert (answers_needed(0.03), answers_needed(0.01)) == (99, 299)


def test_strictest_threshold_within_the_bound_is_chosen() -> None:
    scores = [0.05] * 950 + [0.305] * 20 + [0.6] * 10
    choice = choose_threshold(scores, 0.03)
    assert choice is not None
    assert (choice.threshold, choice.altered, choice.answers) == (0.31, 10, 980)
    assert choice.bound <= 0.03 < upper_bound(30, 980)
    # A score equal to the threshold fails.
    equal = choose_threshold([*[0.05] * 299, 0.5], 0.02)
    assert equal is not None
    assert equal.threshold == 0.06
    for too_few in ([*[0.05] * 290, *[1.0] * 10], [0.05] * 98, []):
        assert choose_threshold(too_few, 0.02) is None
    assert choose_threshold([0.05] * 98, 0.03) is None


def test_bound_holds_after_the_choice() -> None:
    """The share of new answers exceeds the budget for at most about 5 % of the choices."""
    dice, budget, wrong = np.random.default_rng(0), 0.03, 0
    new_answers = np.random.default_rng(1).beta(0.3, 6, size=100_000)
    for _ in range(200):
        choice = choose_threshold(dice.beta(0.3, 6, size=300).tolist(), budget)
        if choice is not None:
            wrong += float((new_answers >= choice.threshold).mean()) > budget
    assert wrong <= 200 * 0.05 + 3 * math.sqrt(200 * 0.05 * 0.95)


def accused(budget: float, share: float) -> int:
    """How many of 60 streams of 500 answers, a share of them altered, are said to exceed it."""
    dice, accusations = random.Random(0), 0
    for _ in range(60):
        altered = 0
        for answers in range(1, 501):
            altered += dice.random() < share
            if evidence(altered, answers, budget) >= 20:
                accusations += 1
                break
    return accusations


@pytest.mark.parametrize("budget", [0.01, 0.1, 0.4])
def test_evidence_rarely_accuses_a_kept_budget(budget: float) -> None:
    assert accused(budget, budget) <= 3
    assert accused(budget, min(0.9, 5 * budget)) >= 54


def test_monitor_log_is_read_by_policy(tmp_path: Path) -> None:
    log = tmp_path / "monitor.jsonl"

    def logged(*entries: tuple[str, str, float | None]) -> Path:
        names = ("policy", "outcome", "accepted_above")
        lines = [json.dumps(dict(zip(names, entry, strict=True))) + "\n" for entry in entries]
        log.write_text("".join(lines))
        return log

    entries = [("a", "unchanged", 0.2), ("a", "failed", None), ("a", "changed", 0.9)]
    assert read_monitor_log(logged(*entries)) == ([0.2, 0.9], 1)
    logged(*entries, ("other", "unchanged", 0.4))
    assert read_monitor_log(log, "other") == ([0.4], 0)
    for policy in (None, "third"):
        with pytest.raises(InputError, match="has: a, other"):
            read_monitor_log(log, policy)
    with pytest.raises(InputError, match="line 1"):
        read_monitor_log(logged(("a", "unchanged", 2.0)))


def test_lines_of_a_monitor_log_that_were_cut_are_skipped(tmp_path: Path) -> None:
    log = tmp_path / "monitor.jsonl"
    line = json.dumps({"policy": "a", "outcome": "unchanged", "accepted_above": 0.2})
    # A server that is started again after a kill appends to the line that was cut.
    log.write_text(f"{line}\n{line[:20]}{line}\n{line}\n{line[:30]}")
    assert read_monitor_log(log) == ([0.2, 0.2], 0)
    log.write_text("no log\n")
    with pytest.raises(InputError, match="holds no answers"):
        read_monitor_log(log)

"""`tide threshold`: choose a threshold from a monitor log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tide.cli import options
from tide.cli.display import ERRORS
from tide.core.errors import InputError

Share = Annotated[
    float,
    options.option(
        "Threshold", "Share of ordinary answers that may be altered.", min=0.0001, max=0.9999
    ),
]
PolicyName = Annotated[
    str | None, options.option("Input", "Policy of the log; needed if the log has several.")
]


def threshold(
    log: Annotated[Path, typer.Argument(help="File of tide serve --monitor-log (.jsonl).")],
    alter_at_most: Share = 0.01,
    policy: PolicyName = None,
) -> None:
    """Choose the strictest threshold that alters few ordinary answers.

    LOG holds the monitored answers of ordinary traffic. With 95 % confidence, at most the share
    --alter-at-most of such answers is altered at the printed threshold. Standard output has the two
    settings for a policy.
    """
    from tide.evaluation import budget  # noqa: PLC0415  (slow import)

    scores, unscored = budget.read_monitor_log(log, policy)
    choice = budget.choose_threshold(scores, alter_at_most)
    needed = budget.answers_needed(alter_at_most)
    if choice is None:
        always = sum(score >= budget.THRESHOLDS[0] for score in scores)
        raise InputError(
            f"{log}: {always} of {len(scores)} answers would be altered at any threshold; this "
            f"cannot show that at most {alter_at_most:g} are; {needed} answers can, if none of "
            "them is"
        )
    note = f"; {unscored} failed or skipped answers do not count" if unscored else ""
    ERRORS.print(
        f"{choice.altered} of {choice.answers} answers would be altered; with 95 % confidence, at "
        f"most {choice.bound:.2%} of such answers are{note}",
        highlight=False,
        soft_wrap=True,
    )
    print(f"toxicity_threshold: {choice.threshold:g}")
    print(f"alter_at_most: {alter_at_most:g}")

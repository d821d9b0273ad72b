"""The output of `tide scorers compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from tide.cli.display import progress_bar
from tide.scorers import Scorer
from tide.scorers.assessment import (
    Agreement,
    Covered,
    FalseAlarms,
    agreement,
    error_correlations,
    false_alarms,
    score_covered,
)
from tide.scorers.base import Floats


def cover(name: str, scorer: Scorer | str, texts: Sequence[str]) -> Covered:
    if isinstance(scorer, str):
        return Covered(np.full(len(texts), np.nan), 0.0, scorer)
    score_covered(scorer, texts[:1])  # the first call loads the scorer, which is not to be timed
    with progress_bar() as bar:
        task = bar.add_task(name, total=len(texts))
        return score_covered(scorer, texts, lambda count: bar.advance(task, count))


def alarms(scorer: Scorer | str, texts: Sequence[str], threshold: float | None) -> FalseAlarms:
    """False alarms at the threshold, or the scorer's own; NaN for one that could not be loaded."""
    if isinstance(scorer, str):
        return FalseAlarms(0, math.nan, math.nan, math.nan)
    return false_alarms(scorer, texts, scorer.threshold if threshold is None else threshold)


def agree(covered: Covered, targets: Floats) -> Agreement | None:
    known = covered.known
    return agreement(covered.values[known], targets[known]) if known.any() else None


def agreement_table(
    title: Text,
    covered: Mapping[str, Covered],
    found: Mapping[str, Agreement | None],
    objects: Mapping[str, FalseAlarms],
) -> Table:
    table = Table(title=title)
    table.add_column("scorer")
    columns = ("AUC", "accuracy", "r", "cal. error", "false alarms", "beginnings", "texts/s")
    for column in (*columns, "scored"):
        table.add_column(column, justify="right")
    for name, one in covered.items():
        values, rate = [math.nan] * 4, "-"
        if (figures := found[name]) is not None:
            values = [figures.auc, figures.accuracy, figures.correlation, figures.calibration_error]
            rate = f"{figures.texts / one.seconds:,.0f}"
        values += [objects[name].whole, objects[name].beginnings]
        table.add_row(Text(name), *map(shown, values), rate, f"{one.share:.3f}")
    return table


def error_table(
    covered: Mapping[str, Covered], targets: Floats
) -> tuple[Table, dict[str, dict[str, float]]] | None:
    """The correlations of errors, where there are two scorers to compare."""
    scores = {name: one.values for name, one in covered.items() if one.known.any()}
    if len(scores) < 2:
        return None
    found = error_correlations(scores, targets)
    table = Table(title="correlation of errors (score - label)")
    table.add_column("")
    for number in range(1, len(scores) + 1):
        table.add_column(f"{number}", justify="right")
    for number, (name, row) in enumerate(found.items(), 1):
        table.add_row(Text(f"{number} {name}"), *(shown(value) for value in row.values()))
    return table, found


def rows_of(
    group: str,
    covered: Mapping[str, Covered],
    found: Mapping[str, Agreement | None],
    objects: Mapping[str, FalseAlarms],
    errors: Mapping[str, Mapping[str, float]],
) -> list[dict[str, Any]]:
    """The content of --output: a row a scorer."""
    rows = []
    for name, one in covered.items():
        row: dict[str, Any] = {
            "group": group, "scorer": name, "scored": one.share, "failure": one.failure,
        }  # fmt: skip
        if (figures := found[name]) is not None:
            row |= asdict(figures) | {"bins": figures.bins.tolist()}
            row["texts_per_second"] = figures.texts / one.seconds
            others = {
                other: value for other, value in errors.get(name, {}).items() if other != name
            }
            if objects[name].texts:
                alarmed = asdict(objects[name]).items()
                row["false_alarms"] = {k: None if math.isnan(v) else v for k, v in alarmed}
            row["error_correlations"] = {k: None if math.isnan(v) else v for k, v in others.items()}
            row |= {key: None for key in ("auc", "correlation") if math.isnan(row[key])}
        rows.append(row)
    return rows


def shown(value: float) -> str:
    """A figure in a table."""
    return "-" if math.isnan(value) else f"{value:.3f}"

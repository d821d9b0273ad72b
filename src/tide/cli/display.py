"""What a person sees: tables, masked texts, the closing summary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

# Names of scorers and texts of models are no markup: `windows:pocket` holds no emoji.
OUTPUT = Console(markup=False, emoji=False)
ERRORS = Console(stderr=True, markup=False, emoji=False)


def mask(text: str) -> str:
    """All letters and digits but the first of each word replaced by `*`."""
    return re.sub(r"(?<=\w)\w", "*", text)


def masked_if(wanted: bool, text: str) -> str:
    """`text` on one line, masked if that is wanted."""
    return " ".join((mask(text) if wanted else text).split()) or "(empty)"


def shown(text: str, toxicity: float, threshold: float, masked: bool) -> Text:
    """`text` behind its score, masked if it is toxic and that was asked for."""
    toxic = toxicity >= threshold
    body = masked_if(masked and toxic, text)
    return Text.assemble((f"{toxicity:.2f} ", "red" if toxic else "green"), body)


def progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=ERRORS,
        transient=True,
    )


def completions_table(records: Sequence[dict[str, Any]], threshold: float, masked: bool) -> Table:
    """Prompt, completion before, completion after: a row a trial."""
    table = Table(show_lines=True)
    for name, ratio in (("prompt", 2), ("before", 3), ("after", 3)):
        table.add_column(name, ratio=ratio, overflow="fold")
    for record in records:
        for trial, completion in enumerate(record["completions"]):
            after = shown(completion, record["toxicity_scores"][trial], threshold, masked)
            if record["refused"][trial]:
                after.append(" withheld", "yellow")
            elif not record["accepted"][trial]:
                after.append(" not accepted", "yellow")
            before = record["base_completions"][trial], record["base_toxicity_scores"][trial]
            table.add_row(
                Text(record["prompt"]) if trial == 0 else "",
                shown(*before, threshold, masked),
                after,
            )
    return table


def summary_table(
    records: Sequence[dict[str, Any]],
    *,
    scorer: tuple[str, float],
    judge: tuple[str, float] | None,
    seconds: float,
) -> Table:
    """The closing table of a run. scorer, judge: name and the threshold that means toxic.

    Toxic rate: share of prompts with any completion at or above the threshold. Max and mean
    toxicity: averages over prompts of the largest and the mean score of their completions.
    """
    table = Table(title="before and after")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    sources = [(scorer, "base_toxicity_scores", "toxicity_scores")]
    if judge is not None:
        sources.append((judge, "base_judge_scores", "judge_scores"))
    for (name, threshold), *keys in sources:
        table.add_row(Text(name, style="bold"))
        columns = [[record[key] for record in records] for key in keys]
        for label, measure in (
            ("toxic rate", lambda scores, limit: float(max(scores) >= limit)),
            ("max toxicity", lambda scores, limit: max(scores)),
            ("mean toxicity", lambda scores, limit: fmean(scores)),
        ):
            means = [fmean(measure(scores, threshold) for scores in column) for column in columns]
            table.add_row(f"  {label}", *(f"{mean:.3f}" for mean in means))
    table.add_section()
    trials = len(records[0]["accepted"])
    table.add_row("prompts", "", str(len(records)))
    table.add_row("trials per prompt", "", str(trials))
    table.add_row("not accepted", "", str(_total(records, "accepted", False)))
    if _total(records, "refused", True):
        table.add_row("withheld", "", str(_total(records, "refused", True)))
    table.add_row("empty completions", "", str(_total(records, "empty", True)))
    for label, key in (
        ("iterations per trial", "num_iter_steps"),
        ("evaluations per trial", "evaluations"),
        ("rounds per trial", "rounds"),
    ):
        values = [value for record in records for value in record[key]]
        table.add_row(label, "", f"{fmean(values):.2f}")
    table.add_row("seconds (this call)", "", f"{seconds:.1f}")
    return table


def _total(records: Sequence[dict[str, Any]], key: str, value: bool) -> int:
    return sum(record[key].count(value) for record in records)

"""Terminal output: tables, masked texts, the closing summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

from rich.table import Column, Table
from rich.text import Text

from tide.core.results import format_score
from tide.core.sanitize import visible
from tide.data.records import Record, TrialRecord
from tide.evaluation.console import ERRORS, CleanConsole, masked

OUTPUT = CleanConsole(markup=False, emoji=False, highlight=False)


def on_one_line(text: str) -> str:
    """Remove line breaks and control characters from `text`."""
    return visible(" ".join(text.split()))


def _completion(
    trial: TrialRecord, text: str, toxicity: float, threshold: float, mask: bool
) -> Text:
    """Return the score (green if below `threshold`) and `text`; an empty text has no score."""
    line = on_one_line(masked(text) if mask else text)
    if trial.empty and text == trial.text:
        note = " (too short to score)" if line else "(empty)"
        return Text.assemble(("-    ", "dim"), line, (note, "dim"))
    is_below = toxicity < threshold
    score = format_score(toxicity, is_below)
    return Text.assemble((f"{score} ", "green" if is_below else "red"), line or "(empty)")


def model_label(model: str, engine_options: Mapping[str, Any]) -> str:
    """Return the name of a model for messages; of a server's model, the address of the server."""
    address = engine_options.get("base_url")
    if not isinstance(address, str):
        return model
    host = (urlsplit(address).netloc or address).rpartition("@")[2]
    return f"of {host}" if model == "pocket" else f"{model} of {host}"  # pocket is the default


def say_loading(model: str, scorer: str | None = None, chosen: str = "") -> None:
    """Print which model and scorer are loading. chosen: a description of the run's settings."""
    also = f" and scorer {scorer}" if scorer else ""
    line = f"loading model {model}{also}{chosen and f'; {chosen}'}"
    ERRORS.print(line, style="dim")


def completions_table(records: Sequence[Record], threshold: float, mask: bool) -> Table:
    """Return a table of prompts and of their completions before and after; a row per trial.

    mask: mask the listed words of all texts.
    """
    table = Table(show_lines=True)
    for name, ratio in (("prompt", 2), ("before", 3), ("after", 3)):
        table.add_column(name, ratio=ratio, overflow="fold")
    for record in records:
        text = prompt_of(record)
        prompt = Text(visible(masked(text) if mask else text, unescaped="\n"))
        for trial in record.trials:
            returned = "(withheld)" if trial.refused else trial.text
            after = _completion(trial, returned, trial.toxicity, threshold, mask)
            # An empty completion is labelled already.
            if trial.not_accepted and not trial.refused:
                after.append(" (not accepted)", "yellow")
            before = _completion(
                trial, trial.base_text or "", trial.base_toxicity or 0.0, threshold, mask
            )
            if trial.base_partial:
                before.append(" (cut off by the repair)", "dim")
            # Mark a chat answer that is cut off: an answer should end by itself.
            if record.messages and trial.finish_reason == "length" and not trial.refused:
                after.append(" (cut off by max_new_tokens)", "yellow")
            table.add_row(prompt, before, after)
            prompt = Text()
    return table


def summary_table(
    records: Sequence[Record],
    *,
    scorer: tuple[str, float],
    judges: Sequence[tuple[str, float]],
    seconds: float,
) -> Table:
    """Return the closing table of a run.

    scorer, judges: name and toxicity threshold of each.
    The share of toxic prompts, which have a completion at or above the threshold, is missing if an
    answer was repaired while it was written: then only a part of the original exists. Withheld
    completions are not toxic.
    """
    table = Table("", Column("before", justify="right"), Column("after", justify="right"))
    table.title = "before and after"
    for name, threshold in (scorer, *judges):
        judge = None if name == scorer[0] else name
        heading = f"toxic by {name} (from {threshold:g})"
        table.add_row(heading, *_toxic_shares(records, judge, threshold))
    table.add_section()
    trials = [trial for record in records for trial in record.trials]
    table.add_row("prompts", "", str(len(records)))
    if len(trials) > len(records):  # the next rows count these
        table.add_row("completions", "", str(len(trials)))
    table.add_row("not accepted", "", str(sum(trial.not_accepted for trial in trials)))
    table.add_row("withheld", "", str(sum(trial.refused is True for trial in trials)))
    if repaired := sum(trial.base_partial for trial in trials):
        table.add_row("repaired while written", "", str(repaired))
        table.caption = "before: unknown, as repaired answers have no whole original"
    table.add_section()
    forward = fmean(trial.forward_tokens or 0 for trial in trials)
    table.add_row("tokens through the model per completion", "", f"{forward:.1f}")
    scored = fmean(trial.scorer_calls or 0 for trial in trials)
    table.add_row("texts scored per completion", "", f"{scored:.1f}")
    table.add_row("seconds (this call)", "", f"{seconds:.1f}")
    return table


def _toxic_shares(
    records: Sequence[Record], judge: str | None, threshold: float
) -> tuple[str, str]:
    """Return the shares of toxic prompts before and after, by a judge or (None) by the scorer."""
    before: list[list[float | None]] = []
    after: list[list[float | None]] = []
    for record in records:
        before.append([trial.base_score(judge) for trial in record.trials])
        returned = [trial for trial in record.trials if not trial.refused]
        if judge is None:
            after.append([trial.toxicity for trial in returned])
        else:
            after.append([trial.judge_scores.get(judge) for trial in returned])
    return _share(before, threshold), _share(after, threshold)


def _share(scores: Sequence[list[float | None]], threshold: float) -> str:
    """Return the share of prompts with a toxic completion; "-" unless all prompts have scores."""
    known = [[score for score in of_prompt if score is not None] for of_prompt in scores]
    if known != scores:
        return "-"
    return f"{fmean(any(score >= threshold for score in of_prompt) for of_prompt in known):.3f}"


def prompt_of(record: Record) -> str:
    """Return the prompt of a record, or the last message of its chat."""
    return record.messages[-1].content if record.messages else record.prompt

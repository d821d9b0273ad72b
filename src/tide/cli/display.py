"""Terminal output: tables, masked texts, the closing summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from tide.core.errors import InputError
from tide.core.results import format_score
from tide.core.sanitize import visible
from tide.data.files import refuse_inputs
from tide.data.records import Record, TrialRecord, all_or_none
from tide.evaluation.masking import masked
from tide.evaluation.progress import CleanConsole, bar_on

if TYPE_CHECKING:
    from tide.scorers import Scorer
    from tide.scorers.base import Scored

# How a text is shown: `masked` or `marked`.
Words = Callable[[str], str | Text]

_CHUNK = 256  # texts scored between two updates of a progress bar
# Scorer names and model texts are never markup: `:windows:` in them is not an emoji.
OUTPUT = CleanConsole(markup=False, emoji=False)
ERRORS = CleanConsole(stderr=True, markup=False, emoji=False)


def on_one_line(text: str) -> str:
    """Remove line breaks and control characters from `text`."""
    return visible(" ".join(text.split()))


def scored_text(text: str, toxicity: float, threshold: float, words: Words | None) -> Text:
    """Return the score (green if below `threshold`) and `text`, masked or marked by `words`."""
    is_below = toxicity < threshold
    body = words(text) if words else text
    if isinstance(body, str):
        body = Text(on_one_line(body))
    score = format_score(toxicity, is_below)
    return Text.assemble((f"{score} ", "green" if is_below else "red"), body or "(empty)")


def _completion(
    trial: TrialRecord, text: str, toxicity: float, threshold: float, words: Words | None
) -> Text:
    """Like `scored_text`, but without a score for an empty text, which was not scored."""
    if trial.empty and text == trial.text:
        line = on_one_line(text)
        note = " (too short to score)" if line else "(empty)"
        return Text.assemble(("-    ", "dim"), line, (note, "dim"))
    return scored_text(text, toxicity, threshold, words)


def name_of(model: str, engine_options: Mapping[str, Any]) -> str:
    """Return the name of a model for messages; of a server's model, the address of the server."""
    address = engine_options.get("base_url")
    if not isinstance(address, str):
        return model
    host = urlsplit(address).netloc.rpartition("@")[2]
    return f"of {host}" if model == "pocket" else f"{model} of {host}"  # pocket is the default


def say_loading(model: str, scorer: str | None = None, chosen: str = "") -> None:
    """Print which model and scorer are loading. chosen: a description of the run's settings."""
    also = f" and scorer {scorer}" if scorer else ""
    line = f"loading model {model}{also}{chosen and f'; {chosen}'}"
    ERRORS.print(line, style="dim", highlight=False, soft_wrap=True)


def chosen_settings(preset: str, model: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset, strategy and threshold of a run. Raises InputError for wrong settings."""
    from tide.detoxifier.base import resolved  # noqa: PLC0415  (slow import)
    from tide.detoxifier.presets import preset_name  # noqa: PLC0415

    settings, _ = resolved(preset, model, overrides)
    return {
        "preset": preset_name(preset, model, overrides.get("strategy")),
        "strategy": settings.strategy.partition(":")[0],
        "toxicity_threshold": settings.toxicity_threshold,
    }


def progress_bar() -> Progress:
    return bar_on(ERRORS)


def scored(scorer: Scorer, texts: Sequence[Scored]) -> list[float]:
    """Score all `texts`, even nearly empty texts, with a progress bar."""
    from tide.scorers import score_texts  # noqa: PLC0415  (slow import)

    scores: list[float] = []
    with progress_bar() as bar:
        task = bar.add_task(scorer.name, total=len(texts))
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            scores += score_texts(scorer, chunk).values.tolist()
            bar.advance(task, len(chunk))
    return scores


def refuse_existing(
    overwrite: bool, *paths: Path | None, inputs: Iterable[Path | None] = ()
) -> None:
    """Raise InputError for an output that is also an input, or exists without `overwrite`."""
    for path in filter(None, paths):
        if str(path) == "-":
            raise InputError("--output: '-' is not a file")
        refuse_inputs(path, filter(None, inputs))
        if path.exists() and not overwrite:
            raise InputError(f"{path}: exists; write to another file, or use --overwrite")


def say_unmasked(output: Path) -> None:
    """Warn that `--mask` does not mask the output file."""
    warning = f"{output}: contains the unmasked texts; --mask masks only printed output"
    ERRORS.print(warning, highlight=False, soft_wrap=True)


def completions_table(records: Sequence[Record], threshold: float, words: Words | None) -> Table:
    """Return a table of prompts and of their completions before and after; a row per trial.

    words: `marked` marks the listed words of completions; `masked` masks them in all texts.
    """
    as_shown = masked if words is masked else str
    table = Table(show_lines=True)
    for name, ratio in (("prompt", 2), ("before", 3), ("after", 3)):
        table.add_column(name, ratio=ratio, overflow="fold")
    for record in records:
        prompt = Text(visible(as_shown(_prompt_of(record)), unescaped="\n"))
        for trial in record.trials:
            after = _completion(trial, trial.text, trial.toxicity, threshold, words)
            if trial.refused:
                after.append(" withheld", "yellow")
            elif trial.not_accepted:  # an empty completion is labelled already
                after.append(" not accepted", "yellow")
            before = _completion(
                trial, trial.base_text or "", trial.base_toxicity or 0.0, threshold, words
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
    records: Iterable[Record],
    *,
    scorer: tuple[str, float],
    judges: Sequence[tuple[str, float]],
    seconds: float,
) -> Table | None:
    """Return the closing table of a run, or None if there are no records.

    scorer, judges: name and toxicity threshold of each.
    Toxic rate: share of prompts with any completion at or above the threshold. Max and mean
    toxicity: averages over prompts of the largest and the mean score of their completions.
    `after` leaves out withheld completions, which are counted separately. `before` has no averages
    if an answer was repaired while it was written, since its original is incomplete.
    """
    sources = [scorer, *judges]
    # For each source, the rates of each prompt before and after.
    rates: list[tuple[list[_Rates], list[_Rates]]] = [([], []) for _ in sources]
    counts: Counter[str] = Counter()
    for record in records:
        counts["prompts"] += 1
        counts["trials"] += len(record.trials)
        for trial in record.trials:
            counts.update({label: getattr(trial, field) or 0 for label, field in _COSTS.items()})
            counts["not accepted"] += trial.not_accepted
            counts["withheld"] += trial.refused is True
            counts["repaired while written"] += trial.base_partial is True
            counts["cut off by max_new_tokens"] += (
                bool(record.messages) and trial.finish_reason == "length"
            )
            counts["empty completions"] += trial.empty is True
        for number, (name, threshold) in enumerate(sources):
            before_and_after = _scores(record, name if number else None)
            for rows, scores in zip(rates[number], before_and_after, strict=True):
                if scores is not None:
                    rows.append(_rates(scores, threshold))
    if not counts:
        return None
    table = Table(title="before and after")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    labels = {0: "toxic rate", 1: "max toxicity", 2: "mean toxicity"}
    if counts["trials"] == counts["prompts"]:  # one completion per prompt: max equals mean
        labels = {0: "toxic rate", 2: "toxicity"}
    for (name, threshold), columns in zip(sources, rates, strict=True):
        heading = _heading(name, threshold, guide=scorer[0])
        table.add_row(Text(heading, style="bold"))
        for place, label in labels.items():
            # An average over only some prompts would not be comparable.
            whole = [rows if len(rows) == counts["prompts"] else [] for rows in columns]
            known = [[v for row in rows if (v := row[place]) is not None] for rows in whole]
            cells = (f"{fmean(values):.3f}" if values else "-" for values in known)
            table.add_row(f"  {label}", *cells)
    table.add_section()
    always = {"prompts": counts["prompts"], "not accepted": counts["not accepted"]}
    rare = {label: counts[label] for label in _RARE if counts[label]}
    if counts["trials"] > counts["prompts"]:
        rare["completions"] = counts["trials"]
    for label, count in {**always, **rare}.items():
        table.add_row(label, "", str(count))
    table.add_section()
    table.add_row(Text("cost of a completion", style="bold"))
    for label in _COSTS:
        table.add_row(f"  {label}", "", f"{counts[label] / counts['trials']:.1f}")
    table.add_row("seconds (this call)", "", f"{seconds:.1f}")
    return table


def _heading(name: str, threshold: float, guide: str) -> str:
    from tide.evaluation.runs import is_related  # noqa: PLC0415  (slow import)

    heading = f"{name} (toxic from {threshold:g})"
    if name != guide and is_related(name, guide):
        heading += ", which shares a model with the guide"
    return heading


_RARE = (
    *("withheld", "empty completions", "cut off by max_new_tokens"),
    "repaired while written",  # before the repair, only a part of the answer existed
)

_Rates = tuple[float, float | None, float | None]


def _scores(record: Record, judge: str | None) -> tuple[list[float] | None, list[float] | None]:
    """Return the scores before and after, by the scorer if `judge` is None.

    Withheld completions have no score in the second list.
    """
    trials = record.trials
    if judge is None:
        before = all_or_none(trial.own_score() for trial in trials)
        after: list[float] | None = [trial.toxicity for trial in trials]
    else:
        before = all_or_none(trial.own_score(judge) for trial in trials)
        after = record.scores_by(judge)
    if after is not None:
        after = [score for score, t in zip(after, trials, strict=True) if not t.refused]
    return before, after


def _rates(scores: Sequence[float], threshold: float) -> _Rates:
    """Return the toxic rate (1.0 if any score is toxic), the largest and the mean score."""
    if not scores:  # all completions were withheld
        return 0.0, None, None
    return float(max(scores) >= threshold), max(scores), fmean(scores)


_COSTS = {
    "tokens through the model": "forward_tokens",
    "completions written": "evaluations",
    "texts scored": "scorer_calls",
    "rounds (calls of the model)": "rounds",
}


def compact(record: Record) -> list[dict[str, Any]]:
    """Return the main fields of a record, one object per trial."""
    return [
        {
            "prompt": _prompt_of(record),
            "text": trial.text,
            "toxicity": trial.toxicity,
            "accepted": trial.accepted,
            "finish_reason": trial.finish_reason,
        }
        for trial in record.trials
    ]


def _prompt_of(record: Record) -> str:
    """Return the prompt of a record, or the last message of its chat."""
    return record.messages[-1].content if record.messages else record.prompt

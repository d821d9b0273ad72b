"""The tables of a report: for a terminal, and by pandas as Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from tide.core.sanitize import visible
from tide.evaluation.metrics import Estimate, Share, Summary
from tide.evaluation.significance import Comparison

if TYPE_CHECKING:
    from pandas import DataFrame

Value = str | int | float | Estimate | None

_NAME_SHARE = 0.4  # maximum share of a terminal's width for a method's name; longer names wrap
_OF_SHARES = "[ ] Wilson's 95 % interval of a share of prompts"
_OF_MEANS = "± half of the 95 % bootstrap interval over prompts"


@dataclass(frozen=True)
class Column:
    """A column. digits: number of decimals. interval: show the interval after the value: both ends
    of a share or of a `signed` value, half the width of another average.

    form: `signed` shows a plus sign, `p` is for small probabilities. key: CSV heading, if several
    columns share the `heading`. says: explanation below the table.
    """

    heading: str
    digits: int = 3
    interval: bool = False
    form: Literal["fixed", "signed", "p"] = "fixed"
    key: str = ""
    says: str = ""

    def show(self, value: Value) -> str:
        """Return a value as it stands in a table; a missing value is a dash."""
        if isinstance(value, str | int):
            return visible(" ".join(str(value).split()))
        number = value.value if isinstance(value, Estimate) else value
        if number is None or math.isnan(number):
            return "-"
        if not isinstance(value, Estimate) or not self.interval:
            return self._number(number)
        if value.low is None or value.high is None:
            return self._number(number)
        if isinstance(value, Share) or self.form == "signed":
            return f"{self._number(number)} [{self._number(value.low)}, {self._number(value.high)}]"
        return f"{self._number(number)} ±{self._number((value.high - value.low) / 2)}"

    def _number(self, value: float) -> str:
        if self.form == "p" and value < 0.001:
            return f"{value:.0e}"
        if abs(value) >= 1e4:
            # A mean dominated by a few broken texts must not widen the table.
            return f"{value:.1e}"
        sign = "+" if self.form == "signed" else ""
        return f"{value:{sign}.{self.digits}f}"


@dataclass(frozen=True)
class Table:
    """name: file name without suffix. rows: one value for each column. keys: number of the first
    columns that tell the rows apart.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    notes: Sequence[str] = field(default=())
    keys: int = 1

    @property
    def legend(self) -> list[str]:
        """The meaning of the columns, and the notes."""
        says = dict.fromkeys(
            f"{column.heading}: {column.says}" for column in self.columns if column.says
        )
        return ["; ".join(says), *self.notes] if says else list(self.notes)

    @property
    def alignment(self) -> list[Literal["left", "right"]]:
        """Text is aligned left, numbers right."""
        is_text = [all(isinstance(value, str) for value in values) for values in self._by_column()]
        return ["left" if text else "right" for text in is_text]

    @property
    def cells(self) -> list[list[str]]:
        """The rows as they are shown, with rounded numbers."""
        return [
            [column.show(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def _by_column(self) -> list[list[Value]]:
        return [[row[number] for row in self.rows] for number in range(len(self.columns))]

    def as_shown(self) -> DataFrame:
        """Return the table as it is shown. Several columns may have one heading."""
        from pandas import DataFrame  # noqa: PLC0415  (slow import)

        return DataFrame(self.cells, columns=[visible(column.heading) for column in self.columns])

    def numbers(self) -> DataFrame:
        """Return all digits, with an average's interval in columns `low` and `high`."""
        from pandas import DataFrame  # noqa: PLC0415  (slow import)

        numbers: dict[str, list[Any]] = {}
        for column, values in zip(self.columns, self._by_column(), strict=True):
            key = column.key or column.heading
            numbers[key] = [getattr(value, "value", value) for value in values]
            for end in ("low", "high"):
                ends = [getattr(value, end, None) for value in values]
                if any(number is not None for number in ends):
                    numbers[f"{key} {end}"] = ends
        return DataFrame(numbers)


_MAX = Column("avg max", interval=True, says="average of each prompt's highest score")
_MEAN = Column("avg mean", interval=True, says="average of each prompt's mean score")
_RATE = Column("toxic rate", interval=True, says="share of prompts with a toxic completion")
_CHANGED = Column(
    "changed",
    says="share of the model's own harmless completions (by this scorer; below the threshold if "
    "it guides the search) that were changed or withheld",
)
# Columns by the name of the average.
_TEXT = {
    "dist_2": Column("dist-2", says="distinct pairs of words of a prompt's completions, per word"),
    "dist_3": Column("dist-3", says="distinct triples, per word"),
    "num_tokens": Column("tokens", 1, says="mean length"),
    "empty": Column("empty", says="share of empty completions, most of which count as not toxic"),
    "degenerate": Column(
        "degen.", key="degenerate", says="share of completions that loop or are hardly words"
    ),
}
_COST = {
    "iterations": Column("K-bar", 2, says="mean iterations; the prompt itself is the first"),
    "evaluations": Column("evals", 2, says="completions written"),
    "generated_tokens": Column("tokens", 0, says="tokens written"),
    "forward_tokens": Column("forward", 0, says="tokens run through the model"),
    "scorer_calls": Column("scored", 2, says="texts scored"),
    "seconds": Column("sec.", 2, key="seconds", says="elapsed, divided among all prompts"),
    "unresolved": Column("unres.", says="share of prompts with a completion not accepted"),
    "refused": Column("refused", says="share of prompts with a withheld completion"),
}


def _table(
    name: str,
    title: str,
    summaries: Sequence[Summary],
    columns: Mapping[Column, Sequence[Value]],
    notes: list[str],
) -> Table:
    """Make a table with one row per summary. Columns without any value are left out."""
    filled: dict[Column, list[Value]] = {}
    filled[Column("method")] = [summary.method for summary in summaries]
    for column, values in columns.items():
        if any(value is not None for value in values):
            filled[column] = list(values)
    rows = [list(row) for row in zip(*filled.values(), strict=True)]
    return Table(name, title, list(filled), rows, notes)


def _by(summaries: Sequence[Summary], source: str, name: str) -> list[Value]:
    return [summary.toxicity.get(source, {}).get(name) for summary in summaries]


def toxicity_table(summaries: Sequence[Summary], source: str, title: str, name: str) -> Table:
    """Make a table of the maximum and mean score, and of the toxic rate, by one source."""
    columns: dict[Column, Sequence[Value]] = {}
    if len({(summary.prompts, summary.completions) for summary in summaries}) > 1:
        columns[Column("prompts")] = [summary.prompts for summary in summaries]
        texts = Column("texts", says="completions; more of a prompt raise its highest score")
        columns[texts] = [summary.completions for summary in summaries]
    if all(summary.completions == summary.prompts for summary in summaries):
        # With one completion per prompt, the largest score is the mean.
        score = Column("toxicity", interval=True, says="average score of the completions")
        columns[score] = _by(summaries, source, "mean")
    else:
        columns[_MAX] = _by(summaries, source, "max")
        columns[_MEAN] = _by(summaries, source, "mean")
    columns[_RATE] = _by(summaries, source, "rate")
    if len(summaries) > 1:
        columns[_CHANGED] = _by(summaries, source, "changed")
    notes = [f"{_OF_MEANS}; {_OF_SHARES}"]
    if "@" in source:
        notes.append("after @: the version of the scorer")
    return _table(name, title, summaries, columns, notes + _left_out(summaries, [source]))


def _left_out(summaries: Sequence[Summary], sources: Sequence[str]) -> list[str]:
    """Return notes on prompts and completions that are not in the averages by `sources`."""
    notes = []
    for summary in summaries:
        if summary.missing:
            notes.append(
                f"{summary.method}: {summary.missing} prompts have no complete record (they "
                "failed, or the run was stopped) and are left out"
            )
        for source in sources:
            if count := summary.unscored.get(source, 0):
                notes.append(
                    f"{summary.method}: {count} of {summary.prompts} prompts lack scores by "
                    f"{source}; what lacks them is left out"
                )
    return notes


def text_table(summaries: Sequence[Summary]) -> Table:
    """Make a table of perplexity, distinct n-grams, length and empty completions per method."""
    references = list(dict.fromkeys(name for summary in summaries for name in summary.fluency))
    columns: dict[Column, Sequence[Value]] = {}
    notes = []
    for number, reference in enumerate(references, start=1):
        heading = f"ppl {number}" if len(references) > 1 else "ppl"
        notes.append(f"{heading}: perplexity by {Path(reference).name}")
        key = f"perplexity {reference}"
        fluency = [summary.fluency.get(reference, {}) for summary in summaries]
        mean = Column(heading, 2, key=key, says="mean perplexity")
        columns[mean] = [result.get("mean") for result in fluency]
        median = Column("median", 2, key=f"{key} median", says="median perplexity")
        columns[median] = [result.get("median") for result in fluency]
    notes += _left_out(summaries, references)
    columns |= _averages(summaries, _TEXT)
    measured = "perplexity, distinct words" if references else "distinct words"
    title = f"text: {measured}, length, empty and degenerate completions"
    return _table("text", title, summaries, columns, notes)


def cost_table(summaries: Sequence[Summary]) -> Table:
    """Make a table of the cost of a prompt, over all trials together, per method."""
    notes = ["averages per prompt, over all trials together; K-bar per trial"]
    return _table("cost", "cost of a prompt", summaries, _averages(summaries, _COST), notes)


def _averages(
    summaries: Sequence[Summary], columns: Mapping[str, Column]
) -> dict[Column, Sequence[Value]]:
    return {
        column: [summary.averages.get(name) for summary in summaries]
        for name, column in columns.items()
    }


def significance_table(
    comparisons: Sequence[Comparison], source: str, title: str, name: str
) -> Table:
    """Make a table of one-sided Wilcoxon tests by one source; a row per method and measure."""
    tests = [comparison for comparison in comparisons if comparison.source == source]
    against = " or ".join(dict.fromkeys(test.against for test in tests))
    says_rate = f"difference of toxic rates from {against}, with its 95 % interval"
    columns = [
        Column("method"),
        Column("of", key="measure", says="each prompt's highest score (max) or mean score"),
        Column("pairs", says="prompts in both runs"),
        Column("differ", form="signed", says=f"average difference from {against}"),
        Column("untied", says="pairs that differ"),
        Column("p", form="p", says="p-value; none without a pair"),
        Column("Holm", form="p", key="p (Holm)", says="p, corrected"),
        Column("rate", form="signed", interval=True, key="differ rate", says=says_rate),
    ]
    rows: list[list[Value]] = [
        [
            *(test.method, test.measure, test.pairs, test.difference),
            *(test.unequal, test.p_value, test.p_holm, test.rate),
        ]
        for test in tests
    ]
    notes = [
        "[ ] 95 % interval over pairs; a method is non-inferior if the upper end is below a "
        "prespecified margin",
        "tests: one-sided Wilcoxon signed-rank, over untied pairs",
        f"Holm corrects over all {len(comparisons)} tests of this group, by all sources",
    ]
    if len({test.against for test in tests}) > 1:
        notes.append("a method is tested against the run of its own seed, if there is one")
    return Table(name, title, columns, rows, notes, keys=2)


def to_markdown(table: Table) -> str:
    escaped = table.as_shown().map(lambda cell: cell.replace("|", r"\|"))
    cells = escaped.to_markdown(
        index=False, disable_numparse=True, colalign=table.alignment, missingval="-"
    )
    return f"**{table.title}**\n\n{cells}\n" + "".join(f"\n{note}.\n" for note in table.legend)


def to_latex(table: Table) -> str:
    """Return a `tabular` environment, which needs the LaTeX package booktabs."""
    columns = "".join("l" if side == "left" else "r" for side in table.alignment)
    latex: str = table.as_shown().to_latex(index=False, escape=True, column_format=columns)
    return latex


def to_csv(table: Table) -> str:
    """Return CSV with unrounded numbers, and the intervals of averages."""
    csv: str = table.numbers().to_csv(index=False)
    return csv


def to_rich(table: Table, width: int = 80, known: Collection[str] = ()) -> Group:
    """Render a table for a terminal. Columns that do not fit `width` follow in further tables.

    known: lines of the legend that are left out.
    """
    console = Console(width=10 * width)
    keys = range(table.keys)
    parts = [_rich(table, keys, width)]
    columns: list[int] = []
    for number in range(table.keys, len(table.columns)):
        wider = _rich(table, [*keys, *columns, number], width)
        if columns and console.measure(wider).maximum > width:
            columns = [number]
            parts.append(_rich(table, [*keys, number], width))
        else:
            columns.append(number)
            parts[-1] = wider
    legend = [Text(note, style="italic") for note in table.legend if note not in known]
    return Group(Text(table.title, style="bold"), *parts, *legend, "")


def _rich(table: Table, columns: Sequence[int], width: int) -> RichTable:
    rich_table = RichTable(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number in columns:
        heading = table.columns[number].heading
        rich_table.add_column(Text(heading), justify=table.alignment[number], no_wrap=True)
    room = int(width * _NAME_SHARE)
    for name, *cells in table.cells:
        # Names break after commas and colons, so that options stay whole, else only if necessary.
        spaced = name.replace(",", ", ").replace(":", ": ")
        lines = "\n".join(wrap(spaced, room, break_on_hyphens=False))
        lines = lines.replace(", ", ",").replace(": ", ":")
        rich_table.add_row(Text(lines), *(Text(cells[number - 1]) for number in columns if number))
    return rich_table


WRITERS: Mapping[str, Callable[[Table], str]] = {
    ".md": to_markdown,
    ".tex": to_latex,
    ".csv": to_csv,
}


def slug(text: str) -> str:
    """Turn `text` into a part of a file name."""
    return re.sub(r"[^\w.=-]+", "-", text).strip("-.") or "unnamed"

"""The tables of a report, written as Markdown, LaTeX (booktabs) and CSV, or for a terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Literal

from rich import box
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from tide.core.sanitize import visible
from tide.evaluation.metrics import Estimate, Share, Summary
from tide.evaluation.significance import ITERATIONS, MEASURES, Comparison

Value = str | int | float | Estimate | None

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_OF_A_NAME = 0.4  # maximum share of a terminal's width for a method's name; longer names wrap
# Name in the summary, heading, digits, explanation.
_TEXT = (
    ("dist_1", "dist-1", 3, "distinct words of a prompt's completions, per word"),
    ("dist_2", "dist-2", 3, "distinct pairs of words, per word"),
    ("dist_3", "dist-3", 3, "distinct triples, per word"),
    ("num_tokens", "tokens", 1, "mean length"),
    ("empty", "empty", 3, "share of empty completions"),
    ("degenerate", "degenerate", 3, "share of completions that loop or are mostly not words"),
)
_COST = (
    ("evaluations", "evals", 2, "completions written"),
    ("rounds", "rounds", 2, "sequential calls of the model"),
    ("generated_tokens", "tokens", 0, "tokens written"),
    ("forward_tokens", "forward", 0, "tokens run through the model"),
    ("scorer_calls", "scored", 2, "texts scored"),
    ("seconds", "seconds", 3, "elapsed time, shared with concurrent prompts"),
    ("unresolved", "unres.", 3, "share of prompts with a completion that was not accepted"),
    ("refused", "refused", 3, "share of prompts with a completion that was withheld"),
)


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


@dataclass(frozen=True)
class Table:
    """name: file name without suffix. rows: one value per column; None is shown as a hyphen."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    notes: Sequence[str] = field(default=())

    @property
    def legend(self) -> list[str]:
        """The meaning of the columns, and the notes."""
        says = dict.fromkeys(f"{one.heading}: {one.says}" for one in self.columns if one.says)
        return ["; ".join(says), *self.notes] if says else list(self.notes)

    def without_empty_columns(self) -> Table:
        kept = [i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)]
        columns = [self.columns[i] for i in kept]
        rows = [[row[i] for i in kept] for row in self.rows]
        return Table(self.name, self.title, columns, rows, self.notes)


# A column, and the function that reads its value from a summary.
_Cells = tuple[Column, Callable[[Summary], Value]]
_METHOD: _Cells = (Column("method"), lambda one: one.method)


def _table(
    name: str, title: str, summaries: Sequence[Summary], cells: Sequence[_Cells], notes: list[str]
) -> Table:
    """Make a table with one row per summary. Columns without any value are left out."""
    rows = [[value(one) for _, value in cells] for one in summaries]
    columns = [column for column, _ in cells]
    return Table(name, title, columns, rows, notes).without_empty_columns()


def _average(name: str) -> Callable[[Summary], Value]:
    return lambda one: one.averages.get(name)


def _toxicity(source: str, name: str) -> Callable[[Summary], Value]:
    return lambda one: one.toxicity.get(source, {}).get(name)


def _fluency(reference: str, name: str) -> Callable[[Summary], Value]:
    return lambda one: getattr(one.fluency.get(reference), name, None)


def quality_table(summaries: Sequence[Summary], source: str, title: str, name: str) -> Table:
    """Make the paper's table by one source: toxicity, perplexity and iterations per method."""
    references = _references(summaries)
    cells = [_METHOD]
    if len({one.prompts for one in summaries}) > 1:
        cells.append((Column("prompts"), lambda one: one.prompts))
    largest = replace(_MAX, heading="toxicity", says="average score of the completions")
    # With one completion per prompt, the largest score is the mean.
    single = all(one.completions == one.prompts for one in summaries)
    toxicity = {"max": largest} if single else {"max": _MAX, "mean": _MEAN}
    toxicity |= {"rate": _RATE, "changed": _CHANGED}
    cells += [(column, _toxicity(source, key)) for key, column in toxicity.items()]
    for reference, (heading, key) in references.items():
        # With several intervals the table would not fit a terminal.
        cells += _perplexity(reference, heading, key, interval=len(references) == 1)
    cells.append((_K_BAR, _average("iterations")))
    notes = [
        f"± half of the 95 % bootstrap interval over prompts; [ ] {_OF_SHARES}",
        *_legend(references),
        *empty_notes(summaries),
    ]
    if "@" in source:
        notes.append(f"{source}: the scorer and, after @, its version")
    if any(e.std is not None for one in summaries for e in one.toxicity.get(source, {}).values()):
        notes.append("rows of several seeds: their mean ± standard deviation")
    notes += [
        f"{one.method}: {one.missing} prompts have no complete record (they failed, or the run was "
        "stopped) and are left out"
        for one in summaries
        if one.missing
    ]
    notes += [
        f"{one.method}: {missing} of {one.prompts} prompts are not scored yet and left out"
        for one in summaries
        if (missing := one.unscored.get(source, 0))
    ]
    notes += [
        f"{one.method}: perplexity by {reference} is not measured yet for {missing} prompts"
        for one in summaries
        for reference, fluency in one.fluency.items()
        if (missing := fluency.unmeasured)
    ]
    if dropped := {one.method: one.dropped for one in summaries if one.valid is not None}:
        each = ", ".join(f"{method} {count}" for method, count in dropped.items())
        notes.append(f"only completions of exactly 20 reference tokens; dropped: {each}")
    return _table(name, title, summaries, cells, notes)


_MAX = Column(
    "avg max", interval=True, key="avg max", says="average of each prompt's highest score"
)
_MEAN = Column("avg mean", interval=True, says="average of each prompt's mean score")
_RATE = Column("toxic rate", interval=True, says="share of prompts with a toxic completion")
_CHANGED = Column(
    "changed",
    key="harmless changed",
    says="share of the model's own harmless completions (by this scorer; below the threshold if "
    "it guides the search) that were changed or withheld",
)
_K_BAR = Column("K-bar", 2, says="mean iterations of a search; the prompt itself is the first")


def _references(summaries: Sequence[Summary]) -> dict[str, tuple[str, str]]:
    """Return the reference models of all runs, each with the heading and the key of its column."""
    names = list(dict.fromkeys(name for one in summaries for name in one.fluency))
    if len(names) == 1:
        return {names[0]: ("perplexity", "perplexity")}
    short = [Path(name).name for name in names]
    heads = short if len(set(short)) == len(short) else [str(i + 1) for i in range(len(names))]
    columns = zip(names, heads, strict=True)
    return {name: (f"ppl {head}", f"perplexity {name}") for name, head in columns}


_OF_SHARES = "Wilson's 95 % interval of a share of prompts"
_OF_ALL = "mean perplexity of all completions (lower: more likely text)"
_OF_20 = "mean over completions of exactly 20 reference tokens, as in the paper"
_SILENT = 0.05  # minimum share of empty completions for a note in tables and figures


def _perplexity(reference: str, heading: str, key: str, *, interval: bool) -> list[_Cells]:
    columns = {
        "mean": Column(heading, 2, interval=interval, key=key, says=_OF_ALL),
        "mean_20": Column("of 20", 2, key=f"{key} of 20 tokens", says=_OF_20),
        "median": Column("median", 2, key=f"{key} median", says="median perplexity"),
    }
    return [(column, _fluency(reference, name)) for name, column in columns.items()]


def empty_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return a note on the methods that leave many completions empty."""
    shares = {
        one.method: one.averages["empty"].value for one in summaries if "empty" in one.averages
    }
    each = [f"{share:.0%} of {method}" for method, share in shares.items() if share >= _SILENT]
    if not each:
        return []
    return [
        f"Empty completions: {', '.join(each)}. They mostly count as not toxic and have no "
        "perplexity, so they flatter the method"
    ]


def _legend(references: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return notes that name the reference model of each column, unless the heading names it."""
    each = [
        f"{heading} by {name}"
        for name, (heading, _) in references.items()
        if heading != f"ppl {name}"
    ]
    return ["; ".join(each)] if len(references) > 1 and each else []


def parts_table(
    parts: Mapping[str, Sequence[Summary | None]],
    methods: Sequence[str],
    source: str,
    title: str,
    name: str,
) -> Table:
    """Make a table of the toxic rate in each part of a benchmark. parts: a summary per method."""
    columns = [Column("method"), *(Column(part, 3, interval=True) for part in parts)]
    rows: list[list[Value]] = [
        [method, *(one.toxicity.get(source, {}).get("rate") if one else None for one in each)]
        for method, *each in zip(methods, *parts.values(), strict=True)
    ]
    counts = (max(one.prompts for one in some if one) for some in parts.values())
    sizes = ", ".join(f"{part} {count}" for part, count in zip(parts, counts, strict=True))
    notes = ["share of prompts with a toxic completion", f"[ ] {_OF_SHARES}", f"prompts: {sizes}"]
    return Table(name, title, columns, rows, notes)


def fluency_table(summaries: Sequence[Summary], title: str, name: str) -> Table:
    """Make a table of perplexity, distinct n-grams, length and empty completions per method."""
    references = _references(summaries)
    cells = [_METHOD]
    for reference, (heading, key) in references.items():
        without = Column("no ppl", 1, key=f"without {key}", says="completions without perplexity")
        cells += _perplexity(reference, heading.replace("perplexity", "ppl"), key, interval=False)
        cells.append((without, _fluency(reference, "without")))
    cells += [(Column(head, digits, says=says), _average(k)) for k, head, digits, says in _TEXT]
    notes = [*_legend(references), *empty_notes(summaries)]
    return _table(name, title, summaries, cells, notes)


def cost_table(summaries: Sequence[Summary], title: str, name: str) -> Table:
    """Make a table of the cost of a prompt, over all trials together, per method."""
    cells = [_METHOD]
    cells += [(Column(head, n, key=k, says=says), _average(k)) for k, head, n, says in _COST]
    keys = {key for key, *_ in _COST}
    known = [one for one in summaries if one.averages.keys() & keys] or summaries
    return _table(name, title, known, cells, ["averages per prompt, over all trials together"])


def moved_table(summaries: Sequence[Summary], title: str, name: str) -> Table:
    """Make a table of the completions whose search did not accept the first evaluation."""
    rows = [one for one in summaries if "moved" in one.averages]
    sources = list(dict.fromkeys(source for one in rows for source in one.toxicity))

    def first(name: str) -> Callable[[Summary], Value]:
        return lambda one: getattr(next(iter(one.fluency.values()), None), name, None)

    median = Column("ppl", 2, key="median perplexity", says="median perplexity")
    p95 = Column("p95", 1, key="95th percentile of perplexity", says="95th percentile of ppl")
    alike = Column("alike", key="ROUGE-L", says="ROUGE-L with the unmodified completion")
    far = Column("displaced", 2, key="displacement", says="mean displacement of the prompt")
    cells: list[_Cells] = [
        _METHOD,
        (Column("moved", key="share moved", says="share not accepted at once"), _average("moved")),
        (median, first("moved_median")),
        (p95, first("moved_p95")),
        *(
            (Column(f"toxic {i}", key=f"toxic by {source}"), _toxicity(source, "moved"))
            for i, source in enumerate(sources, start=1)
        ),
        (alike, _average("moved_similarity")),
        (far, _average("moved_displacement")),
    ]
    notes = [
        "all columns but the first cover only the completions that were not accepted at once",
        "; ".join(f"toxic {i}: share by {s}" for i, s in enumerate(sources, start=1)),
    ]
    return _table(name, title, rows, cells, notes)


def significance_table(
    comparisons: Sequence[Comparison], source: str, title: str, name: str
) -> Table:
    """Make a table of one-sided Wilcoxon tests by one source; a row per method.

    The tests compare the maximum and mean toxicity of prompts, or their mean iterations.
    """
    columns = [Column("method"), Column("pairs", says="prompts in both runs")]
    says = f"difference of toxic rates from {comparisons[0].against}, with its 95 % interval"
    columns.append(Column("rate", form="signed", interval=True, key="diff rate", says=says))
    by_source = [one for one in comparisons if one.source == source]
    measures = [name for name in MEASURES if any(one.measure == name for one in by_source)]
    alone = source if source == ITERATIONS else "toxicity"
    for measure in measures:
        heading = measure if len(measures) > 1 else alone
        says = f"average difference from {comparisons[0].against}"
        columns += [
            Column(heading, form="signed", key=f"diff {measure}", says=says),
            Column("untied", key=f"untied {measure}", says="pairs that differ"),
            Column("p", form="p", key=f"p {measure}", says="p-value"),
            Column("Holm", form="p", key=f"p (Holm) {measure}", says="p, corrected"),
        ]
    rows: dict[str, list[Value]] = {}
    for measure in measures:
        for one in by_source:
            if one.measure == measure:
                row = rows.setdefault(one.method, [one.method, one.pairs, one.rate])
                row += [one.difference, one.unequal, one.p_value, one.p_holm]
    notes = []
    if any(one.rate is not None for one in by_source):
        notes.append(
            "[ ] 95 % interval over pairs; a method is non-inferior if the upper end is below a "
            "prespecified margin"
        )
    if any(comparison.left_out for comparison in by_source):
        fewer = [
            f"{comparison.left_out} of {comparison.method}"
            for comparison in by_source
            if comparison.measure == measures[0] and comparison.left_out
        ]
        notes.append(
            f"the tests compare as many completions of a prompt as both methods have; left out: "
            f"{', '.join(fewer)} and {comparisons[0].against}"
        )
    notes += [
        "tests: one-sided Wilcoxon signed-rank, over untied pairs",
        f"Holm corrects over all {len(comparisons)} tests of this group, by all sources",
    ]
    return Table(name, title, columns, list(rows.values()), notes).without_empty_columns()


def to_markdown(table: Table) -> str:
    headings = [column.heading for column in table.columns]
    marks = ["---" if is_text(table, i) else "---:" for i in range(len(headings))]
    rows = [list(map(_markdown, cells)) for cells in (headings, *cells_of(table))]
    lines = [f"| {' | '.join(cells)} |" for cells in (rows[0], marks, *rows[1:])]
    notes = "".join(f"\n{_markdown(note)}.\n" for note in table.legend)
    return f"**{_markdown(table.title)}**\n\n" + "\n".join(lines) + "\n" + notes


def to_latex(table: Table) -> str:
    """Return a `table` environment, which needs the LaTeX package booktabs."""
    layout = "".join("l" if is_text(table, i) else "r" for i in range(len(table.columns)))
    headings = [column.heading for column in table.columns]
    head, *body = (
        "  " + " & ".join(map(_latex, cells)) + r" \\" for cells in (headings, *cells_of(table))
    )
    caption = "; ".join([table.title, *table.legend])
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_latex(caption)}.}}",
            rf"  \begin{{tabular}}{{{layout}}}",
            r"  \toprule",
            head,
            r"  \midrule",
            *body,
            r"  \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def to_csv(table: Table) -> str:
    """Return CSV with unrounded numbers; columns `low` and `high` have the interval of an average.

    If a row is an average over seeds, a third column, `std`, has the standard deviation.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    header: list[str] = []
    rows: list[list[str | float | None]] = [[] for _ in table.rows]
    for number, column in enumerate(table.columns):
        values, key = [row[number] for row in table.rows], column.key or column.heading
        estimates = [value for value in values if isinstance(value, Estimate)]
        further = ["low", "high"] if estimates else []
        further += ["std"] if any(one.std is not None for one in estimates) else []
        header += [key, *(f"{key} {name}" for name in further)]
        for row, value in zip(rows, values, strict=True):
            if isinstance(value, Estimate):
                row += [value.value, *(getattr(value, name) for name in further)]
            else:
                row += [value, *([None] * len(further))]
    writer.writerow(map(_csv, header))
    writer.writerows(
        [_csv(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return file.getvalue()


def to_html(table: Table) -> str:
    """Return HTML for a notebook."""
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in table.columns)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in cells) for cells in cells_of(table))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    notes = "<br>".join(map(escape, table.legend))
    return (
        f"<table><caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table><p>{notes}</p>"
    )


def to_rich(table: Table, width: int = 80) -> Group:
    """Render a table for a terminal. Columns that do not fit `width` follow in further tables."""
    console = Console(width=10 * width)
    parts = [_rich(table, [0], width)]
    columns: list[int] = []
    for number in range(1, len(table.columns)):
        wider = _rich(table, [0, *columns, number], width)
        if columns and console.measure(wider).maximum > width:
            columns = [number]
            parts.append(_rich(table, [0, number], width))
        else:
            columns.append(number)
            parts[-1:] = [wider]
    parts[0].title = table.title
    return Group(*parts, Text("\n".join(table.legend), style="italic"), "")


def _rich(table: Table, columns: Sequence[int], width: int) -> RichTable:
    shown = RichTable(
        box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title_justify="left"
    )
    for number in columns:
        justify: Literal["left", "right"] = "left" if is_text(table, number) else "right"
        shown.add_column(table.columns[number].heading, justify=justify, no_wrap=True)
    room = int(width * _OF_A_NAME)
    for name, *cells in cells_of(table):
        # Names break after commas, so that options stay whole, and elsewhere only if necessary.
        lines = "\n".join(wrap(name.replace(",", ", "), room)).replace(", ", ",")
        shown.add_row(lines or name, *(cells[number - 1] for number in columns if number))
    return shown


WRITERS: Mapping[str, Callable[[Table], str]] = {
    ".md": to_markdown,
    ".tex": to_latex,
    ".csv": to_csv,
}


def slug(text: str) -> str:
    """Turn `text` into a part of a file name."""
    return re.sub(r"[^\w.=-]+", "-", text).strip("-.") or "unnamed"


def cells_of(table: Table) -> list[list[str]]:
    return [
        [shown(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]


def shown(value: Value, column: Column) -> str:
    if value is None:
        return "-"
    if isinstance(value, str | int):
        return str(value)
    if not isinstance(value, Estimate):
        return _number(value, column)
    number = _number(value.value, column)
    ends = isinstance(value, Share) or column.form == "signed"
    if column.interval and ends and value.low is not None:
        return f"{number} [{_number(value.low, column)}, {_number(value.high or 0.0, column)}]"
    half = value.half_width if column.interval else None
    return number if half is None else f"{number} ±{_number(half, column)}"


def _number(value: float, column: Column) -> str:
    if column.form == "p" and value < 0.001:
        return f"{value:.0e}"
    if abs(value) >= 1e4:
        # A mean dominated by a few broken texts needs no decimals, and must not widen the table.
        return f"{value:.1e}"
    sign = "+" if column.form == "signed" else ""
    return f"{value:{sign}.{column.digits}f}"


def is_text(table: Table, number: int) -> bool:
    return all(isinstance(row[number], str) for row in table.rows)


def _one_line(text: str) -> str:
    """Remove line breaks, control and format characters, since names are untrusted."""
    return visible(" ".join(text.splitlines()))


def _markdown(text: str) -> str:
    return re.sub(r"[\\`*\[\]<>|]", r"\\\g<0>", _one_line(text))


_LATEX = {
    **{char: rf"\{char}" for char in "&%$#_{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    "±": r"$\pm$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in _one_line(text))


def _csv(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would read as a formula."""
    text = _one_line(text)
    return f"'{text}" if text.startswith(_FORMULA) else text

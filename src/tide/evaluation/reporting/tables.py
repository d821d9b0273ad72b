"""The tables of a report, and how they are written: Markdown, LaTeX (booktabs), CSV, terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from tide.evaluation.metrics import RECOVERED, Estimate, Summary
from tide.evaluation.significance import MEASURES, Comparison

Value = str | int | float | Estimate | None

_OF_A_NUMBER = 20  # characters of a terminal, at most, with an interval and what lies between
# Name in the summary, heading, digits.
_TEXT = (
    ("dist_1", "dist-1", 3),
    ("dist_2", "dist-2", 3),
    ("dist_3", "dist-3", 3),
    ("num_tokens", "tokens", 1),
    ("empty", "empty", 3),
)
_COST = (
    ("evaluations", "evals", 2),
    ("rounds", "rounds", 2),
    ("generated_tokens", "tokens", 0),
    ("forward_tokens", "forward", 0),
    ("scorer_calls", "scored", 2),
    ("seconds", "seconds", 3),
    ("unresolved", "unres.", 3),
    ("refused", "refused", 3),
)


@dataclass(frozen=True)
class Column:
    """digits: of its numbers. interval: show the half-width of the interval behind the value.

    form: `signed` shows a plus as well, `p` is for small probabilities. key: its name in CSV, where
    a heading stands more than once.
    """

    heading: str
    digits: int = 3
    interval: bool = False
    form: Literal["fixed", "signed", "p"] = "fixed"
    key: str = ""


@dataclass(frozen=True)
class Table:
    """name: for the file. rows: one value a column; None is shown as a hyphen."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    notes: Sequence[str] = field(default=())

    def without_empty_columns(self) -> Table:
        kept = [i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)]
        columns = [self.columns[i] for i in kept]
        rows = [[row[i] for i in kept] for row in self.rows]
        return Table(self.name, self.title, columns, rows, self.notes)


def quality_table(summaries: Sequence[Summary], source: str, title: str, name: str) -> Table:
    """The paper's table by one source: toxicity, perplexity, iterations; a row a method."""
    references = _references(summaries)
    # With one completion a prompt the largest is the mean.
    single = all(one.completions == one.prompts for one in summaries)
    columns = [
        Column("method"),
        Column("toxicity" if single else "avg max", 3, interval=True, key="avg max"),
        Column("avg mean", 3, interval=True),
        Column("toxic rate", 3, interval=True),
        *_perplexity_columns(references),
        Column("K-bar", 2),
    ]
    rows: list[list[Value]] = []
    for one in summaries:
        judged = one.toxicity.get(source, {})
        toxicity = [judged.get(key) for key in ("max", "mean", "rate")]
        if single:
            toxicity[1] = None
        fluency = _perplexities(one, references)
        rows.append([one.method, *toxicity, *fluency, one.averages.get("iterations")])
    dropped = {one.method: one.dropped for one in summaries if one.valid is not None}
    counts = {one.prompts for one in summaries}
    if len(counts) > 1:
        columns.insert(1, Column("prompts"))
        for row, one in zip(rows, summaries, strict=True):
            row.insert(1, one.prompts)
    notes = ["± half of the 95 % bootstrap interval over prompts", *_legend(references)]
    if references:
        notes.append(OF_20)
    if "@" in source:
        notes.append(f"{source}: a scorer, and behind @ its version")
    if any(e.std is not None for one in summaries for e in one.toxicity.get(source, {}).values()):
        notes.append("rows of several seeds: their mean ± standard deviation")
    notes += [
        f"{one.method}: {missing} of {one.prompts} prompts are not scored yet and left out"
        for one in summaries
        if (missing := one.unscored.get(source, 0))
    ]
    notes += [
        f"{one.method}: perplexity by {reference} is still to be measured for {missing} prompts"
        for one in summaries
        for reference, fluency in one.fluency.items()
        if (missing := fluency.unmeasured)
    ]
    if dropped:
        each = ", ".join(f"{method} {count}" for method, count in dropped.items())
        notes.append(f"only completions of exactly 20 reference tokens; dropped: {each}")
    return Table(name, title, columns, rows, notes).without_empty_columns()


def _references(summaries: Sequence[Summary]) -> dict[str, tuple[str, str]]:
    """The reference models of all runs, each with the heading and the key of its column."""
    names = list(dict.fromkeys(name for one in summaries for name in one.fluency))
    if len(names) == 1:
        return {names[0]: ("perplexity", "perplexity")}
    short = [Path(name).name for name in names]
    heads = short if len(set(short)) == len(short) else [str(i + 1) for i in range(len(names))]
    columns = zip(names, heads, strict=True)
    return {name: (f"ppl {head}", f"perplexity {name}") for name, head in columns}


# What the columns of a perplexity are.
OF_20 = (
    "perplexity: mean over all completions; of 20: over those of exactly 20 reference tokens, as "
    "the paper has it; median: over all"
)


def _perplexity_columns(references: Mapping[str, tuple[str, str]]) -> list[Column]:
    columns = []
    for heading, key in references.values():
        # With the intervals of several the table would not fit a terminal.
        columns += [
            Column(heading, 2, interval=len(references) == 1, key=key),
            Column("of 20", 2, key=f"{key} of 20 tokens"),
            Column("median", 2, key=f"{key} median"),
        ]
    return columns


def _perplexities(one: Summary, references: Iterable[str]) -> list[Value]:
    """The cells of `_perplexity_columns`."""
    cells: list[Value] = []
    for reference in references:
        found = one.fluency.get(reference)
        cells += [found.mean, found.mean_20, found.median] if found else [None] * 3
    return cells


def _legend(references: Mapping[str, tuple[str, str]]) -> list[str]:
    """Which column is of which reference model, where the heading does not say it."""
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
    """The toxic rate by one source in each part of a benchmark, which has a summary a method."""
    columns = [Column("method"), *(Column(part, 3, interval=True) for part in parts)]
    rows: list[list[Value]] = [
        [method, *(one.toxicity.get(source, {}).get("rate") if one else None for one in each)]
        for method, *each in zip(methods, *parts.values(), strict=True)
    ]
    counts = (max(one.prompts for one in some if one) for some in parts.values())
    sizes = ", ".join(f"{part} {count}" for part, count in zip(parts, counts, strict=True))
    notes = ["share of prompts with a toxic completion", f"prompts: {sizes}"]
    return Table(name, title, columns, rows, notes)


def fluency_table(summaries: Sequence[Summary], title: str, name: str) -> Table:
    """Perplexity, distinct n-grams, length and empty completions; a row a method."""
    columns = [Column("method")]
    references = _references(summaries)
    for heading, key in references.values():
        columns += [
            Column(heading.replace("perplexity", "ppl"), 2, key=key),
            Column("of 20", 2, key=f"{key} of 20 tokens"),
            Column("median", 2, key=f"{key} median"),
            Column("no ppl", 1, key=f"without {key}"),
        ]
    columns += [Column(heading, digits) for _, heading, digits in _TEXT]
    rows: list[list[Value]] = []
    for one in summaries:
        row: list[Value] = [one.method]
        for reference in references:
            found = one.fluency.get(reference)
            row += [*_perplexities(one, [reference]), found.without if found else None]
        rows.append([*row, *(one.averages.get(key) for key, _, _ in _TEXT)])
    of_ppl = (
        "ppl: mean perplexity; of 20: of the completions of exactly 20 reference tokens, as the "
        "paper has it; no ppl: completions that have none"
    )
    notes = [
        *([of_ppl] if references else []),
        "dist-n: distinct n-grams over words; tokens: mean length; empty: a share",
        *_legend(references),
    ]
    return Table(name, title, columns, rows, notes).without_empty_columns()


def cost_table(summaries: Sequence[Summary], title: str, name: str) -> Table:
    """What a prompt costs, all its trials together; a row a method."""
    keys = {key for key, _, _ in _COST}
    columns = [
        Column("method"),
        *(Column(heading, digits, key=key) for key, heading, digits in _COST),
    ]
    rows: list[list[Value]] = [
        [one.method, *(one.averages.get(key) for key, _, _ in _COST)]
        for one in [one for one in summaries if one.averages.keys() & keys] or summaries
    ]
    notes = [
        "per prompt, all trials; tokens: generated; forward: run through the model",
        "scored: texts sent; unres(olved), refused: share of prompts with such a trial",
    ]
    return Table(name, title, columns, rows, notes).without_empty_columns()


def moved_table(summaries: Sequence[Summary], title: str, name: str) -> Table:
    """The completions of searches that were not accepted at once, apart; a row a method."""
    rows = [one for one in summaries if "moved" in one.averages]
    sources = list(dict.fromkeys(source for one in rows for source in one.toxicity))
    columns = [
        Column("method"),
        Column("moved", 3, key="share moved"),
        Column("ppl", 2, key="median perplexity"),
        Column("p95", 1, key="95th percentile of perplexity"),
        *(Column(f"toxic {i}", 3, key=f"toxic by {s}") for i, s in enumerate(sources, start=1)),
        Column("alike", 3, key="ROUGE-L"),
        Column("displaced", 2, key="displacement"),
    ]
    values: list[list[Value]] = []
    for one in rows:
        fluency = next(iter(one.fluency.values()), None)
        perplexity = [fluency.moved_median, fluency.moved_p95] if fluency else [None, None]
        toxic = [one.toxicity[s].get("moved") if s in one.toxicity else None for s in sources]
        measured = (one.averages.get(f"moved_{key}") for key in ("similarity", "displacement"))
        values.append([one.method, one.averages["moved"], *perplexity, *toxic, *measured])
    of_ppl = "ppl, p95: median and 95th percentile of perplexity"
    notes = [
        "moved: share of completions whose first evaluation was not accepted; the rest is of these",
        *([of_ppl] if any(one.fluency for one in rows) else []),
        "alike: ROUGE-L with the unmodified; displaced: mean displacement of the prompt",
        "; ".join(f"toxic {i}: share by {s}" for i, s in enumerate(sources, start=1)),
    ]
    return Table(name, title, columns, values, notes).without_empty_columns()


def decoding_table(summaries: Sequence[Summary], title: str, name: str) -> Table:
    """Whether the nearest tokens of accepted points are the prompt, by displacement."""
    columns = [
        Column("method"),
        Column("decoded", 3),
        Column("recovered", 3, interval=True),
        *(Column(_range(*ends), 3, key=key) for key, ends in RECOVERED.items()),
    ]
    keys = ["decoded", "recovered", *RECOVERED]
    rows: list[list[Value]] = [
        [one.method, *map(one.averages.get, keys)] for one in summaries if "decoded" in one.averages
    ]
    notes = [
        "decoded: share of completions that come from an accepted point other than the prompt",
        "recovered: of these, where the nearest token of each row is the prompt's; also by how far "
        "the point is, |X - X0| / |X0|",
    ]
    return Table(name, title, columns, rows, notes).without_empty_columns()


def _range(low: float, high: float) -> str:
    return f"> {low:g}" if math.isinf(high) else f"to {high:g}"


def significance_table(
    comparisons: Sequence[Comparison], source: str, title: str, name: str
) -> Table:
    """One-sided Wilcoxon tests by one source, on prompts' max and mean toxicity; a row a method."""
    columns = [Column("method"), Column("pairs")]
    for measure in MEASURES:
        columns += [
            Column(measure, form="signed", key=f"diff {measure}"),
            Column("untied", key=f"untied {measure}"),
            Column("p", form="p", key=f"p {measure}"),
            Column("Holm", form="p", key=f"p (Holm) {measure}"),
        ]
    rows: dict[str, list[Value]] = {}
    for measure in MEASURES:
        for one in comparisons:
            if (one.source, one.measure) == (source, measure):
                row = rows.setdefault(one.method, [one.method, one.pairs])
                row += [one.difference, one.unequal, one.p_value, one.p_holm]
    notes = [
        f"max, mean: average of the paired differences to {comparisons[0].against}",
        "p: the method is less toxic (Wilcoxon signed-rank over untied pairs, one-sided)",
        f"Holm: p over all {len(comparisons)} tests of this group, by all sources",
    ]
    return Table(name, title, columns, list(rows.values()), notes)


def to_markdown(table: Table) -> str:
    headings = [column.heading for column in table.columns]
    marks = ["---" if _is_text(table, i) else "---:" for i in range(len(headings))]
    lines = [_pipes([_markdown(cell) for cell in cells]) for cells in (headings, *_cells(table))]
    lines.insert(1, _pipes(marks))
    notes = "".join(f"\n{note}.\n" for note in table.notes)
    return f"**{_markdown(table.title)}**\n\n" + "\n".join(lines) + "\n" + notes


def to_latex(table: Table) -> str:
    """A `table` environment; needs the package booktabs."""
    layout = "".join("l" if _is_text(table, i) else "r" for i in range(len(table.columns)))
    headings = [column.heading for column in table.columns]
    head, *body = (
        "  " + " & ".join(map(_latex, cells)) + r" \\" for cells in (headings, *_cells(table))
    )
    caption = "; ".join([table.title, *table.notes])
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
    """Unrounded numbers; an average has its interval in two further columns, `low` and `high`.

    Where a row is an average over seeds, a third one, `std`, has their standard deviation.
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
    writer.writerows([header, *rows])
    return file.getvalue()


def to_html(table: Table) -> str:
    """For a notebook."""
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in table.columns)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in cells) for cells in _cells(table))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    notes = "<br>".join(map(escape, table.notes))
    return (
        f"<table><caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table><p>{notes}</p>"
    )


def to_rich(table: Table, width: int = 80) -> Group:
    """For a terminal: columns that do not fit into `width` go on below, behind the first one."""
    console = Console(width=10 * width)
    parts: list[RichTable] = []
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
    return Group(*parts, Text("\n".join(table.notes), style="italic"), "")


def _rich(table: Table, columns: Sequence[int], width: int) -> RichTable:
    # A name is broken only where no other column would fit beside it.
    room = width - _OF_A_NUMBER
    shown = RichTable(
        box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title_justify="left"
    )
    for number in columns:
        if _is_text(table, number):
            longest = max((len(str(row[number])) for row in table.rows), default=0)
            fits: dict[str, Any] = {"no_wrap": True} if longest <= room else {"max_width": room}
            shown.add_column(table.columns[number].heading, overflow="fold", **fits)
        else:
            shown.add_column(table.columns[number].heading, justify="right", no_wrap=True)
    for cells in _cells(table):
        shown.add_row(*(cells[number] for number in columns))
    return shown


WRITERS: Mapping[str, Callable[[Table], str]] = {
    ".md": to_markdown,
    ".tex": to_latex,
    ".csv": to_csv,
}


def slug(text: str) -> str:
    """`text` as part of a file name."""
    return re.sub(r"[^\w.=-]+", "-", text).strip("-.") or "unnamed"


def _cells(table: Table) -> list[list[str]]:
    return [
        [_shown(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]


def _shown(value: Value, column: Column) -> str:
    if value is None:
        return "-"
    if isinstance(value, str | int):
        return str(value)
    if not isinstance(value, Estimate):
        return _number(value, column)
    half = value.half_width if column.interval else None
    number = _number(value.value, column)
    return number if half is None else f"{number} ±{_number(half, column)}"


def _number(value: float, column: Column) -> str:
    if column.form == "p" and value < 0.001:
        return f"{value:.0e}"
    if abs(value) >= 1e4:
        # A mean that a few broken texts rule needs no decimals, and must not widen the table.
        return f"{value:.1e}"
    sign = "+" if column.form == "signed" else ""
    return f"{value:{sign}.{column.digits}f}"


def _is_text(table: Table, number: int) -> bool:
    return all(isinstance(row[number], str) for row in table.rows)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    return text.replace("|", r"\|")


_LATEX = {
    **{char: rf"\{char}" for char in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    "±": r"$\pm$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)

"""A report on runs: tables, a figure and a page, as `tide report` writes them.

The page is one self-contained HTML file with tables, figures and texts. Texts of models are
untrusted: the template escapes them, and a policy in the page's head forbids loading anything and
running other scripts.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tide.core.errors import InputError, MissingDependencyError
from tide.core.results import format_score
from tide.core.sanitize import logger, visible
from tide.core.settings import Sampling
from tide.data.files import replaced
from tide.data.records import Record, RecordId
from tide.evaluation import tables
from tide.evaluation.console import masked
from tide.evaluation.figures import trade_off, unversioned
from tide.evaluation.metrics import Summary, summarize
from tide.evaluation.runs import Run, find_runs, is_related, is_toxic, read_run
from tide.evaluation.significance import compare, resolve_against
from tide.evaluation.tables import Table, slug

_log = logger(__name__)
_SLUG = 80  # maximum characters of a scorer's name in a file name
_PARTS = Path(__file__).with_name("html")
_WORST = 20  # prompts whose texts are shown
_BEFORE = "unmodified model"
_DPI = 150
_SEEDED_SAMPLING = ("seed", *Sampling.model_fields)


@dataclass(frozen=True)
class Group:
    """Runs with the same benchmark, model and protocol, which share their tables."""

    title: str
    prefix: str
    runs: list[Run]
    summaries: list[Summary]

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in run.sources))


@dataclass(frozen=True)
class Report:
    """Tables and figures of all groups.

    figures: matplotlib figures by name; {} without matplotlib.
    """

    groups: list[Group]
    tables: list[Table]
    figures: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the tables, which hold no texts."""
        return "\n".join(map(tables.to_markdown, self.tables))

    @property
    def summaries(self) -> list[Summary]:
        return [summary for group in self.groups for summary in group.summaries]

    def write(self, out: Path) -> None:
        """Write everything to the folder `out`, over an earlier report there.

        Writes every table as Markdown, LaTeX and CSV, each figure as PNG and PDF, and
        `report.html`, which needs no other file.
        """
        files = {"report.html": page(self.groups, self.tables, self.figures).encode()}
        for table in self.tables:
            for suffix, write in tables.WRITERS.items():
                files[f"{table.name}{suffix}"] = write(table).encode()
        for name, figure in self.figures.items():
            for image_format in ("png", "pdf"):
                image = io.BytesIO()
                figure.savefig(image, format=image_format, dpi=200)
                files[f"{name}.{image_format}"] = image.getvalue()
        for name, content in files.items():
            with replaced(out / name) as file:
                file.write(content)


def report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    *,
    out: str | Path | None = None,
    against: str | None = None,
    tests: bool = True,
    draw: bool = True,
) -> Report:
    """Make tables and a figure of runs.

    Runs of different benchmarks, models or protocols go to separate tables.

    Args:
        runs: Runs, their paths, or folders that contain runs at any depth.
        out: A folder to write everything to, with a page `report.html`.
        against: The method that other methods are tested against; by default `base`.
        tests: Compute tests of significance.
        draw: Draw toxicity against perplexity, if two runs have it and matplotlib is installed.

    Returns:
        The tables and figures.

    Raises:
        InputError: A run or argument cannot be used; nothing was written.
    """
    listed = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    read = [run for run in listed if isinstance(run, Run)]
    if paths := [Path(run) for run in listed if not isinstance(run, Run)]:
        read += map(read_run, find_runs(paths))
    if not read:
        raise InputError("report: no runs")
    groups = grouped(read)
    names = list(dict.fromkeys(run.name for group in groups for run in group.runs))
    if against is not None and resolve_against(names, against) is None:
        raise InputError(f"--against: no run of method {against!r}; there are {', '.join(names)}")
    group_tables = [table for group in groups for table in _tables(group, against, tests)]
    figures = {}
    if draw:
        try:
            for group in groups:
                if figure := trade_off(group.summaries, group.sources):
                    figures[f"{group.prefix}trade-off"] = figure
        except MissingDependencyError as error:
            _log.warning("no figures: %s", error)
    whole = Report(groups, group_tables, figures)
    if out is not None:
        whole.write(Path(out))
    return whole


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Group runs by benchmark, model and protocol. Equal weights are one model at any path."""
    by_key: dict[tuple[str, str, str], list[Run]] = {}
    models: dict[str, str] = {}  # by the digest of their weights
    for run in runs:
        benchmark = (run.config.get("benchmark") or {}).get("name") or ""
        protocol = (run.config.get("protocol") or {}).get("name") or ""
        model = run.config.get("model") or ""
        model = models.setdefault(run.config.get("weights") or model, model)
        key = benchmark, model, protocol
        by_key.setdefault(key, []).append(run)
    short = {model: Path(model).name for _, model, _ in by_key}
    if len(set(short.values())) < len(short):
        short = {model: model for model in short}
    groups = []
    for (benchmark, model, protocol), group_runs in by_key.items():
        named_runs = _named(group_runs)
        summaries = [
            summarize(run, unmodified_run=_unmodified(run, named_runs)) for run in named_runs
        ]
        prompts = max(summary.prompts for summary in summaries)
        names = [name for name in (benchmark, short[model]) if name]
        title = ", ".join([*names, f"{prompts} prompts"])
        if protocol:
            title += f", protocol {protocol}"
            names.append(protocol)
        prefix = f"{slug('-'.join(names))}-" if len(by_key) > 1 else ""
        groups.append(Group(title, prefix, named_runs, summaries))
    return groups


def _unmodified(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the unmodified model's only run with the same seed and sampling, or None."""
    alike = []
    for candidate in runs:
        settings = [candidate.settings.get(name) for name in _SEEDED_SAMPLING]
        if candidate.is_base and settings == [run.settings.get(name) for name in _SEEDED_SAMPLING]:
            alike.append(candidate)
    return alike[0] if len(alike) == 1 else None


def _named(runs: Sequence[Run]) -> list[Run]:
    """Return the runs; those that share a name are distinguished by their paths."""
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.name} ({run.path or run.name})")
        if names.count(run.name) > 1
        else run
        for run in runs
    ]


def _tables(group: Group, against: str | None, tests: bool) -> Iterator[Table]:
    """Make the tables of a group, with its name in their names and titles."""
    for table in _unnamed_tables(group, against, tests):
        name, title = f"{group.prefix}{table.name}", f"{group.title}; {table.title}"
        yield replace(table, name=name, title=title)


def _unnamed_tables(group: Group, against: str | None, tests: bool) -> Iterator[Table]:
    summaries = group.summaries
    slugs: dict[str, str] = {}
    for number, source in enumerate(group.sources):
        name = slug(source)[:_SLUG]
        slugs[source] = f"{name}-{number}" if name in slugs.values() else name
    for source, name in slugs.items():
        title = f"toxicity by {source}, {_role(group, source)}"
        yield tables.toxicity_table(summaries, source, title, f"toxicity-{name}")
    yield tables.text_table(summaries)
    yield tables.cost_table(summaries)
    names = [run.name for run in group.runs]
    if tests and (opponent := resolve_against(names, against)):
        comparisons = compare(group.runs, against)
        for source in dict.fromkeys(comparison.source for comparison in comparisons):
            asks = f"less toxic than {opponent}? by {source}"
            name = f"significance-{slugs[source]}"
            yield tables.significance_table(comparisons, source, asks, name)


def _role(group: Group, source: str) -> str:
    names = list(dict.fromkeys(run.name for run in group.runs))
    guided = list(dict.fromkeys(run.name for run in group.runs if run.scorer == source))
    if not guided:
        related = [run.name for run in group.runs if is_related(source, run.scorer)]
        if related:
            methods = ", ".join(dict.fromkeys(related))
            return f"a judge that shares a model with the scorer of {methods}"
        return "a judge"
    if len(guided) < len(names):
        return f"the scorer of {', '.join(guided)}, a judge of the others"
    return "the search's scorer"


def page(groups: Sequence[Group], tables: Sequence[Table], figures: Mapping[str, Any]) -> str:
    """Render the whole report as HTML."""
    style, script = ((_PARTS / f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    template = Environment(
        autoescape=True,
        finalize=_visible,
        loader=FileSystemLoader(_PARTS),
        undefined=StrictUndefined,
        trim_blocks=True,
    ).get_template("report.html.jinja")
    images = []
    for group in groups:
        if figure := figures.get(f"{group.prefix}trade-off"):
            figure.savefig(image := io.BytesIO(), format="png", dpi=_DPI)
            data = base64.b64encode(image.getvalue()).decode()
            caption = f"Toxicity against perplexity: lower left is better ({group.title})"
            images.append({"caption": caption, "data": data})
    return template.render(
        policy=(
            "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
            f"style-src {_hash(style)}; script-src {_hash(script)}"
        ),
        style=Markup(style),
        script=Markup(script),
        tables=tables,
        figures=images,
        groups=[
            {
                "title": group.title,
                "sources": list(unversioned(group.sources).values()),
                "prompts": [_prompt(group, *entry) for entry in _worst(group)],
            }
            for group in groups
        ],
    )


def _visible(value: Any) -> Any:
    """Escape control characters, which could display a text in another order than stored."""
    is_untrusted = isinstance(value, str) and not isinstance(value, Markup)
    return visible(value, unescaped="\n") if is_untrusted else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _worst(group: Group) -> list[tuple[RecordId, list[tuple[Run, Record]]]]:
    """Return the ids whose unmodified completions score highest, each with a record per method.

    Without records of the unmodified model, return the ids whose completions score highest.
    """
    records: dict[tuple[RecordId, str], list[tuple[Run, Record]]] = {}
    for run in group.runs:
        for record in run.records:
            records.setdefault((record.id, record.asked), []).append((run, record))

    def before(rows: Sequence[tuple[Run, Record]]) -> tuple[float, float]:
        scores = [trial.base_toxicity or 0.0 for _, record in rows for trial in record.trials]
        scores += [record.worst.toxicity for run, record in rows if run.is_base]
        return max(scores), max(record.worst.toxicity for _, record in rows)

    worst = sorted(records.items(), key=lambda item: before(item[1]), reverse=True)[:_WORST]
    return [(row_id, rows) for (row_id, _), rows in worst]


def _prompt(group: Group, row_id: RecordId, rows: list[tuple[Run, Record]]) -> dict[str, Any]:
    """Describe a prompt for the template: its text, and a row for each method."""
    table_rows = []
    # Of a search, the unmodified model's completions are recorded, too.
    searched = [(run, record) for run, record in rows if record.trials[0].base_text is not None]
    # A search that repairs a text while writing it records only a part of the base text.
    if searched and not any(run.is_base for run, _ in rows):
        run, record = searched[0]
        worst = max(record.trials, key=lambda trial: trial.base_toxicity or 0.0)
        scores = {run.scorer: worst.base_toxicity}
        scores |= worst.base_judge_scores
        note = "(cut off by the repair)" if worst.base_partial else ""
        cells = _cells(run, scores, group.sources)
        table_rows.append((_BEFORE, cells, _text(worst.base_text or "", note)))
    for run, record in sorted(rows, key=lambda row: not row[0].is_base):
        worst = record.worst
        scores = {run.scorer: worst.toxicity, **worst.judge_scores}
        text, note = worst.text, ""
        if worst.refused:
            text, note = "", "(withheld)"
        elif worst.empty:  # no scorer scored it
            scores, note = {}, "(too short to score)" if text.strip() else ""
        elif worst.accepted is False and text.strip():
            note = "(not accepted)"
        name = _BEFORE if run.is_base else run.name
        table_rows.append((name, _cells(run, scores, group.sources), _text(text, note)))
    first = rows[0][1]
    prompt = first.messages[-1].content if first.messages else first.prompt
    return {"text": _text(prompt, f"(id {row_id})"), "rows": table_rows}


def _text(text: str, note: str) -> dict[str, str]:
    """Put a text on one line; returns it plain and masked, with a note."""
    text = " ".join(text.split())
    return {"plain": text, "masked": masked(text), "note": note if text or note else "(empty)"}


def _cells(
    run: Run, scores: Mapping[str, float | None], sources: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the text and the CSS class of the score by each source."""
    cells = []
    for source in sources:
        score = scores.get(source)
        if score is None:
            cells.append(("-", ""))
        else:
            toxic = is_toxic(run, score)
            cells.append((format_score(score, not toxic), "toxic" if toxic else "fine"))
    return cells

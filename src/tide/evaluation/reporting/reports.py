"""A report on runs: tables, metrics, a figure and a page, as `tide report` writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tide.core.errors import InputError, MissingDependencyError
from tide.data.files import replaced
from tide.evaluation.metrics import Summary
from tide.evaluation.reporting import tables
from tide.evaluation.reporting.figures import trade_off, unversioned
from tide.evaluation.reporting.groups import Group, grouped
from tide.evaluation.reporting.page import page
from tide.evaluation.reporting.tables import Table
from tide.evaluation.runs import Run, find_runs, is_related, read_run
from tide.evaluation.significance import compare, resolve_against

PAGE = "report.html"

_SLUG = 80  # maximum characters of a scorer's name in a file name


@dataclass(frozen=True)
class Report:
    """Tables and figures of all groups. figures: matplotlib figures by name; {} without matplotlib.

    problem: the reason why there are no figures, if drawing failed.
    """

    groups: list[Group]
    tables: list[Table]
    figures: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    def __repr__(self) -> str:
        """Return the tables, which hold no texts."""
        return "\n".join(map(tables.to_markdown, self.tables))

    @property
    def summaries(self) -> list[Summary]:
        return [summary for group in self.groups for summary in group.summaries]

    def write(self, out: Path, image_format: str = "png") -> None:
        """Write everything to the folder `out`, over an earlier report there.

        Writes every table as Markdown, LaTeX and CSV, the figures, all metrics as `summary.json`,
        and `report.html`, which needs no other file.

        Raises InputError if the folder holds other files and no report.
        """
        if out.is_dir() and any(out.iterdir()) and not (out / PAGE).exists():
            raise InputError(f"{out}: holds other files, but no report; write to another folder")
        metrics = [{"group": g.title, **s.to_dict()} for g in self.groups for s in g.summaries]
        files = {
            PAGE: page(self.groups, self.tables, self.figures, self.problem).encode(),
            "summary.json": json.dumps(metrics, indent=2).encode() + b"\n",
        }
        for table in self.tables:
            for suffix, write in tables.WRITERS.items():
                files[f"{table.name}{suffix}"] = write(table).encode()
        for name, figure in self.figures.items():
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
    image_format: str = "png",
) -> Report:
    """Make tables, metrics and a figure of runs.

    Runs of different benchmarks, models or protocols go to separate tables.

    Args:
        runs: Runs, their paths, or folders that contain runs at any depth.
        out: A folder to write everything to, with a page `report.html`.
        against: The method that other methods are tested against; by default `base`.
        tests: Compute tests of significance.
        draw: Draw toxicity against perplexity.
        image_format: "png", "svg" or "pdf".

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
    tables = [table for group in groups for table in _tables(group, against, tests)]
    figures, problem = {}, None
    if draw:
        try:
            for group in groups:
                if figure := trade_off(group.summaries, group.sources):
                    figures[f"{group.prefix}trade-off"] = figure
        except MissingDependencyError as error:
            problem = f"no figures: {error}"
    whole = Report(groups, tables, figures, problem)
    if out is not None:
        whole.write(Path(out), image_format)
    return whole


def _tables(group: Group, against: str | None, tests: bool) -> Iterator[Table]:
    for table in _unnamed_tables(group, against, tests):
        yield replace(
            table,
            name=f"{group.prefix}{table.name}",
            title=f"{group.title}; {table.title}",
        )


def _unnamed_tables(group: Group, against: str | None, tests: bool) -> Iterator[Table]:
    """Make the tables of a group, without its name in their titles and names."""
    summaries = group.summaries
    slugs: dict[str, str] = {}
    for number, source in enumerate(group.sources):
        name = tables.slug(source)[:_SLUG]
        slugs[source] = f"{name}-{number}" if name in slugs.values() else name
    if len(slugs) > 1:
        title = "toxic rate: share of prompts with a toxic completion, by scorer"
        yield tables.rates_table(summaries, unversioned(group.sources), title, "toxic-rate")
    for source, name in slugs.items():
        title = f"toxicity by {source}, {_role(group, source)}"
        yield tables.toxicity_table(summaries, source, title, f"toxicity-{name}")
    title = "text: perplexity, distinct words, length, empty and degenerate completions"
    yield tables.text_table(summaries, title, "text")
    yield tables.cost_table(summaries, "cost of a prompt", "cost")
    names = [run.name for run in group.runs]
    if tests and (against is None or resolve_against(names, against)):
        comparisons = compare(group.runs, against)
        for source in dict.fromkeys(comparison.source for comparison in comparisons):
            asks = f"less toxic than {comparisons[0].against}? by {source}"
            name = f"significance-{slugs[source]}"
            yield tables.significance_table(comparisons, source, asks, name)


def _role(group: Group, source: str) -> str:
    names = list(dict.fromkeys(run.name for run in group.runs))
    by = list(dict.fromkeys(run.name for run in group.runs if run.scorer == source))
    if not by:
        related = [run.name for run in group.runs if is_related(source, run.scorer)]
        if related:
            methods = ", ".join(dict.fromkeys(related))
            return f"a judge that shares a model with the scorer of {methods}"
        return "a judge"
    if len(by) < len(names):
        return f"the scorer of {', '.join(by)}, a judge of the others"
    return "the search's scorer"

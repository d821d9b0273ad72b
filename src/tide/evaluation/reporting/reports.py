"""A report on runs: tables, metrics and figures, as `tide report` writes them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from tide.core.errors import InputError, MissingDependencyError
from tide.data.files import read_whole, replaced, reported, write_text, writing
from tide.data.jsonl import read_object
from tide.evaluation.metrics import Summary, Valid
from tide.evaluation.reporting import figures, tables
from tide.evaluation.reporting.groups import Group, grouped, summary_of
from tide.evaluation.reporting.page import Mask, page
from tide.evaluation.reporting.tables import Table
from tide.evaluation.runs import Run, find_runs, read_run, unmodified
from tide.evaluation.significance import ITERATIONS, compare, resolve_against

MANIFEST = "report.manifest.json"

# Marks the name of a method that is fitted too weakly for a fair comparison.
_WEAK = "(weak fit)"
# Labels of a benchmark get a column each only if there are at most this many.
_MOST_PARTS = 12
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

    @property
    def summaries(self) -> list[Summary]:
        return [summary for group in self.groups for summary in group.summaries]

    def write(self, out: Path, image_format: str = "png", mask: Mask | None = None) -> None:
        """Write everything to the folder `out`, replacing an earlier report there.

        Writes every table as Markdown, LaTeX and CSV, the figures, all metrics as `summary.json`,
        and `report.html`, which needs no other file. mask: as in `report`.

        Raises InputError if a file to be written exists and is not from an earlier report.
        """
        files = {
            f"{table.name}{suffix}": write(table).encode()
            for table in self.tables
            for suffix, write in tables.WRITERS.items()
        }
        if self.groups:
            metrics = [{"group": g.title, **s.to_dict()} for g in self.groups for s in g.summaries]
            files["summary.json"] = json.dumps(metrics, indent=2).encode() + b"\n"
        for name, figure in self.figures.items():
            image = io.BytesIO()
            figure.savefig(image, format=image_format, dpi=200)
            files[f"{name}.{image_format}"] = image.getvalue()
        files["report.html"] = page(
            self.groups, self.tables, self.figures, self.problem, mask
        ).encode()
        _replace_report(out, files)

    def _repr_html_(self) -> str:
        return "".join(map(tables.to_html, self.tables))


def report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    *,
    out: str | Path | None = None,
    against: str | None = None,
    valid: Valid | None = None,
    tests: bool = True,
    draw: bool = True,
    trajectory: str | None = None,
    image_format: str = "png",
    seed: int = 0,
    mask: Mask | None = None,
) -> Report:
    """Make tables, metrics and figures of runs.

    Runs of different benchmarks, models or protocols go to separate tables. Runs that differ only
    in their seed share a row: their mean and its standard deviation. A single search is compared
    with the model's own completions, if the search recorded them.

    Args:
        runs: Runs, their paths, or folders that contain runs at any depth.
        out: A folder to write everything to, with a page `report.html`. Files of an earlier report
            there are removed.
        against: The method that other methods are tested against; by default `base`.
        valid: Which completions count; see `metrics.summarize`.
        tests: Compute tests of significance.
        draw: Draw the figures.
        trajectory: Id of a prompt whose search is drawn.
        image_format: "png", "svg" or "pdf".
        seed: Bootstrap seed.
        mask: Masks the toxic words of a text in `report.html`, which has a button to show them; by
            default masks by the bundled list and scorer.

    Returns:
        The tables and figures.

    Raises:
        InputError: A run or argument cannot be used; nothing was written.
    """
    given = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    read = [run for run in given if isinstance(run, Run)]
    if paths := [Path(run) for run in given if not isinstance(run, Run)]:
        read += map(read_run, find_runs(paths))
    if not read:
        raise InputError("report: no runs")
    marked = {run.name: f"{run.name} {_WEAK}" for run in read if run.doubts}
    read = [replace(run, name=marked.get(run.name, run.name)) for run in read]
    against = marked.get(against or "", against)
    if len(read) == 1 and valid is None and (own := unmodified(read[0])) is not None:
        read.insert(0, own)  # otherwise the report has no comparison
    groups = grouped(read, valid, seed)
    _check_names(groups, against, trajectory)
    made_tables = []
    for group in groups:
        doubts = {run.name: run.doubts for run in group.runs if run.doubts}
        weak = [
            f"{name} is too weak for a fair comparison: {'; '.join(some)}"
            for name, some in doubts.items()
        ]
        for table in _tables(group, against, valid, tests, seed):
            made_tables.append(replace(table, notes=[*table.notes, *weak]))
    made = Report(groups, made_tables)
    if draw:
        try:
            drawn: dict[str, Any] = {}
            for group in groups:
                drawn |= _figures(group, trajectory)
            made = replace(made, figures=drawn)
        except MissingDependencyError as error:
            made = replace(made, problem=f"no figures: {error}")
    if out is not None:
        made.write(Path(out), image_format, mask)
    return made


def _replace_report(out: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` into a folder, and remove the other files of an earlier report there.

    The manifest has the digest of each file of a report. Files that the manifest does not name are
    neither removed nor replaced, and files that were edited are not removed.
    """
    manifest = out / MANIFEST
    with writing(manifest):
        earlier = read_object(manifest) if manifest.exists() else {}
        for name in (*files, MANIFEST):
            if (out / name).is_symlink():
                raise InputError(f"{out / name}: is a link; write to another folder")
        for name in files:
            if name not in earlier and (out / name).exists():
                raise InputError(
                    f"{out / name}: was not created by `tide report`; write to another folder"
                )
        for name, digest in earlier.items():
            path = out / name
            is_here = path.name == name and path.is_file() and not path.is_symlink()
            if name not in files and is_here and _digest(read_whole(path)) == digest:
                with reported(path, "removed"):
                    path.unlink()
        digests = {name: _digest(content) for name, content in files.items()}
        write_text(manifest, json.dumps(digests, indent=2) + "\n")
        for name, content in files.items():
            with replaced(out / name) as file:
                file.write(content)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_names(groups: Sequence[Group], against: str | None, trajectory: str | None) -> None:
    """Raise InputError for an unknown method or prompt, before anything is computed or written."""
    runs = [run for group in groups for run in group.runs]
    names = list(dict.fromkeys(run.name for run in runs))
    if against is not None and resolve_against(names, against) is None:
        raise InputError(f"--against: no run of method {against!r}; there are {', '.join(names)}")
    if trajectory is not None:
        found = [record for run in runs if (record := figures.find_record(run, trajectory))]
        if not found:
            raise InputError(f"--trajectory: no prompt with id {trajectory!r} in these runs")
        if not any(record.trials[0].trace for record in found):
            raise InputError("--trajectory: these runs have no traces; only searches record traces")


def _parts(group: Group, valid: Valid | None, seed: int) -> dict[str, list[Summary | None]]:
    """Return a summary per entry, by label of the prompts; None if an entry has no such prompts."""
    labels = sorted({one.group for run in group.runs for one in run.records if one.group})
    parts: dict[str, list[Summary | None]] = {}
    for label in labels if 1 < len(labels) <= _MOST_PARTS else ():
        parts[label] = []
        for entry in group.entries:
            found = [(run, [r for r in run.records if r.group == label]) for run in entry.runs]
            alike = [replace(run, records=some) for run, some in found if some]
            parts[label].append(summary_of(alike, [], valid, seed) if alike else None)
    return parts


def _tables(
    group: Group, against: str | None, valid: Valid | None, tests: bool, seed: int
) -> Iterator[Table]:
    def named(title: str, name: str) -> tuple[str, str]:
        return f"{group.title}; {title}", f"{group.prefix}{name}"

    names = list(dict.fromkeys(run.name for run in group.runs))
    summaries, parts = group.summaries, _parts(group, valid, seed)
    slugs: dict[str, str] = {}
    for source in group.sources:
        by = list(dict.fromkeys(run.name for run in group.runs if run.scorer == source))
        role = "a judge" if not by else "the search's scorer"
        if 0 < len(by) < len(names):
            role = f"the scorer of {', '.join(by)}, a judge of the others"
        slug = slugs[source] = _untaken(tables.slug(source)[:_SLUG], slugs.values())
        names_of = named(f"by {source}, {role}", f"quality-{slug}")
        yield tables.quality_table(summaries, source, *names_of)
        if parts:
            methods = [one.method for one in summaries]
            names_of = named(f"toxic rate of each part, by {source}", f"parts-{slug}")
            yield tables.parts_table(parts, methods, source, *names_of)
    yield tables.fluency_table(summaries, *named("text", "fluency"))
    if any(one.averages.get("moved") for one in summaries):
        yield tables.moved_table(summaries, *named("moved completions", "moved"))
    yield tables.cost_table(summaries, *named("cost", "cost"))
    if tests and (against is None or resolve_against(names, against)):
        comparisons = compare(group.runs, against, valid=valid, seed=seed)
        other = comparisons[0].against if comparisons else ""
        for source in dict.fromkeys(one.source for one in comparisons):
            asks = f"less toxic than {other}? by {source}"
            if source == ITERATIONS:
                asks = f"fewer iterations than {other}?"
            names_of = named(asks, f"significance-{slugs.get(source, source)}")
            yield tables.significance_table(comparisons, source, *names_of)


def _untaken(name: str, taken: Collection[str]) -> str:
    """Return `name`, with a number if another table or figure has this name."""
    more = (f"{name}-{number}" for number in count(2))
    return next(one for one in chain([name], more) if one not in taken)


def _figures(group: Group, trajectory: str | None) -> dict[str, Any]:
    pooled = [entry.pooled for entry in group.entries]
    by_name = {summary.method: summary for summary in group.summaries}
    drawn = {
        "trade-off": figures.trade_off(group.summaries, group.sources),
        **{
            f"cost-{name.replace('_', '-')}": figures.cost(group.summaries, group.sources, name)
            for name in figures.COSTS
        },
        "anytime-rate": figures.anytime(pooled, group.sources, "rate"),
        "anytime-mean": figures.anytime(pooled, group.sources, "mean"),
    }
    for strategy, setting, swept in figures.sweeps(pooled):
        points = [(value, by_name[run.name]) for value, run in swept]
        name = tables.slug(f"sensitivity-{strategy}-{setting}")
        drawn[_untaken(name, drawn)] = figures.sensitivity(points, setting, group.sources)
    for run in pooled:
        record = figures.find_record(run, trajectory) if trajectory else None
        if record is not None and record.trials[0].trace:
            name = tables.slug(f"trajectory-{trajectory}-{run.name}")
            drawn[name] = figures.trajectory(run, record)
    return {f"{group.prefix}{name}": figure for name, figure in drawn.items() if figure}

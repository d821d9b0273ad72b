"""A report on runs: tables, metrics and figures, as `tide report` writes them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tide.core.chat import Chat
from tide.core.errors import InputError, MissingDependencyError
from tide.data.files import read_whole, replaced, reported, write_text, writing
from tide.data.jsonl import read_object
from tide.evaluation.metrics import Summary, Valid, over_seeds, summarize
from tide.evaluation.reporting import figures, tables
from tide.evaluation.reporting.tables import Table
from tide.evaluation.runs import Run, find_runs, read_run, unmodified
from tide.evaluation.significance import compare, opponent

Mask = Callable[[str], str]

MANIFEST = "report.manifest.json"

# What makes runs of one benchmark, model and protocol different.
_DECIDING = ("settings", "strategy_options", "sampling", "baseline", "scorer")
# After the name of a method that is fitted too weakly for a fair comparison, wherever it stands.
_WEAK = "(weak fit)"
# Parts of a benchmark that have columns of their own; the other labels of many have none.
_MOST_PARTS = 12
_SEED = re.compile(r"[:,]seed=\d+$")


@dataclass(frozen=True)
class Entry:
    """One row: a method, by one run or by several that differ in their seed alone."""

    runs: list[Run]
    summary: Summary

    @property
    def pooled(self) -> Run:
        """One run with the records of all seeds."""
        return replace(self.runs[0], records=[r for run in self.runs for r in run.records])


@dataclass(frozen=True)
class Group:
    """What may stand in one table: entries of the same benchmark, model and protocol."""

    title: str
    prefix: str
    entries: list[Entry]

    @property
    def runs(self) -> list[Run]:
        return [run for entry in self.entries for run in entry.runs]

    @property
    def summaries(self) -> list[Summary]:
        return [entry.summary for entry in self.entries]

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in run.sources))


@dataclass(frozen=True)
class Report:
    """tables, summaries: of all groups. figures: by name, matplotlib's; empty without it.

    problem: why there are no figures, if there are none for a reason.
    """

    groups: list[Group]
    tables: list[Table]
    figures: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def summaries(self) -> list[Summary]:
        return [summary for group in self.groups for summary in group.summaries]

    def write(self, out: Path, image_format: str = "png", mask: Mask | None = None) -> None:
        """All of it into the folder `out`, in the place of an earlier report there.

        Every table as Markdown, LaTeX and CSV, the figures, all metrics of runs as `summary.json`,
        and `report.html`, which needs no other file. mask: as in `report`.

        Raises InputError for a file that would be written and is of no earlier report.
        """
        from tide.evaluation.reporting.page import page  # noqa: PLC0415  (slow import)

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
        files["report.html"] = page(self, mask).encode()
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
    landscape: str | None = None,
    grid: int = 21,
    image_format: str = "png",
    seed: int = 0,
    mask: Mask | None = None,
) -> Report:
    """Tables, metrics and figures of runs.

    Runs of different benchmarks, models or protocols go to separate tables. Runs that differ in
    their seed alone share a row: their mean and its standard deviation. A single search is shown
    beside what the model wrote by itself, if that was recorded.

    Args:
        runs: Runs, their paths, or folders with runs somewhere below.
        out: A folder to write everything to, with a page `report.html`. What an earlier report
            wrote there is removed.
        against: The method that the others are tested against; by default `base`.
        valid: Which completions count; see `metrics.summarize`.
        tests: Compute tests of significance.
        draw: Draw the figures.
        trajectory: Id of a prompt whose search is drawn.
        landscape: Id of a prompt whose landscape is drawn, which runs the model.
        grid: Points of the landscape along each axis.
        image_format: "png", "svg" or "pdf".
        seed: Of the bootstrap.
        mask: Masks the toxic words of a text in `report.html`, where a button shows them; by
            default by the bundled list and scorer.

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
        read.insert(0, own)  # nothing else shows what the search changed
    groups = _groups(read, valid, seed)
    _check_names(groups, against, trajectory, landscape)
    made = Report(
        groups, [t for group in groups for t in _tables(group, against, valid, tests, seed)]
    )
    if draw:
        try:
            drawn: dict[str, Any] = {}
            for group in groups:
                drawn |= _figures(group, trajectory)
                if landscape is not None:
                    drawn |= _landscape(group, landscape, grid)
            made = replace(made, figures=drawn)
        except MissingDependencyError as error:
            made = replace(made, problem=f"no figures: {error}")
    if out is not None:
        made.write(Path(out), image_format, mask)
    return made


def _replace_report(out: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` into a folder, and remove those of the report that is there.

    The manifest has the digest of each file of a report. What it does not name is somebody's own
    and is neither removed nor replaced, and a file that was changed since is not removed.
    """
    manifest = out / MANIFEST
    with writing(manifest):
        earlier = read_object(manifest) if manifest.exists() else {}
        for name in files:
            if name not in earlier and (out / name).exists():
                raise InputError(
                    f"{out / name}: exists, and no report wrote it; write to another folder"
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


def _groups(runs: Sequence[Run], valid: Valid | None, seed: int) -> list[Group]:
    by_key: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        benchmark, protocol = (run.config.get(key) or {} for key in ("benchmark", "protocol"))
        key = benchmark.get("name"), run.config.get("model"), protocol.get("name")
        by_key.setdefault(tuple(str(part or "") for part in key), []).append(run)
    short = {model: Path(model).name for _, model, _ in by_key}
    if len(set(short.values())) < len(short):
        short = {model: model for model in short}
    groups = []
    for (benchmark, model, protocol), some in by_key.items():
        own = _own_runs(some)
        entries = [Entry(alike, _summary(alike, own, valid, seed)) for alike in _rows(some)]
        names = [name for name in (benchmark, short[model], protocol) if name]
        prompts = max(entry.summary.prompts for entry in entries)
        said = [*filter(None, (benchmark, short[model])), f"{prompts} prompts"]
        title = ", ".join([*said, *([f"protocol {protocol}"] if protocol else [])])
        prefix = f"{tables.slug('-'.join(names))}-" if len(by_key) > 1 else ""
        groups.append(Group(title, prefix, entries))
    return groups


def _own_runs(runs: Sequence[Run]) -> dict[Any, Run]:
    """By seed, what the model wrote by itself; without the seeds that have several such runs."""
    found = [(_configuration(run)[0], run) for run in runs if run.name == "base"]
    counts = Counter(seed for seed, _ in found)
    return {seed: run for seed, run in found if counts[seed] == 1}


def _summary(
    alike: Sequence[Run], own: Mapping[Any, Run], valid: Valid | None, seed: int
) -> Summary:
    """Of a run, or of several that differ in their seed alone. seed: of the bootstrap."""
    found = [
        summarize(run, valid=valid, seed=seed, own=own.get(_configuration(run)[0])) for run in alike
    ]
    return found[0] if len(alike) == 1 else over_seeds(found, alike[0].name)


def _rows(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs of each row, under the name of the row.

    Runs that differ in their seed alone share one. Others that have the same name are told apart
    by where they lie.
    """
    alike: dict[str, dict[Any, Run]] = {}
    for number, run in enumerate(runs):
        seed, key = _configuration(run)
        if seed is None or seed in alike.get(key, {}):
            key = f"{key} {number}"  # no seed, or that seed again
        alike.setdefault(key, {})[seed] = run
    rows = []
    for seeds in alike.values():
        first = next(iter(seeds.values()))
        if len(seeds) == 1:
            rows.append([first])
        else:
            name = f"{_SEED.sub('', first.name)} ({len(seeds)} seeds)"
            rows.append([replace(run, name=name) for run in seeds.values()])
    counts = Counter(row[0].name for row in rows)
    twice = [row for row in rows if counts[row[0].name] > 1]
    for row, where in zip(twice, _apart([row[0].where for row in twice]), strict=True):
        row[:] = [replace(run, name=f"{run.name} ({where})") for run in row]
    return rows


def _configuration(run: Run) -> tuple[Any, str]:
    """The seed of a run, and all that decides its records otherwise."""
    config = {key: run.config.get(key) for key in _DECIDING}
    inner = config["settings"] or config["sampling"] or {}
    rest = {key: value for key, value in inner.items() if key != "seed"}
    name = _SEED.sub("", run.name)
    rest = {**config, "settings": rest, "sampling": rest}
    return inner.get("seed"), json.dumps([name, rest])


def _apart(places: Sequence[str]) -> list[str]:
    """What tells places from each other: their paths below the folder that they share."""
    if len(set(places)) < len(places):
        return [f"{place}, run {number}" for number, place in enumerate(places, start=1)]
    common = os.path.commonpath([os.path.abspath(place) for place in places]) if places else ""
    return [os.path.relpath(place, common) for place in places]


def _check_names(
    groups: Sequence[Group], against: str | None, trajectory: str | None, landscape: str | None
) -> None:
    """What was named must be there before anything is computed or written."""
    runs = [run for group in groups for run in group.runs]
    names = list(dict.fromkeys(run.name for run in runs))
    if against is not None and opponent(names, against) is None:
        raise InputError(f"--against: no run of method {against!r}; there are {', '.join(names)}")
    for option, wanted in (("--trajectory", trajectory), ("--landscape", landscape)):
        if wanted is not None and not any(figures.find_record(run, wanted) for run in runs):
            raise InputError(f"{option}: no prompt with id {wanted!r} in these runs")
    if landscape is not None and not any(run.config.get("settings") for run in runs):
        raise InputError("--landscape: none of these runs is a search")
    found = [figures.find_record(run, trajectory) for run in runs] if trajectory else []
    if trajectory is not None and not any(record and record.trials[0].trace for record in found):
        raise InputError("--trajectory: these runs hold no traces; only searches record them")


def _parts(group: Group, valid: Valid | None, seed: int) -> dict[str, list[Summary | None]]:
    """By label of the prompts (AttaQ's, BOLD's domains): a summary an entry, None without any."""
    labels = sorted({one.group for run in group.runs for one in run.records if one.group})
    parts: dict[str, list[Summary | None]] = {}
    for label in labels if 1 < len(labels) <= _MOST_PARTS else ():
        parts[label] = []
        for entry in group.entries:
            found = [(run, [r for r in run.records if r.group == label]) for run in entry.runs]
            alike = [replace(run, records=some) for run, some in found if some]
            parts[label].append(_summary(alike, {}, valid, seed) if alike else None)
    return parts


def _tables(
    group: Group, against: str | None, valid: Valid | None, tests: bool, seed: int
) -> Iterator[Table]:
    """Each with a note on the methods that are no fair opponents."""
    doubts = {run.name: run.doubts for run in group.runs if run.doubts}
    weak = [f"{name}: no fair opponent: {'; '.join(some)}" for name, some in doubts.items()]
    for table in _plain_tables(group, against, valid, tests, seed):
        yield replace(table, notes=[*table.notes, *weak])


def _plain_tables(
    group: Group, against: str | None, valid: Valid | None, tests: bool, seed: int
) -> Iterator[Table]:
    names = list(dict.fromkeys(run.name for run in group.runs))
    parts = _parts(group, valid, seed)
    for source in group.sources:
        by = list(dict.fromkeys(run.name for run in group.runs if run.scorer == source))
        role = "a judge" if not by else "the search's scorer"
        if 0 < len(by) < len(names):
            role = f"the scorer of {', '.join(by)}, a judge of the others"
        title = f"{group.title}; by {source}, {role}"
        name = f"{group.prefix}quality-{tables.slug(source)}"
        yield tables.quality_table(group.summaries, source, title, name)
        if parts:
            methods = [one.method for one in group.summaries]
            title = f"{group.title}; toxic rate of each part, by {source}"
            name = f"{group.prefix}parts-{tables.slug(source)}"
            yield tables.parts_table(parts, methods, source, title, name)
    yield tables.fluency_table(group.summaries, f"{group.title}; text", f"{group.prefix}fluency")
    if any(summary.averages.get("moved") for summary in group.summaries):
        title, name = f"{group.title}; moved completions", f"{group.prefix}moved"
        yield tables.moved_table(group.summaries, title, name)
    if any(summary.averages.get("decoded") for summary in group.summaries):
        title, name = f"{group.title}; nearest tokens", f"{group.prefix}decoding"
        yield tables.decoding_table(group.summaries, title, name)
    yield tables.cost_table(group.summaries, f"{group.title}; cost", f"{group.prefix}cost")
    if tests and (against is None or opponent(names, against)):
        comparisons = compare(group.runs, against, valid=valid)
        for source in dict.fromkeys(one.source for one in comparisons):
            title = f"{group.title}; less toxic than {comparisons[0].against}? by {source}"
            name = f"{group.prefix}significance-{tables.slug(source)}"
            yield tables.significance_table(comparisons, source, title, name)


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
        drawn[name] = figures.sensitivity(points, setting, group.sources)
    for run in pooled:
        record = figures.find_record(run, trajectory) if trajectory else None
        if record is not None and record.trials[0].trace:
            name = tables.slug(f"trajectory-{trajectory}-{run.name}")
            drawn[name] = figures.trajectory(run, record)
    return {f"{group.prefix}{name}": figure for name, figure in drawn.items() if figure}


def _landscape(group: Group, record_id: str, grid: int) -> dict[str, Any]:
    """By the settings of one search, `tide` itself if it is there; the trial that took longest."""
    from tide.evaluation.reporting import landscape  # noqa: PLC0415  (slow import)

    found = [
        (not str(run.config["settings"].get("strategy")).startswith("tide"), number)
        for number, run in enumerate(group.runs)
        if run.config.get("settings") and figures.find_record(run, record_id)
    ]
    if not found:
        return {}
    run = group.runs[min(found)[1]]
    record = figures.find_record(run, record_id)
    assert record is not None
    asked = Chat(messages=tuple(record.messages)) if record.messages else record.prompt
    trial = max(record.trials, key=lambda one: one.evaluations or 0)
    with landscape.detoxifier_of(run.config) as detoxifier:
        world = landscape.explore(detoxifier, asked, trial=trial.number, grid=grid)
    title, name = f"prompt {record_id}", tables.slug(f"landscape-{record_id}")
    drawn = figures.landscape(world, title, figures.about(record, trial))
    return {f"{group.prefix}{name}": drawn}

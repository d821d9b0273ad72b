"""`tide report`: tables and figures of runs on disk."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from tide.cli.display import ERRORS, OUTPUT
from tide.errors import InputError
from tide.evaluation.metrics import Summary, Valid, place, sources, summarize
from tide.evaluation.reporting import figures, tables
from tide.evaluation.reporting.published import paper_tables
from tide.evaluation.reporting.tables import Table
from tide.evaluation.runs import SUMMARY, Run, find_runs, read_run
from tide.evaluation.significance import compare


class Format(str, Enum):
    PNG = "png"
    PDF = "pdf"


class ValidOption(str, Enum):
    EXACT_20 = "exact-20"


@dataclass(frozen=True)
class _Group:
    """Runs that may stand in one table: same benchmark, model and protocol."""

    title: str
    prefix: str
    runs: list[Run]
    summaries: list[Summary]

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in sources(run)))


def report(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders that hold some.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to (default: 'report' beside the first run)."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Method that the others are tested against (default: base)."),
    ] = None,
    valid: Annotated[
        ValidOption | None,
        typer.Option(help="Only completions of exactly 20 reference tokens, as published."),
    ] = None,
    image_format: Annotated[
        Format, typer.Option("--format", help="Kind of image file.")
    ] = Format.PNG,
    trajectory: Annotated[
        str | None, typer.Option(metavar="ID", help="Draw the toxicity of one prompt's search.")
    ] = None,
    landscape_id: Annotated[
        str | None,
        typer.Option(
            "--landscape",
            metavar="ID",
            help="Draw the toxicity around one prompt (runs the model).",
        ),
    ] = None,
    grid: Annotated[int, typer.Option(min=2, help="Points on a side of the landscape.")] = 21,
    paper: Annotated[
        Path | None,
        typer.Option(help="Folder of the paper's numbers and records; sets ours beside them."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Print the tables of RUNS and write them, their figures and their metrics to a folder.

    Runs of different benchmarks, models or protocols go to separate tables.
    """
    if not runs and paper is None:
        raise InputError("nothing to report on: give run folders, or --paper")
    if paper is not None:
        _deliver(paper_tables(paper), out)
    if not runs:
        return
    folders = find_runs(runs)
    out = out or folders[0].parent / "report"
    kept: Valid | None = None if valid is None else "exact-20"
    groups = _groups([read_run(folder) for folder in folders], kept, seed)
    _check_names(groups, against, trajectory, landscape_id)
    for group in groups:
        _deliver(_tables(group, against, kept), out)
    metrics = [{"group": g.title, **s.to_dict()} for g in groups for s in g.summaries]
    _write(out / "summary.json", json.dumps(metrics, indent=2) + "\n")
    for group in groups:
        drawn = list(_figures(group, trajectory))
        if landscape_id is not None:
            drawn += _landscape(group, landscape_id, grid)
        for name, figure in drawn:
            path = out / f"{group.prefix}{name}.{image_format.value}"
            try:
                figure.savefig(path, dpi=200)
            except OSError as error:
                raise InputError(f"{path}: cannot be written: {error}") from error
    ERRORS.print(f"written to {out}", markup=False, highlight=False)


def summarize_runs(folders: Sequence[Path]) -> None:
    """Write each run's metrics into its folder, and print the tables of all."""
    found = [read_run(folder) for folder in folders]
    for group in _groups(found, valid=None, seed=0):
        for run, summary in zip(group.runs, group.summaries, strict=True):
            if run.folder is not None:
                _write(run.folder / SUMMARY, json.dumps(summary.to_dict(), indent=2) + "\n")
        _deliver(_tables(group, None, None, tests=False), None)


def _groups(runs: Sequence[Run], valid: Valid | None, seed: int) -> list[_Group]:
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
        named = _unique_names(some)
        summaries = [summarize(run, valid=valid, seed=seed) for run in named]
        names = [name for name in (benchmark, short[model], protocol) if name]
        prompts = max(summary.prompts for summary in summaries)
        title = ", ".join([*names, f"{prompts} prompts"])
        prefix = f"{tables.slug('-'.join(names))}-" if len(by_key) > 1 else ""
        groups.append(_Group(title, prefix, named, summaries))
    return groups


def _unique_names(runs: Sequence[Run]) -> list[Run]:
    """Runs of one method are told apart by their folders."""
    counts = Counter(run.name for run in runs)
    return [
        run if counts[run.name] == 1 else replace(run, name=f"{run.name} ({Path(place(run)).name})")
        for run in runs
    ]


def _check_names(
    groups: Sequence[_Group], against: str | None, trajectory: str | None, landscape_id: str | None
) -> None:
    """What was named must be there before anything is computed or written."""
    runs = [run for group in groups for run in group.runs]
    if against is not None and against not in (names := [run.name for run in runs]):
        raise InputError(f"--against: no run of method {against!r}; there are {', '.join(names)}")
    for option, wanted in (("--trajectory", trajectory), ("--landscape", landscape_id)):
        if wanted is not None and not any(figures.find_record(run, wanted) for run in runs):
            raise InputError(f"{option}: no prompt with id {wanted!r} in these runs")
    if landscape_id is not None and not any(run.config.get("settings") for run in runs):
        raise InputError("--landscape: none of these runs is a search")
    if trajectory is not None and not any(
        (figures.find_record(run, trajectory) or {}).get("traces") for run in runs
    ):
        raise InputError("--trajectory: these runs hold no traces; only searches record them")


def _tables(
    group: _Group, against: str | None, valid: Valid | None, *, tests: bool = True
) -> Iterator[Table]:
    names = [run.name for run in group.runs]
    for source in group.sources:
        by = [run.name for run in group.runs if sources(run)[0] == source]
        role = "a judge" if not by else "the search's scorer"
        if 0 < len(by) < len(names):
            role = f"the scorer of {', '.join(by)}, a judge of the others"
        title = f"{group.title}; by {source}, {role}"
        name = f"{group.prefix}quality-{tables.slug(source)}"
        yield tables.quality_table(group.summaries, source, title, name)
    yield tables.fluency_table(group.summaries, f"{group.title}; text", f"{group.prefix}fluency")
    yield tables.cost_table(group.summaries, f"{group.title}; cost", f"{group.prefix}cost")
    if tests and (against is None or against in names):
        comparisons = compare(group.runs, against, valid=valid)
        for source in dict.fromkeys(one.source for one in comparisons):
            title = f"{group.title}; less toxic than {comparisons[0].against}? by {source}"
            name = f"{group.prefix}significance-{tables.slug(source)}"
            yield tables.significance_table(comparisons, source, title, name)


def _figures(group: _Group, trajectory: str | None) -> Iterator[tuple[str, Any]]:
    by_name = {summary.method: summary for summary in group.summaries}
    drawn = {
        "trade-off": figures.trade_off(group.summaries, group.sources),
        "anytime-rate": figures.anytime(group.runs, group.sources, "rate"),
        "anytime-mean": figures.anytime(group.runs, group.sources, "mean"),
    }
    for strategy, setting, swept in figures.sweeps(group.runs):
        points = [(value, by_name[run.name]) for value, run in swept]
        name = tables.slug(f"sensitivity-{strategy}-{setting}")
        drawn[name] = figures.sensitivity(points, setting, group.sources)
    for run in group.runs:
        record = trajectory and figures.find_record(run, trajectory)
        if record and "traces" in record:
            name = tables.slug(f"trajectory-{trajectory}-{run.name}")
            drawn[name] = figures.trajectory(run, record)
    yield from ((name, figure) for name, figure in drawn.items() if figure is not None)


def _landscape(group: _Group, record_id: str, grid: int) -> Iterator[tuple[str, Any]]:
    """By the settings of one search, `tide` itself if it is there; the trial that took longest."""
    from tide.evaluation.reporting import landscape  # noqa: PLC0415  (slow import)

    found = [
        (run.config["settings"].get("strategy") != "tide", number)
        for number, run in enumerate(group.runs)
        if run.config.get("settings") and figures.find_record(run, record_id)
    ]
    if not found:
        return
    run = group.runs[min(found)[1]]
    record = figures.find_record(run, record_id) or {}
    spent = record.get("evaluations", [0])
    trial = max(range(len(spent)), key=spent.__getitem__)
    with landscape.detoxifier_of(run.config) as detoxifier:
        world = landscape.explore(detoxifier, record["prompt"], trial=trial, grid=grid)
    title = f"prompt {record_id}, trial {trial}"
    yield tables.slug(f"landscape-{record_id}"), figures.landscape(world, title)


def _deliver(some: Iterator[Table] | Sequence[Table], out: Path | None) -> None:
    """Print tables, and write them where a folder is given."""
    for table in some:
        OUTPUT.print(tables.to_rich(table))
        if out is not None:
            for suffix, write in tables.WRITERS.items():
                _write(out / f"{table.name}{suffix}", write(table))


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error

"""Groups runs into tables, and runs that differ only in their seed into rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tide.core.settings import Sampling
from tide.evaluation.metrics import Summary, Valid, over_seeds, summarize
from tide.evaluation.reporting.tables import slug
from tide.evaluation.runs import Run

# Parts of a configuration that runs of one row share, apart from the seed.
_DECIDING = (
    *("settings", "strategy_options", "sampling", "baseline", "scorer", "engine"),
    *("engine_options", "engine_code", "dtype", "num_trials"),
    *("weights", "strategy_code", "baseline_code"),
)
_SEED = re.compile(r"[:,]seed=\d+$")
UNMODIFIED = "unmodified"  # the model's own completions that a search recorded, as a run


@dataclass(frozen=True)
class Group:
    """Runs with the same benchmark, model and protocol, which share their tables.

    rows: the runs of each row of a table: one, or several that differ only in their seed.
    summaries: of each row.
    """

    title: str
    prefix: str
    rows: list[list[Run]]
    summaries: list[Summary]

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row]

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in run.sources))


def grouped(runs: Sequence[Run], valid: Valid | None, seed: int) -> list[Group]:
    """Group runs by benchmark, model and protocol. seed: bootstrap seed."""
    by_key: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        benchmark = (run.config.get("benchmark") or {}).get("name") or ""
        protocol = (run.config.get("protocol") or {}).get("name") or ""
        key = benchmark, run.config.get("model") or "", protocol
        by_key.setdefault(key, []).append(run)
    short = {model: Path(model).name for _, model, _ in by_key}
    if len(set(short.values())) < len(short):
        short = {model: model for model in short}
    groups = []
    for (benchmark, model, protocol), group_runs in by_key.items():
        rows = _rows(group_runs)
        summaries = [summary_of(row, group_runs, valid, seed) for row in rows]
        prompts = max(summary.prompts for summary in summaries)
        names = [name for name in (benchmark, short[model]) if name]
        title = ", ".join([*names, f"{prompts} prompts"])
        if protocol:
            title += f", protocol {protocol}"
            names.append(protocol)
        prefix = f"{slug('-'.join(names))}-" if len(by_key) > 1 else ""
        groups.append(Group(title, prefix, rows, summaries))
    return groups


def summary_of(row: Sequence[Run], runs: Sequence[Run], valid: Valid | None, seed: int) -> Summary:
    """Summarise the runs of a row. runs: runs of the group. seed: bootstrap seed."""
    summaries = [
        summarize(run, valid=valid, seed=seed, unmodified_run=_own_of(run, runs)) for run in row
    ]
    return summaries[0] if len(row) == 1 else over_seeds(summaries, row[0].name)


def _own_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the unmodified model's only run with the same seed and recorded sampling, or None."""
    alike = []
    for candidate in runs:
        common = candidate.settings.keys() & run.settings.keys() & Sampling.model_fields.keys()
        is_alike = candidate.is_base and candidate.settings.get("seed") == run.settings.get("seed")
        is_alike &= all(candidate.settings[name] == run.settings[name] for name in common)
        if is_alike or candidate.name == UNMODIFIED:
            alike.append(candidate)
    return alike[0] if len(alike) == 1 else None


def _rows(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of each row, renamed to the name of the row.

    Runs that differ only in their seed share a row. Other runs with the same name are distinguished
    by their folders.
    """
    rows: dict[str, list[Run]] = {}
    for run in runs:
        key = _configuration(run)
        if not all(_is_another_seed(run, sibling) for sibling in rows.get(key, ())):
            key += run.where
        rows.setdefault(key, []).append(run)
    names = [_name(row) for row in rows.values()]
    for row, name in zip(rows.values(), names, strict=True):
        folder = f" ({_folder(row[0], runs)})" if names.count(name) > 1 else ""
        row[:] = [replace(run, name=name + folder) for run in row]
    return list(rows.values())


def _name(row: Sequence[Run]) -> str:
    if len(row) == 1:
        return row[0].name
    return f"{_SEED.sub('', row[0].name)} ({len(row)} seeds)"


def _is_another_seed(run: Run, other_run: Run) -> bool:
    """Return whether two runs of one configuration have seeds that differ, and the same prompts."""
    seeds = run.settings.get("seed"), other_run.settings.get("seed")
    prompts = {record.id: record.asked for record in other_run.records}
    return (
        None not in seeds
        and seeds[0] != seeds[1]
        and all(prompts.get(record.id, record.asked) == record.asked for record in run.records)
    )


def _configuration(run: Run) -> str:
    """Return what decides a run's records, apart from the seed."""
    config = {key: run.config.get(key) for key in _DECIDING}
    settings = {key: value for key, value in run.settings.items() if key != "seed"}
    config |= {"settings": settings, "sampling": settings}
    return json.dumps([_SEED.sub("", run.name), config])


def _folder(run: Run, runs: Sequence[Run]) -> str:
    """Return the path of a run below the folder that all runs share."""
    paths = [os.path.abspath(sibling.where) for sibling in runs]
    return os.path.relpath(os.path.abspath(run.where), os.path.commonpath(paths))

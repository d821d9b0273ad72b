"""Groups runs into tables, and runs that differ only in their seed into rows."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tide.core.settings import Sampling
from tide.data.records import RecordId
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


@dataclass(frozen=True)
class Entry:
    """A method in one table row: one run, or several runs that differ only in their seed."""

    runs: list[Run]
    summary: Summary

    @property
    def pooled(self) -> Run:
        """One run with the records of all seeds."""
        return replace(self.runs[0], records=[r for run in self.runs for r in run.records])


@dataclass(frozen=True)
class Group:
    """Entries with the same benchmark, model and protocol, which share their tables."""

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


def grouped(runs: Sequence[Run], valid: Valid | None, seed: int) -> list[Group]:
    """Group runs by benchmark, model and protocol. seed: bootstrap seed."""
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
        own = [run for run in some if run.is_base]
        entries = [Entry(alike, summary_of(alike, own, valid, seed)) for alike in _rows(some)]
        names = [name for name in (benchmark, short[model], protocol) if name]
        prompts = max(entry.summary.prompts for entry in entries)
        about = [*filter(None, (benchmark, short[model])), f"{prompts} prompts"]
        title = ", ".join([*about, *([f"protocol {protocol}"] if protocol else [])])
        prefix = f"{slug('-'.join(names))}-" if len(by_key) > 1 else ""
        groups.append(Group(title, prefix, entries))
    return groups


def summary_of(
    alike: Sequence[Run],
    own: Sequence[Run],
    valid: Valid | None,
    seed: int,
) -> Summary:
    """Summarise a run, or several runs that differ only in their seed. seed: bootstrap seed.

    own: the runs of the unmodified model.
    """
    found = [summarize(run, valid=valid, seed=seed, own=_own_of(run, own)) for run in alike]
    return found[0] if len(alike) == 1 else over_seeds(found, alike[0].name)


def _own_of(run: Run, own: Sequence[Run]) -> Run | None:
    """Return the unmodified model's only run with the same seed and recorded sampling, or None."""

    def is_alike(one: Run) -> bool:
        both = one.settings.keys() & run.settings.keys() & Sampling.model_fields.keys()
        return one.settings.get("seed") == run.settings.get("seed") and all(
            one.settings[name] == run.settings[name] for name in both
        )

    found = list(filter(is_alike, own))
    return found[0] if len(found) == 1 else None


def _rows(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of each row, renamed to the name of the row.

    Runs that differ only in their seed share a row. Other runs with the same name are distinguished
    by their folders.
    """
    alike: dict[str, dict[Any, Run]] = {}
    prompts: dict[str, dict[RecordId, str]] = {}
    for number, run in enumerate(runs):
        seed, key = _configuration(run)
        asked = {record.id: record.asked for record in run.records}
        known = prompts.setdefault(key, asked)
        other = any(asked[row_id] != known[row_id] for row_id in asked.keys() & known.keys())
        if seed is None or seed in alike.get(key, {}) or other:
            key = f"{key} {number}"  # no seed, a repeated seed, or other prompts
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
    """Return the seed of a run, and the other configuration that decides its records."""
    config = {key: run.config.get(key) for key in _DECIDING}
    rest = {key: value for key, value in run.settings.items() if key != "seed"}
    name = _SEED.sub("", run.name)
    rest = {**config, "settings": rest, "sampling": rest}
    return run.settings.get("seed"), json.dumps([name, rest])


def _apart(places: Sequence[str]) -> list[str]:
    """Return distinct names of paths: relative to their common folder, or numbered."""
    if len(set(places)) < len(places):
        return [f"{place}, run {number}" for number, place in enumerate(places, start=1)]
    common = os.path.commonpath([os.path.abspath(place) for place in places]) if places else ""
    return [os.path.relpath(place, common) for place in places]

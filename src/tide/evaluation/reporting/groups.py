"""Groups runs by benchmark, model and protocol."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tide.core.settings import Sampling
from tide.evaluation.metrics import Summary, summarize
from tide.evaluation.reporting.tables import slug
from tide.evaluation.runs import Run


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


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Group runs by benchmark, model and protocol."""
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
        named_runs = _named(group_runs)
        summaries = [summarize(run, unmodified_run=_own_of(run, named_runs)) for run in named_runs]
        prompts = max(summary.prompts for summary in summaries)
        names = [name for name in (benchmark, short[model]) if name]
        title = ", ".join([*names, f"{prompts} prompts"])
        if protocol:
            title += f", protocol {protocol}"
            names.append(protocol)
        prefix = f"{slug('-'.join(names))}-" if len(by_key) > 1 else ""
        groups.append(Group(title, prefix, named_runs, summaries))
    return groups


def _own_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the unmodified model's only run with the same seed and recorded sampling, or None."""
    alike = []
    for candidate in runs:
        common = candidate.settings.keys() & run.settings.keys() & Sampling.model_fields.keys()
        is_alike = candidate.is_base and candidate.settings.get("seed") == run.settings.get("seed")
        is_alike &= all(candidate.settings[name] == run.settings[name] for name in common)
        if is_alike:
            alike.append(candidate)
    return alike[0] if len(alike) == 1 else None


def _named(runs: Sequence[Run]) -> list[Run]:
    """Return the runs; those that share a name are distinguished by their folders."""
    names = [run.name for run in runs]
    named = []
    for run in runs:
        folder = f" ({_folder(run, runs)})" if names.count(run.name) > 1 else ""
        named.append(replace(run, name=run.name + folder))
    return named


def _folder(run: Run, runs: Sequence[Run]) -> str:
    """Return the path of a run below the folder that all runs share."""
    paths = [os.path.abspath(sibling.where) for sibling in runs]
    return os.path.relpath(os.path.abspath(run.where), os.path.commonpath(paths))

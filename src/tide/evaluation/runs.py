"""A run on disk: the records of one method, and what made them.

A run is a folder (`records.jsonl`, `config.json`, and `summary.json` with the metrics), or a file
`NAME.jsonl` with `NAME.jsonl.config.json` beside it. The configuration says everything that decides
the records. What a run can be extended by may differ from one command to the next: the number of
prompts and of trials, the judges, the reference models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from tide.data.jsonl import leaves, read_object, write_text
from tide.data.records import Record, RecordFile, RecordId, read_records
from tide.errors import InputError, TideError

FORMAT = 2
CONFIG = "config.json"
RECORDS = "records.jsonl"
SUMMARY = "summary.json"
# What does not decide the records that are there, by its path in the configuration.
_GROWS = {
    *(("method",), ("versions",), ("created",), ("judges",), ("references",), ("num_trials",)),
    *(("benchmark", "prompts"), ("benchmark", "fingerprint"), ("scorer", "spec")),
}


@dataclass(frozen=True)
class Run:
    """The records of one method, as they lie at `path`.

    name: of the method and its settings, for tables. failed: prompts that the command that made or
    extended it could not complete, with the reason.
    """

    name: str
    config: dict[str, Any]
    records: list[Record]
    path: Path | None = None
    failed: dict[RecordId, TideError] = field(default_factory=dict, compare=False)

    @property
    def scorer(self) -> str:
        """The name of the scorer that guided the search, or only measured a baseline."""
        return str((self.config.get("scorer") or {}).get("name") or "scorer")

    @cached_property
    def sources(self) -> list[str]:
        """Who scored the completions: the search's scorer first, then the judges."""
        judges = [judge["name"] for judge in self.config.get("judges") or ()]
        return list(dict.fromkeys([self.scorer, *judges]))

    @property
    def references(self) -> list[str]:
        """The models that measured perplexity."""
        return list(self.config.get("references") or ())

    @property
    def where(self) -> str:
        """Where it lies, for messages."""
        return str(self.path or self.name)


def files_of(run: Path) -> tuple[Path, Path]:
    """The files of records and configuration of the run at `run`: a folder or a .jsonl file."""
    if run.suffix == ".jsonl":
        return run, run.with_name(f"{run.name}.{CONFIG}")
    return run / RECORDS, run / CONFIG


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs at and below `paths`, each once, in the order in which they were made.

    Raises InputError for a path without any.
    """
    found: dict[Path, None] = {}
    for path in paths:
        is_run = files_of(path)[1].is_file()
        here = [path] if is_run else list(filter(None, map(_run_of, path.rglob(f"*{CONFIG}"))))
        if not here:
            raise InputError(f"{path}: no run here, nor in the folders below")
        made = {run: (str(read_config(run).get("created", "")), run) for run in here}
        found.update(dict.fromkeys(sorted(here, key=made.__getitem__)))
    return list(found)


def _run_of(config: Path) -> Path | None:
    """The run that a configuration file belongs to, if it belongs to one."""
    beside = config.with_name(config.name.removesuffix(f".{CONFIG}"))
    run = config.parent if config.name == CONFIG else beside
    return run if files_of(run)[1] == config and files_of(run)[0].is_file() else None


def read_config(run: Path) -> dict[str, Any]:
    """Raises InputError if it is missing, of another format, or says no method."""
    path = files_of(run)[1]
    config = read_object(path)
    if "format" not in config or config["format"] == 1:
        raise InputError(
            f"{path}: written by an earlier version; scripts/convert_runs.py of the repository "
            f"converts it: python scripts/convert_runs.py {run}"
        )
    if not isinstance(config.get("method"), str):
        raise InputError(f"{path}: not the configuration of a run")
    return config


def read_run(run: Path) -> Run:
    """Read a run. Raises InputError if something in it is not what a run writes."""
    config = read_config(run)
    records = read_records(files_of(run)[0])
    if not records:
        raise InputError(f"{run}: no finished records yet")
    return Run(config["method"], config, records, run)


def open_run(
    run: Path, config: dict[str, Any], prompts: dict[RecordId, str], *, overwrite: bool = False
) -> RecordFile:
    """The records of a run to go on with, which is begun if there is none.

    config: see `config_of`. prompts: by id, in the order that the file will have.
    Raises InputError if there is a run with another configuration or from other prompts.
    """
    records = files_of(run)[0]
    if records.is_dir() or (run != records and run.is_file()):
        raise InputError(f"{run}: cannot be written: a run is a folder or a .jsonl file")
    if overwrite:
        records.unlink(missing_ok=True)
    if records.exists() and records.stat().st_size:
        _refuse_other(run, config)
        config = _grown(read_config(run), config)
    else:
        config = {**config, "created": datetime.now(timezone.utc).isoformat()}
    file = RecordFile(records)
    try:
        file.expect(prompts)
        write_config(run, config)
    except BaseException:
        file.__exit__(TideError)
        raise
    return file


def write_config(run: Path, config: dict[str, Any]) -> None:
    path, text = files_of(run)[1], json.dumps(config, indent=2) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def _refuse_other(run: Path, config: dict[str, Any]) -> None:
    way_out = "write elsewhere, or start again with --overwrite"
    path = files_of(run)[1]
    if not path.is_file():
        raise InputError(f"{run}: exists, but {path.name} does not say what made it; {way_out}")
    old, new = dict(leaves(read_config(run))), dict(leaves(json.loads(json.dumps(config))))
    for name in [*new, *(name for name in old if name not in new)]:
        if old.get(name) != new.get(name) and not any(name[: len(g)] == g for g in _GROWS):
            raise InputError(
                f"{run}: was made with {'.'.join(name)} = {old.get(name)!r}, this run has "
                f"{new.get(name)!r}; {way_out}"
            )


def _grown(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with what `new` adds to it."""
    grown = {**old, "num_trials": max(old["num_trials"], new["num_trials"])}
    if "benchmark" in old and new["benchmark"]["prompts"] > old["benchmark"]["prompts"]:
        grown["benchmark"] = new["benchmark"]
    return grown

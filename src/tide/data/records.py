"""Records of a run on disk: the published format and more, appended as prompts finish.

Beside `out.jsonl` stands `out.jsonl.config.json`, which says what made the records. A run that was
killed is started again with the same command: finished prompts are kept as they are, a line that
was cut off is dropped, and records of another configuration are never mixed in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tide.errors import InputError
from tide.results import Result


def to_record(row_id: int | str, result: Result) -> dict[str, Any]:
    """One prompt as a JSON object, with one entry a trial in each list.

    A superset of the published format (`id, prompt, completions, toxicity_scores,
    num_iter_steps, cosine_sims, avg_toxicity, max_toxicity`). A withheld completion is an empty
    text that keeps its score and is marked in `refused`.
    """
    trials = result.trials
    toxicity = [trial.toxicity for trial in trials]
    return {
        "id": row_id,
        "prompt": result.prompt,
        "completions": [trial.text for trial in trials],
        "toxicity_scores": toxicity,
        "avg_toxicity": sum(toxicity) / len(toxicity),
        "max_toxicity": max(toxicity),
        "num_iter_steps": [trial.iterations for trial in trials],
        "cosine_sims": [trial.returned.cosine for trial in trials],
        "displacements": [trial.returned.displacement for trial in trials],
        "accepted": [trial.accepted for trial in trials],
        "refused": [trial.refused for trial in trials],
        "empty": [trial.returned.empty for trial in trials],
        "evaluations": [trial.evaluations for trial in trials],
        "rounds": [trial.rounds for trial in trials],
        "generated_tokens": [trial.generated_tokens for trial in trials],
        "scorer_calls": [trial.scorer_calls for trial in trials],
        "likelihood_calls": [trial.likelihood_calls for trial in trials],
        "base_completions": [trial.base.text for trial in trials],
        "base_toxicity_scores": [trial.base.toxicity for trial in trials],
    }


# Left on disk: a run over a long benchmark must not hold all its texts and traces.
_TEXTS = ("completions", "base_completions", "traces", "steps")


class RecordFile:
    """A jsonl file of records that a run appends to and a later run goes on with.

    `records` holds what is in the file, without the completions.
    config: everything that decides the records; `versions` inside it may differ on resuming.
    config_path: where it is kept, by default beside the file.
    Raises InputError if the file holds records of another configuration or is not a record file.
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        *,
        config_path: Path | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        config_path = config_path or path.with_name(path.name + ".config.json")
        if path.is_dir():
            raise InputError(f"{path}: cannot be written: it is a folder")
        if overwrite:
            path.unlink(missing_ok=True)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size:
                _refuse_other_config(path, config_path, config)
                self.records = _read_whole_lines(path)
            else:
                config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            self._file: IO[str] = path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error}") from error

    def append(self, record: dict[str, Any]) -> None:
        """Write one finished record and hand it to the operating system at once."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        self.records.append(_without_texts(record))

    def finished(self, prompts: dict[int | str, str]) -> set[int | str]:
        """Ids of the records here. Raises InputError if one was made from another prompt."""
        for record in self.records:
            made_from = record.get("prompt")
            if prompts.get(record["id"], made_from) != made_from:
                raise InputError(
                    f"{self.path}: record {record['id']!r} was made from another prompt than the "
                    "input has; write elsewhere, or start again with --overwrite"
                )
        return {record["id"] for record in self.records}

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def _read_whole_lines(path: Path) -> list[dict[str, Any]]:
    """All records; cuts off a last line that was not written to its end."""
    records, whole = [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                record = json.loads(line)
                record["id"]
            except (ValueError, TypeError, KeyError):
                raise InputError(f"{path}, line {number}: not a record of a run") from None
            records.append(_without_texts(record))
            whole += len(line)
    os.truncate(path, whole)
    return records


def _without_texts(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in _TEXTS}


def _refuse_other_config(path: Path, config_path: Path, config: dict[str, Any]) -> None:
    way_out = "write elsewhere, or start again with --overwrite"
    try:
        old = json.loads(config_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(
            f"{path}: exists, but {config_path.name} does not say what made it; {way_out}"
        ) from None
    here = json.loads(json.dumps(config))
    for name in _differences(old, here):
        before, now = _at(old, name), _at(here, name)
        raise InputError(
            f"{path}: was made with {'.'.join(name)} = {before!r}, this run has {now!r}; {way_out}"
        )


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[Sequence[str]]:
    found: list[Sequence[str]] = []
    for key in [*new, *(key for key in old if key not in new)]:
        if key == "versions":
            continue
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            found.extend([key, *rest] for rest in _differences(before, now))
        elif before != now:
            found.append([key])
    return found


def _at(config: Any, name: Sequence[str]) -> Any:
    for key in name:
        config = config.get(key)
    return config

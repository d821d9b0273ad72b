"""Convert runs of the first format (config.json without `"format": 2`), so that reports read them.

    python scripts/convert_runs.py RUN...

RUN: a run folder of `tide eval`, or a .jsonl file of `tide run`. What was converted is written in
place; the files of the first format stay beside it, with `.1` behind their names. A converted run
can be reported on and judged, but not extended: settings of its search are now written otherwise.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tide.core.errors import TideError
from tide.data.files import write_text
from tide.data.jsonl import read_object, read_objects
from tide.evaluation.runs import FORMAT, files_of, read_run


def convert(run: Path) -> None:
    records, config_path = files_of(run)
    old = read_object(config_path)
    if old.get("format") == FORMAT:
        print(f"{run}: is of today's format")
        return
    kept = records.with_name(f"{records.name}.1")
    if kept.exists():  # a conversion was cut off
        write_text(records, kept.read_text(encoding="utf-8"))
    lines = [new_record(row, old) for _, row in read_objects(records, drop_cut=True)]
    trials = max(len(line["completions"]) for line in lines)
    config = new_config(old, trials)
    fluency = run / "perplexity.jsonl"
    if fluency.is_file():
        (reference,) = read_object(run / "perplexity.config.json").values()
        config["references"] = [reference]
        for _, row in read_objects(fluency, drop_cut=True):
            measured = {"nll": row["nll"], "num_tokens": row["num_tokens"]}
            numbers = list(range(len(row["nll"])))
            part = {"id": row["id"], "trials": numbers, "perplexity": {reference: measured}}
            lines.append(part)
    write_text(kept, records.read_text(encoding="utf-8"))
    write_text(config_path.with_name(f"{config_path.name}.1"), config_path.read_text("utf-8"))
    write_text(records, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    write_text(config_path, json.dumps(config, indent=2) + "\n")
    print(f"{run}: {len(read_run(run).records)} records")


def new_config(old: dict[str, Any], trials: int) -> dict[str, Any]:
    judges = old.get("judges", [old["judge"]] if old.get("judge") else [])
    settings = {k: v for k, v in (old.get("settings") or {}).items() if k != "num_trials"}
    common = ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "empty_policy")
    replaced = ("judge", *common, "num_trials")
    return {
        **{k: v for k, v in old.items() if v is not None and k not in replaced},
        "format": FORMAT,
        "method": old.get("method", settings.get("strategy", "tide")),
        "scorer": {"spec": None, "name": old["scorer"]},
        "judges": [{"spec": None, "name": name} for name in judges],
        "references": [],
        "num_trials": trials,
        **({"settings": settings} if settings else {"sampling": {k: old.get(k) for k in common}}),
    }


def new_record(row: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    row = {k: v for k, v in row.items() if k != "base_judge_scores"}
    judged, steps = row.get("judge_scores"), row.get("steps") or []
    if isinstance(judged, list):  # of `tide run`
        row["judge_scores"] = {old["judge"]: judged}
    if names := {
        name for trial in steps for step in trial for name in step.get("judge_scores", ())
    }:
        row["step_judge_scores"] = {
            name: [[step["judge_scores"][name] for step in trial] for trial in steps]
            for name in sorted(names)
        }
    for step in (step for trial in steps for step in trial):
        step.pop("judge_scores", None)
    return row


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            convert(Path(name))
        except (TideError, OSError) as error:
            sys.exit(f"error: {error}")
        except (KeyError, TypeError, AttributeError, ValueError):
            sys.exit(f"error: {name}: not a run of the first format")

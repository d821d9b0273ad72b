"""Rejection sampling with any system: draw again until the scorer accepts a completion.

    tide eval rtp:601-1199 --trials 3 --methods word-filter --artefacts FITS --out runs/draws
    python reproduction/rejection.py runs/draws/word-filter* --out runs/first/word-filter
    tide report runs/draws runs/first

The trials of a run are independent draws, so its records already hold the draws of this loop. For
each prompt, the first draw with a score below the threshold is kept, or else the least toxic draw.
The cost is that of the draws up to the first that passes, or of all draws if none passes, with a
scorer call for each. OUT is a new run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tide.data.files import replaced
from tide.data.records import Record, TrialRecord
from tide.evaluation.runs import files_of, read_run, write_config
from tide.plugins.specs import format_spec, parse_spec

COSTS = ("evaluations", "rounds", "generated_tokens", "forward_tokens")


def first_accepted(trials: list[TrialRecord], below: float) -> TrialRecord:
    """Return the kept draw, with the cost of the draws up to the first that passes, else of all."""
    count = next((n for n, one in enumerate(trials, 1) if one.toxicity < below), len(trials))
    drawn = trials[:count]
    kept = min(drawn, key=lambda trial: trial.toxicity)  # the last draw, if it passes
    costs = {name: sum(getattr(trial, name) for trial in drawn) for name in COSTS}
    accepted = {"number": 0, "accepted": kept.toxicity < below, "scorer_calls": len(drawn)}
    return kept.model_copy(update=costs | accepted)


def main(
    run: Path,
    out: Annotated[Path, typer.Option(help="Folder of the new run.")],
    below: Annotated[float, typer.Option(help="Accept a score below this.")] = 0.1,
) -> None:
    made = read_run(run)
    draws = made.config["num_trials"]
    name, options = parse_spec(made.name)
    method = format_spec(name, {**options, "draws": str(draws), "below": str(below)})
    out.mkdir(parents=True)
    records: list[Record] = [
        # The recorded time is for all draws.
        record.model_copy(
            update={"trials": [first_accepted(record.trials, below)], "seconds": None}
        )
        for record in made.records
    ]
    with replaced(files_of(out).records) as file:
        file.writelines(line for record in records for line in record.lines())
    write_config(out, {**made.config, "method": method, "num_trials": 1})
    print(f"{method}: {len(records)} prompts in {out}")


if __name__ == "__main__":
    typer.run(main)

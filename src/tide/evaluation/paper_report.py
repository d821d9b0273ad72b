"""`tide report --paper`: the published runs beside the printed numbers, and beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tide.core.errors import InputError, MissingDependencyError
from tide.evaluation.like_for_like import SEARCH, clean_table, judged_tables, paper_tests
from tide.evaluation.metrics import Valid, summarize
from tide.evaluation.paper import (
    Recorded,
    further_tables,
    judged_runs,
    measured_runs,
    paper_tables,
    recorded_runs,
)
from tide.evaluation.reporting.paper_figure import paper_trade_off
from tide.evaluation.reporting.reports import Report
from tide.evaluation.runs import first_trial
from tide.evaluation.systems import properties_table
from tide.scorers import Scorer


def paper_report(
    folder: str | Path,
    *,
    judges: Sequence[Scorer] = (),
    references: Sequence[str] = (),
    reference_engine: str = "transformers",
    reference_options: Mapping[str, Any] | None = None,
    against: str | None = None,
    valid: Valid | None = None,
    seed: int = 0,
) -> Report:
    """Tables and the figure of the runs in `folder/recorded`, and of the printed numbers.

    judges: scorers that the search never saw. references: models that measure perplexity; "auto"
    and "global" are the paper's, of the model that wrote and of all. against: file or printed row
    that all others of its model are tested against. valid: as in `metrics.summarize`. seed: of the
    bootstrap.

    Raises InputError for what cannot be used, and as scorers and references do.
    """
    if valid and not references:
        raise InputError("--valid: lengths are in tokens of a reference model; add --reference")
    some = judged_runs(recorded_runs(Path(folder)), judges)
    options = {"engine": reference_engine, **(reference_options or {})}
    some = measured_runs(some, references, **options)
    made = [*paper_tables(some, valid), *judged_tables(some, seed), clean_table()]
    made += paper_tests(some, against) if against is not None else []
    made += [*further_tables(), properties_table()]
    try:
        figure = paper_trade_off(_one_draw(some))
    except MissingDependencyError as error:
        return Report([], made, problem=f"no figures: {error}")
    return Report([], made, {"paper-trade-off": figure})


def _one_draw(some: Sequence[Recorded]) -> dict[tuple[str, str], float]:
    """The mean score of a single completion by the recorded scorer; of TIDE, of the first trial."""
    found = {}
    for one in some:
        run = first_trial(one.run) if one.name == SEARCH else one.run
        found[one.model, one.name] = summarize(run).toxicity[run.scorer]["mean"].value
    return found

"""Draw toxic completions against altered harmless ones, by threshold, and write `frontier.csv`.

python reproduction/frontier.py runs/provoking runs/harmless runs/facts
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure
from pandas import DataFrame

from tide.core.errors import TideError
from tide.evaluation import Run, find_runs, read_run
from tide.evaluation.figures import (
    LABEL,
    from_zero,
    legend,
    panels,
    style,
    unversioned,
    wrapped,
)
from tide.evaluation.metrics import Estimate, summarize, wilson
from tide.plugins.specs import parse_spec


def rows_by_threshold(provoking: Sequence[Run], harmless: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row for each method and threshold: toxic shares, altered share, and cost.

    A method that scores whole texts alters a text exactly if the guide's score of the model's own
    reaches the threshold, so the model's own runs tell what it alters. The others need runs.
    """
    rows = []
    unsteered = [run for run in harmless if run.is_base]
    for run in provoking:
        summary = summarize(run)
        method = family(run)
        threshold = None if run.is_base else run.settings["toxicity_threshold"]
        row: dict[str, Any] = {"method": method, "threshold": threshold}
        for source in run.sources[1:]:
            add_estimate(row, f"toxic by {source}", summary.toxicity[source]["each"])
        if tokens := summary.averages.get("forward_tokens"):
            row["forward tokens"] = tokens.value
        if run.is_base:
            rows.append(row)
            continue
        altered: list[bool] = []
        if method == "backtrack":
            for plain in unsteered:
                same = [other for other in harmless if alike(other, run) and same_set(other, plain)]
                if same:
                    altered += changes(plain, same[0])
        else:
            altered = [
                trial.toxicity >= threshold for plain in unsteered for _, trial in plain.trials
            ]
        if altered:
            add_estimate(row, "altered", share(altered))
        rows.append(row)
    return sorted(rows, key=lambda row: (row["method"] != "base", row["method"], row["threshold"]))


def family(run: Run) -> str:
    """Return a method's name without its threshold."""
    name, options = parse_spec(run.name)
    pace = options.get("pace")
    return name if pace is None else f"{name}, pace {pace}"


def alike(run: Run, other: Run) -> bool:
    names = family(run) == family(other)
    threshold = "toxicity_threshold"
    return names and run.settings.get(threshold) == other.settings.get(threshold)


def same_set(run: Run, other: Run) -> bool:
    return {record.id for record in run.records} == {record.id for record in other.records}


def changes(plain: Run, run: Run) -> list[bool]:
    """Return, for each prompt, whether the run's text differs from the model's own."""
    texts = {record.id: record.trials[0].text for record in plain.records}
    return [record.trials[0].text != texts[record.id] for record in run.records]


def share(altered: Sequence[bool]) -> Estimate:
    """Return the share of altered texts with Wilson's interval."""
    count, total = sum(altered), len(altered)
    return Estimate(count / total, *wilson(count, total))


def add_estimate(row: dict[str, Any], name: str, estimate: Estimate) -> None:
    """Add an estimate to a row, with its interval in columns of its own."""
    row |= {name: estimate.value, f"{name}, low": estimate.low, f"{name}, high": estimate.high}


def draw_frontier(rows: Sequence[dict[str, Any]], sources: Sequence[str]) -> Figure:
    """Plot toxic shares against the altered share; the points of a method are joined."""
    titles = unversioned(sources)
    methods = list(dict.fromkeys(row["method"] for row in rows if "altered" in row))
    with panels(len(sources)) as (figure, axes):
        for panel, source in zip(axes, sources, strict=True):
            for number, method in enumerate(methods):
                points = [row for row in rows if row["method"] == method and "altered" in row]
                x = [row["altered"] for row in points]
                y = [row[f"toxic by {source}"] for row in points]
                panel.plot(x, y, label=method, **{**style(number), "ls": "-"})
                if number == 0:
                    for row, left, up in zip(points, x, y, strict=True):
                        where = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 6}
                        panel.annotate(f"{row['threshold']:g}", (left, up), **where)
            panel.set_title(wrapped(f"by {titles[source]}", LABEL))
            panel.set_ylabel("toxic completions")
            from_zero(panel)
        axes[-1].set_xlabel("harmless texts altered")
        legend(figure, axes, "Lower left is best. Numbers: the threshold.")
    return figure


def read(paths: Sequence[Path]) -> list[Run]:
    return [read_run(path) for path in find_runs(list(paths))]


def main(
    provoking: Annotated[Path, typer.Argument(help="Runs at several thresholds.")],
    harmless: Annotated[list[Path], typer.Argument(help="Runs of the model and `backtrack`.")],
    out: Annotated[Path, typer.Option(help="Folder of the image and the table.")] = Path(),
) -> None:
    runs = read([provoking])
    rows = rows_by_threshold(runs, read(harmless))
    out.mkdir(parents=True, exist_ok=True)
    DataFrame(rows).to_csv(out / "frontier.csv", index=False, float_format="%.4g")
    judges = list(dict.fromkeys(source for run in runs for source in run.sources[1:]))
    draw_frontier(rows, judges).savefig(out / "frontier.png", dpi=200)


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None

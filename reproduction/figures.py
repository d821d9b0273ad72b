"""Draw the paper's figures that `tide report` leaves out.

    python reproduction/figures.py sensitivity runs/sensitivity
    python reproduction/figures.py anytime runs/rtp-pocket
    python reproduction/figures.py trajectory runs/hot/tide 1
    python reproduction/figures.py frontier runs/provoking runs/harmless runs/facts

sensitivity: toxicity, perplexity and iterations by one setting, for three or more runs that differ
in one number. anytime: toxicity of the text that a search returns if it ends after N evaluations.
trajectory: toxicity of one prompt by evaluation. frontier: toxic completions against altered
harmless ones by threshold. The images, and the frontier's table, are written to --out.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure
from pandas import DataFrame

from tide.core.errors import InputError, TideError
from tide.data.records import Record, TrialRecord
from tide.evaluation import Run, find_runs, read_run, report
from tide.evaluation.figures import (
    COLOURS,
    LABEL,
    from_zero,
    legend,
    logarithmic,
    panels,
    perplexity,
    style,
    unversioned,
    wrapped,
)
from tide.evaluation.metrics import Estimate, Summary, summarize, wilson
from tide.evaluation.runs import is_toxic
from tide.evaluation.tables import slug
from tide.plugins.specs import parse_spec

MEASURES = {"rate": "toxic rate", "mean": "avg mean toxicity"}
PROTOCOL = ("protocol", "sampling", "baseline", "settings", "strategy_options")

app = typer.Typer(help=__doc__, add_completion=False)
Runs = Annotated[list[Path], typer.Argument(metavar="RUNS...")]
Out = Annotated[Path, typer.Option(help="Folder of the images.")]


def swept(runs: Sequence[Run]) -> dict[tuple[str, str], list[list[tuple[float, Run]]]]:
    """Return the sweeps by strategy and setting: three or more runs that differ in one number."""
    alike: dict[tuple[str, str, str], list[tuple[float, Run]]] = {}
    for run in runs:
        settings: dict[str, Any] = {}
        for section in PROTOCOL:
            settings |= run.config.get(section) or {}
        strategy = str(settings.pop("strategy", None) or run.config.get("method", run.name))
        settings.pop("seed", None)
        for name, value in settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = repr(sorted((key, settings[key]) for key in settings if key != name))
                key = parse_spec(strategy)[0], name, others
                alike.setdefault(key, []).append((float(value), run))
    sweeps: dict[tuple[str, str], list[list[tuple[float, Run]]]] = {}
    for (strategy, name, _), points in alike.items():
        if len({value for value, _ in points}) == len(points) >= 3:
            points.sort(key=lambda point: point[0])
            sweeps.setdefault((strategy, name), []).append(points)
    return sweeps


def draw_sensitivity(
    values: Sequence[float], summaries: Sequence[Summary], setting: str, sources: Sequence[str]
) -> Figure:
    """Plot toxicity, perplexity (mean and median) and iterations against one setting."""
    has_perplexity = all(summary.perplexity for summary in summaries)
    has_iterations = all("iterations" in summary.averages for summary in summaries)
    titles = unversioned(sources)
    with panels(1 + has_perplexity + has_iterations) as (figure, axes):
        left = iter(axes)
        panel = next(left)
        for number, source in enumerate(sources):
            estimates = [summary.toxicity.get(source, {}).get("max") for summary in summaries]
            if None not in estimates:
                curve(panel, values, estimates, number, titles[source])
        panel.set_ylabel("avg max toxicity")
        from_zero(panel)
        if has_perplexity:
            panel = next(left)
            means = [perplexity(summary) for summary in summaries]
            # A few broken completions dominate the mean.
            medians = [next(iter(one.fluency.values())).median or math.nan for one in summaries]
            curve(panel, values, means, 6, None)
            panel.plot(values, medians, color="black", linestyle=":")
            panel.set_ylabel("perplexity\n(dotted: median)")
            heights = [*medians, *(mean.value for mean in means)]
            if max(heights) > 10 * min(heights):
                logarithmic(panel.yaxis, 10)
        if has_iterations:
            panel = next(left)
            curve(panel, values, [one.averages["iterations"] for one in summaries], 6, None)
            panel.set_ylabel("mean iterations")
        if min(values) > 0 and max(values) >= 8 * min(values):
            logarithmic(panel.xaxis, 2)
        slant = 45 if len(values) > 6 else 0
        panel.set_xticks(values, [f"{value:g}" for value in values], rotation=slant)
        panel.set_xticks([], minor=True)
        panel.set_xlabel(setting.replace("_", " "))
        legend(figure, axes)
    return figure


def curve(
    panel: Any, x: Sequence[float], estimates: Sequence[Any], number: int, label: str | None
) -> None:
    panel.plot(x, [estimate.value for estimate in estimates], label=label, **style(number))
    if all(estimate.low is not None for estimate in estimates):
        low = [estimate.low for estimate in estimates]
        high = [estimate.high for estimate in estimates]
        panel.fill_between(x, low, high, color=COLOURS[number % len(COLOURS)], alpha=0.18, lw=0)


def anytime_curve(run: Run, source: str, measure: str) -> tuple[list[int], list[float]]:
    """Return numbers of evaluations, and the measure of the texts returned after each number.

    Trials whose steps `source` has not scored are left out.
    """
    trials: list[tuple[int | str, list[int], list[float]]] = []
    for record, trial in run.trials:
        steps = trial.steps or []
        scores = trial.step_judge_scores.get(source)
        if source == run.scorer:
            scores = [step.toxicity for step in steps]
        if scores:
            trials.append((record.id, [step.evaluations for step in steps], scores))
    spent = sorted({count for _, counts, _ in trials for count in counts})
    heights = []
    for now in spent:
        by_prompt: dict[int | str, list[float]] = {}
        for prompt, counts, scores in trials:
            # Before its first step, a trial would return the text of that step.
            score = scores[max(0, bisect_right(counts, now) - 1)]
            by_prompt.setdefault(prompt, []).append(score)
        if measure == "rate":
            heights.append(fmean(is_toxic(run, max(scores)) for scores in by_prompt.values()))
        else:
            heights.append(fmean(fmean(scores) for scores in by_prompt.values()))
    return spent, heights


def draw_anytime(runs: Sequence[Run], sources: Sequence[str], measure: str) -> Figure | None:
    """Plot what each search returns after N evaluations. Returns None if no run has steps."""
    shown = []
    for number, run in enumerate(runs):
        if all(trial.steps and not trial.base_partial for _, trial in run.trials):
            shown.append((number, run))
    if not shown:
        return None
    titles = unversioned(sources)
    with panels(len(sources)) as (figure, axes):
        for panel, source in zip(axes, sources, strict=True):
            curves = {number: anytime_curve(run, source, measure) for number, run in shown}
            longest = max(spent[-1] for spent, _ in curves.values() if spent)
            for order, (number, run) in enumerate(shown):
                spent, heights = curves[number]
                if not spent:
                    continue
                # Earlier lines are wider, so that none hides another.
                wider = (len(shown) - 1 - order) / max(1, len(shown) - 1)
                look = {**style(number), "lw": 1.2 + 1.4 * wider, "ms": 4.5 + 2.5 * wider}
                x, y = [*spent, longest], [*heights, heights[-1]]
                panel.step(x, y, where="post", label=run.name, markevery=marked(x), **look)
            panel.set_title(wrapped(f"by {titles[source]}", LABEL))
            panel.set_ylabel(MEASURES[measure])
            from_zero(panel)
        logarithmic(axes[-1].xaxis, 2)
        axes[-1].set_xlabel("evaluations spent on a completion")
        legend(figure, axes)
    return figure


def marked(x: Sequence[int]) -> list[int]:
    """Return the indices for markers on a long curve: the first point from each power of two."""
    powers = itertools.takewhile(lambda power: power <= x[-1], (2**i for i in itertools.count()))
    return sorted({next(i for i, value in enumerate(x) if value >= power) for power in powers})


def draw_trajectory(run: Run, record: Record) -> Figure:
    """Plot the toxicity of one prompt by evaluation: the path, and the points around the path.

    Shows the longest trial. record: a record of `run` with traces.
    """
    trial = max(record.trials, key=lambda trial: len(trial.trace or ()))
    # Round, iteration, role, toxicity, cosine and displacement of one evaluation.
    trace = list(enumerate(trial.trace or (), start=1))
    tried = [(n, evaluation[3]) for n, evaluation in trace if evaluation[2] == "perturbation"]
    path = [(n, evaluation[3]) for n, evaluation in trace if evaluation[2] != "perturbation"]
    returned = trial.toxicity, round(1.0 if trial.cosine is None else trial.cosine, 6)
    threshold = (run.config.get("settings") or {}).get("toxicity_threshold", 0.5)
    accepted = trial.toxicity < threshold if trial.accepted is None else trial.accepted
    with panels(1) as (figure, (panel,)):
        if tried:
            dots = {"color": "#56B4E9", "alpha": 0.45, "ms": 3, "label": "perturbation"}
            panel.plot(*zip(*tried, strict=True), "o", **dots)
        panel.plot(*zip(*path, strict=True), "-o", color="#0072B2", label="prompt and iterates")
        for n, evaluation in trace:
            if (evaluation[3], evaluation[4]) == returned:
                label = "accepted" if accepted else "returned, not accepted"
                star = {"color": "#D55E00", "ms": 9, "label": label}
                panel.plot([n], [evaluation[3]], "*", **star, zorder=3)
                break
        panel.axhline(threshold, color="black", lw=0.8, ls="--", label="threshold")
        panel.set_xlim(0.5, len(trace) + 0.5)
        panel.set_ylim(-0.03, 1.03)
        panel.set_ylabel("toxicity")
        panel.set_xlabel("evaluation")
        panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        figure.suptitle(wrapped(f"{run.name}, prompt {record.id}", LABEL), fontsize=8)
        legend(figure, [panel], about(record, trial, len(trace), accepted))
    return figure


def about(record: Record, trial: TrialRecord, evaluations: int, accepted: bool) -> str:
    """Describe which trial of a record is shown."""
    says = f"Trial {trial.number + 1} of {len(record.trials)}"
    says += ", the one that took longest" if len(record.trials) > 1 else ""
    if evaluations == 1:
        says += ". Its one evaluation is the model's own completion of the prompt"
        says += ": it was accepted, so there was nothing to search" if accepted else ""
    return f"{says}."


def rows_by_threshold(provoking: Sequence[Run], harmless: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row for each method and threshold: toxic shares, altered share, and cost.

    A method that scores whole texts alters a text exactly if the guide's score of the model's own
    reaches the threshold, so the model's own runs tell what it alters. The others need runs.
    """
    rows = []
    unmodified = [run for run in harmless if run.is_base]
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
            for plain in unmodified:
                same = [other for other in harmless if alike(other, run) and same_set(other, plain)]
                if same:
                    altered += changes(plain, same[0])
        else:
            altered = [
                trial.toxicity >= threshold for plain in unmodified for _, trial in plain.trials
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


def save(figure: Figure, out: Path, name: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{slug(name)}.png"
    figure.savefig(path, dpi=200)
    print(path)


def read(paths: Sequence[Path]) -> list[Run]:
    return [read_run(path) for path in find_runs(list(paths))]


def sources_of(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(source for run in runs for source in run.sources))


@app.command()
def sensitivity(paths: Runs, out: Out = Path()) -> None:
    """Draw a figure for each setting that three or more runs differ in."""
    for (strategy, setting), sweeps in swept(read(paths)).items():
        for number, points in enumerate(sweeps, start=1):
            runs = [run for _, run in points]
            summaries = [report(run, tests=False, draw=False).summaries[-1] for run in runs]
            values = [value for value, _ in points]
            figure = draw_sensitivity(values, summaries, setting, sources_of(runs))
            save(figure, out, f"sensitivity-{strategy}-{setting}" + f"-{number}" * (number > 1))


@app.command()
def anytime(paths: Runs, out: Out = Path()) -> None:
    """Draw the toxic rate and the mean toxicity after N evaluations."""
    runs = read(paths)
    for measure in MEASURES:
        figure = draw_anytime(runs, sources_of(runs), measure)
        if figure is None:
            raise InputError("these runs have no steps; only searches record them")
        save(figure, out, f"anytime-{measure}")


@app.command()
def trajectory(
    path: Annotated[Path, typer.Argument(metavar="RUN")],
    prompt: Annotated[str, typer.Argument(help="Id of a prompt in it.")],
    out: Out = Path(),
) -> None:
    """Draw the search of one prompt."""
    run = read_run(path)
    record = next((record for record in run.records if str(record.id) == prompt), None)
    if record is None:
        raise InputError(f"{path}: no prompt with id {prompt!r}")
    if record.trials[0].trace is None:
        raise InputError(f"{path}: has no traces; only searches record them")
    save(draw_trajectory(run, record), out, f"trajectory-{prompt}-{run.name}")


@app.command()
def frontier(
    provoking: Annotated[Path, typer.Argument(help="Runs at several thresholds.")],
    harmless: Annotated[list[Path], typer.Argument(help="Runs of the model and `backtrack`.")],
    out: Out = Path(),
) -> None:
    """Draw toxicity against altered harmless texts by threshold, and write `frontier.csv`."""
    runs = read([provoking])
    rows = rows_by_threshold(runs, read(harmless))
    out.mkdir(parents=True, exist_ok=True)
    DataFrame(rows).to_csv(out / "frontier.csv", index=False, float_format="%.4g")
    save(draw_frontier(rows, sources_of(runs)[1:]), out, "frontier")


if __name__ == "__main__":
    try:
        app()
    except TideError as error:
        raise SystemExit(f"error: {error}") from None

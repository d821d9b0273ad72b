"""The figures of a report, legible at half a page and to colour-blind readers.

Each figure is a matplotlib `Figure`. Its panels (mostly one per source of scores) are stacked and
share the horizontal axis. Colours are Okabe and Ito's; each method has a marker as well.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from tide.core.optional import require
from tide.data.records import Record, TrialRecord
from tide.evaluation.metrics import Estimate, Summary, is_toxic
from tide.evaluation.reporting.tables import empty_notes
from tide.evaluation.runs import Run
from tide.plugins.specs import parse_spec

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_LINES = ("-", "--", "-.", ":")
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.markersize": 4.5,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a dollar in a model's name must not begin a formula
}
_WIDTH, _PANEL = 3.5, 2.1  # inches: half a page
# Columns of a legend by the length of its longest label; labels over 56 characters are wrapped.
_COLUMNS = ((14, 3), (26, 2), (56, 1), (math.inf, 1))
_LABEL = 46  # characters of a line below or above a panel
_NEAR = 4.0  # points; closer markers hide each other
_LARGEST = 1e6  # largest perplexity that is drawn
_FEW_DECADES = 300.0
# Costs of a prompt: model, scorer and time.
COSTS = {
    "forward_tokens": "tokens through the model, per prompt",
    "scorer_calls": "texts scored, per prompt",
    "rounds": "rounds, per prompt",
}
_MEASURES = {"max": "avg max toxicity", "mean": "avg mean toxicity", "rate": "toxic rate"}


def trade_off(summaries: Sequence[Summary], source_names: Sequence[str]) -> Any | None:
    """Plot toxicity against perplexity with intervals; lower left is best.

    Returns None if fewer than two runs have a perplexity.
    """
    found = [_perplexity(one) if one.perplexity else None for one in summaries]
    return _points(summaries, source_names, found, "max", "mean perplexity")


def cost(summaries: Sequence[Summary], source_names: Sequence[str], currency: str) -> Any | None:
    """Plot the toxic rate against the cost of a prompt in one of `COSTS`, as `trade_off` does."""
    found = [one.averages.get(currency) for one in summaries]
    return _points(summaries, source_names, found, "rate", COSTS[currency])


def _points(
    summaries: Sequence[Summary],
    source_names: Sequence[str],
    across: Sequence[Estimate | None],
    measure: str,
    label: str,
) -> Any | None:
    """Plot a measure of toxicity against `across`, which has a value or None for each summary."""
    # Methods without a value are numbered, too, so that colours are the same in every figure.
    shown = [(n, x) for n, x in enumerate(across) if x is not None and x.value > 0]
    if len(shown) < 2:
        return None
    titles = unversioned(source_names)
    with _panels(len(source_names)) as (figure, panels):
        for panel, source in zip(panels, source_names, strict=True):
            for number, x in shown:
                one = summaries[number]
                if measure not in one.toxicity.get(source, {}):
                    continue
                y = one.toxicity[source][measure]
                style = {**_line(number), "ls": "", "elinewidth": 0.8}
                bars = {"xerr": _bars(x), "yerr": _bars(y)}
                panel.errorbar(x.value, y.value, **bars, **style, label=one.method)
            panel.set_title(_wrapped(f"by {titles[source]}", _LABEL))
            panel.set_ylabel(_MEASURES[measure])
            from_zero(panel)
        if _spread([x.value for _, x in shown]) > 4:
            _logarithmic(panels[-1].xaxis, 10)
        panels[-1].set_xlabel(textwrap.fill(f"{label} (lower left is best)", _LABEL))
        for panel in panels:
            _nest(panel)
        _legend(figure, panels, "\n".join(empty_notes([summaries[n] for n, _ in shown])))
    return figure


def anytime(runs: Sequence[Run], source_names: Sequence[str], measure: str) -> Any | None:
    """Plot the toxicity of the text that a search returns if it ends after N evaluations.

    measure: `rate` (share of prompts with a toxic completion) or `mean`.
    Returns None if no run has steps.
    """
    shown = [
        (number, run)
        for number, run in enumerate(runs)
        if all(one.steps and not one.base_partial for r in run.records for one in r.trials)
    ]
    if not shown:
        return None
    curves = {
        (number, source): curve
        for number, run in shown
        for source in run.sources
        if (curve := anytime_curve(run, source, measure))[0]
    }
    longest = max(spent[-1] for spent, _ in curves.values())
    titles = unversioned(source_names)
    with _panels(len(source_names)) as (figure, panels):
        for panel, source in zip(panels, source_names, strict=True):
            for order, (number, run) in enumerate(shown):
                if (number, source) in curves:
                    x, y = curves[number, source]
                    x, y = [*x, longest], [*y, y[-1]]
                    # Earlier lines are wider, so that none hides another.
                    wider = (len(shown) - 1 - order) / max(1, len(shown) - 1)
                    size = {"lw": 1.2 + 1.4 * wider, "ms": 4.5 + 2.5 * wider}
                    style = {**_line(number), **size, "markevery": _every(x)}
                    panel.step(x, y, where="post", label=run.name, **style)
            panel.set_title(_wrapped(f"by {titles[source]}", _LABEL))
            panel.set_ylabel(_MEASURES[measure])
            from_zero(panel)
        _logarithmic(panels[-1].xaxis, 2)
        panels[-1].set_xlabel("evaluations spent on a completion")
        _legend(figure, panels)
    return figure


def anytime_curve(run: Run, source: str, measure: str) -> tuple[list[int], list[float]]:
    """Return numbers of evaluations, and the measure of the texts returned after each number.

    Trials whose steps `source` has not scored are left out.
    """
    trials: list[tuple[int, list[int], list[float]]] = []
    for number, record in enumerate(run.records):
        for trial in record.trials:
            steps = trial.steps or []
            own = [step.toxicity for step in steps]
            scores = own if source == run.scorer else trial.step_judge_scores.get(source)
            if scores:
                trials.append((number, [step.evaluations for step in steps], scores))
    spent = sorted({count for _, counts, _ in trials for count in counts})
    curve = []
    for now in spent:
        found: dict[int, list[float]] = {}
        for number, counts, values in trials:
            # Before its first step, a trial would return the text of that step.
            value = values[max(0, bisect_right(counts, now) - 1)]
            found.setdefault(number, []).append(value)
        if measure == "rate":
            curve.append(fmean(is_toxic(run, max(some)) for some in found.values()))
        else:
            curve.append(fmean(map(fmean, found.values())))
    return spent, curve


def sensitivity(
    swept: Sequence[tuple[float, Summary]], setting: str, source_names: Sequence[str]
) -> Any:
    """Plot toxicity, perplexity (mean and median) and iterations against one setting."""
    values = [value for value, _ in swept]
    extra = {}
    if all(one.perplexity for _, one in swept):
        extra["perplexity"] = "perplexity\n(dotted: median)"
    if all("iterations" in one.averages for _, one in swept):
        extra["iterations"] = "mean iterations"
    titles = unversioned(source_names)
    with _panels(1 + len(extra)) as (figure, panels):
        for number, source in enumerate(source_names):
            judged = [one.toxicity.get(source, {}) for _, one in swept]
            estimates = [one["max"] for one in judged if "max" in one]
            if len(estimates) == len(values):
                _curve(panels[0], values, estimates, number, titles[source])
        panels[0].set_ylabel(_MEASURES["max"])
        for panel, (name, label) in zip(panels[1:], extra.items(), strict=True):
            is_perplexity = name == "perplexity"
            estimates = [_perplexity(s) if is_perplexity else s.averages[name] for _, s in swept]
            _curve(panel, values, estimates, 6, None)
            panel.set_ylabel(label)
            if is_perplexity:
                # a few broken completions dominate the mean
                medians = [next(iter(s.fluency.values())).median or math.nan for _, s in swept]
                panel.plot(values, medians, color="black", linestyle=":")
                if _spread([*medians, *(one.value for one in estimates)]) > 10:
                    _logarithmic(panel.yaxis, 10)
        if min(values) > 0 and _spread(values) >= 8:
            _logarithmic(panels[-1].xaxis, 2)
        slant = 45 if len(values) > 6 else 0
        panels[-1].set_xticks(values, [f"{value:g}" for value in values], rotation=slant)
        panels[-1].set_xticks([], minor=True)
        from_zero(panels[0])
        panels[-1].set_xlabel(setting.replace("_", " "))
        _legend(figure, panels)
    return figure


def sweeps(runs: Sequence[Run]) -> list[tuple[str, str, list[tuple[float, Run]]]]:
    """Find three or more runs that differ in one setting. Returns strategy, setting and runs."""
    found: dict[tuple[Any, ...], list[tuple[float, Run]]] = {}
    for run in runs:
        strategy, knobs = _knobs(run)
        for name, value in knobs.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = tuple(sorted((k, repr(v)) for k, v in knobs.items() if k != name))
                found.setdefault((strategy, name, others), []).append((value, run))
    return [
        (strategy, name, sorted(some, key=lambda pair: pair[0]))
        for (strategy, name, _), some in found.items()
        if len({value for value, _ in some}) == len(some) >= 3
    ]


def trajectory(run: Run, record: Record) -> Any:
    """Plot the toxicity of one prompt by evaluation: the path, and the points around the path.

    Shows the longest trial. record: a record of `run` with traces.
    """
    trial = max(record.trials, key=lambda one: len(one.trace or ()))
    trace = list(enumerate(trial.trace or (), start=1))
    tried = [(n, evaluation[3]) for n, evaluation in trace if evaluation[2] == "perturbation"]
    path = [(n, evaluation[3]) for n, evaluation in trace if evaluation[2] != "perturbation"]
    returned = trial.toxicity, round(1.0 if trial.cosine is None else trial.cosine, 6)
    threshold = run.config.get("settings", {}).get("toxicity_threshold", 0.5)
    accepted = trial.toxicity < threshold if trial.accepted is None else trial.accepted
    with _panels(1) as (figure, (panel,)):
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
        says = about(record, trial)
        if len(trace) == 1:
            says += ". Its one evaluation is the model's own completion of the prompt"
            says += ": it was accepted, so there was nothing to search" if accepted else ""
        figure.suptitle(_wrapped(f"{run.name}, prompt {record.id}", _LABEL), fontsize=8)
        _legend(figure, [panel], f"{says}.")
    return figure


def about(record: Record, trial: TrialRecord) -> str:
    """Describe which trial of a record is shown."""
    count = len(record.trials)
    longest = ", the one that took longest" if count > 1 else ""
    return f"Trial {trial.number + 1} of {count}{longest}"


def unversioned(sources: Sequence[str]) -> dict[str, str]:
    """Map each source to its name without version, unless two sources differ only in version."""
    short = {source: re.sub(r"@[\w.+-]+", "", source) for source in sources}
    return short if len(set(short.values())) == len(short) else {name: name for name in sources}


def _wrapped(name: str, width: int) -> str:
    """Wrap a method's name after commas, and elsewhere only if necessary."""
    lines = textwrap.wrap(name.replace(",", ", "), width, subsequent_indent="  ")
    return "\n".join(lines).replace(", ", ",")


def find_record(run: Run, record_id: str) -> Record | None:
    """Return the record with an id, as given on the command line, or None."""
    return next((record for record in run.records if str(record.id) == record_id), None)


def _knobs(run: Run) -> tuple[str, dict[str, Any]]:
    """Return the strategy or baseline of a run, and all settings, including the protocol's."""
    config = run.config
    settings = {**config.get("baseline", {}), **(config.get("settings") or {})}
    strategy = parse_spec(str(settings.get("strategy") or config.get("method", run.name)))[0]
    knobs = {**config.get("protocol", {}), **config.get("sampling", {}), **settings}
    knobs |= config.get("strategy_options", {})
    return strategy, {k: v for k, v in knobs.items() if k not in ("seed", "strategy")}


def _perplexity(summary: Summary) -> Estimate:
    """Return the perplexity, capped for the axis: a broken text may have a perplexity of 1e300."""
    one = summary.perplexity or Estimate(math.nan)
    ends = (None if end is None else min(end, _LARGEST) for end in (one.low, one.high))
    return Estimate(min(one.value, _LARGEST), *ends)


def _curve(
    panel: Any, x: Sequence[float], estimates: Sequence[Estimate], number: int, label: str | None
) -> None:
    y = [one.value for one in estimates]
    panel.plot(x, y, label=label, **_line(number))
    if all(one.low is not None for one in estimates):
        low, high = [one.low for one in estimates], [one.high for one in estimates]
        panel.fill_between(x, low, high, color=_COLOURS[number % 7], alpha=0.18, lw=0)


def _line(number: int) -> dict[str, str]:
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "ls": _LINES[number // len(_COLOURS) % len(_LINES)],
    }


def from_zero(panel: Any) -> None:
    """Let the vertical axis begin at 0, with room for a marker there."""
    top = panel.get_ylim()[1]
    panel.set_ylim(-0.04 * top, top)


def _nest(panel: Any) -> None:
    """Draw points that lie under other points as larger rings, so that all points are visible."""
    lines = [container.lines[0] for container in panel.containers]
    places = [panel.transData.transform(line.get_xydata()[0]) for line in lines]
    near = _NEAR * panel.figure.dpi / 72
    for number, line in enumerate(lines):
        above = sum(math.dist(places[number], other) < near for other in places[number + 1 :])
        if above:
            size = line.get_markersize() + 4.5 * above
            line.set(markersize=size, markerfacecolor="none", markeredgewidth=1.2)


def _every(x: Sequence[int]) -> list[int]:
    """Return the indices for markers on a long curve: the first point from each power of two."""
    powers = itertools.takewhile(lambda power: power <= x[-1], (2**i for i in itertools.count()))
    return sorted({next(i for i, value in enumerate(x) if value >= power) for power in powers})


def _bars(estimate: Estimate) -> list[list[float]] | float | None:
    if estimate.low is None or estimate.high is None:
        return estimate.std
    return [[estimate.value - estimate.low], [estimate.high - estimate.value]]


def _spread(values: Sequence[float]) -> float:
    return float(max(values) / min(values))


def _logarithmic(axis: Any, base: int) -> None:
    ticker = require("matplotlib.ticker", "report")
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    # Over many decades, labels between the decades would overlap.
    between = base == 10 and high / low < _FEW_DECADES
    axis.set_major_locator(ticker.LogLocator(base, subs=(1, 2, 5) if between else (1,)))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_formatter(ticker.NullFormatter())
    if base == 2:
        axis.set_minor_locator(ticker.NullLocator())


@contextmanager
def _panels(count: int) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yield a figure and its `count` panels below each other, in the style of the report."""
    with require("matplotlib", "report").rc_context(_STYLE):
        figure = require("matplotlib.figure", "report").Figure(
            figsize=(_WIDTH, 0.6 + _PANEL * count), layout="constrained"
        )
        yield figure, figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]


def _legend(figure: Any, panels: Sequence[Any], says: str = "") -> None:
    """Add a legend for all panels, without duplicates. says: a small caption above the legend."""
    entries: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        longest = max(map(len, entries))
        columns = next(count for most, count in _COLUMNS if longest <= most)
        labels = [_wrapped(label, _COLUMNS[-2][0]) for label in entries]
        place = {"loc": "outside lower center", "ncols": columns}
        title = {"title": textwrap.fill(says, 78), "title_fontsize": 6} if says else {}
        figure.legend(entries.values(), labels, **place, **title)

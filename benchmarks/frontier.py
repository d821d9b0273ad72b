"""What each search pays for how much safety: searches at several thresholds, by unseen judges.

    python benchmarks/frontier.py [--only tide] [--first 601 --last 1199] [--figure frontier.png]

Optimising against a scorer until it says 0.49 overfits that scorer. Each row is one search on the
same prompts of RealToxicityPrompts-challenging, guided by one scorer or by the mean of two, and
judged by those that do not guide, at 0.5, whatever the search accepted below. `forward` are the
tokens that went through the model, a prompt; `scored` the texts that the guide was asked for.
Perplexities of all completions are the mean, the mean of those of exactly 20 tokens, and the median
(`ppl`); of the moved ones the median and the 95th percentile. The figure shows what the stricter
judge calls toxic against forward tokens, one curve a search, a panel a temperature. Runs are kept
in `benchmarks/results/frontier` and not run again. `--answers benchmarks/results/answers` gives it
a panel of the long answers that `answers.py` has written, by their worst window.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import typer
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox
from rich import box as borders
from rich.console import Console
from rich.table import Table

from tide.evaluation import Bars, evaluate
from tide.evaluation.benchmarks import load_benchmark
from tide.evaluation.metrics import Summary, summarize
from tide.evaluation.protocols import load_protocol
from tide.evaluation.runs import find_runs, read_run
from tide.plugins.specs import parse_spec

RESULTS = Path(__file__).resolve().parent / "results"
GUIDES = {
    "pocket": "pocket",
    "profanity-check": "profanity-check",
    "both": "mean:pocket,profanity-check",
}
JUDGES = ("pocket", "profanity-check", "lexicon")
METHODS = ("tide", "random-walk", "backtrack", "resample:temperature=0.7")
TAUS = (0.5, 0.4, 0.3, 0.2, 0.1)
COSTS = ("evals", "forward", "scored", "unres.")
FLUENCY = ("moved", "mean", "of 20", "ppl", "of moved", "p95", "empty")
Row = tuple[str, Summary, list[str]]  # spec, metrics, judges
Curves = dict[str, list[tuple[float, float, str]]]
PLACES = ((4, 7), (4, -7), (7, 0), (4, 15), (4, -15))  # of a label beside its point, in points
TICKS = (30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000)


def stricter(found: Summary, judges: list[str]) -> float:
    """What the judge that calls most toxic calls toxic, as a share of the prompts."""
    return max(found.toxicity[judge]["rate"].value for judge in judges)


def row(found: Summary, judges: list[str]) -> list[str]:
    averages, fluency = found.averages, found.fluency["pocket-reference"]
    by_name = {judge.partition("@")[0]: found.toxicity[judge] for judge in judges}
    digits = {"evaluations": 2, "forward_tokens": 0, "scorer_calls": 2, "unresolved": 3}
    cells = [
        f"{averages[name].value:.{places}f}" if name in averages else "-"
        for name, places in digits.items()
    ]
    toxic = [by_name.get(judge) for judge in JUDGES]
    cells += [f"{one['rate'].value:.3f}" if one else "-" for one in toxic]
    cells += [f"{averages['moved'].value:.2f}" if "moved" in averages else "-"]
    means = [one and one.value for one in (fluency.mean, fluency.mean_20)]
    cells += ["-" if value is None else f"{value:.2f}" for value in means]
    of_moved = (fluency.median, 2), (fluency.moved_median, 2), (fluency.moved_p95, 0)
    cells += ["-" if value is None else f"{value:.{places}f}" for value, places in of_moved]
    return [*cells, f"{averages['empty'].value:.3f}" if "empty" in averages else "-"]


def answers_in(folder: Path) -> list[Row]:
    """The long answers of a folder, judged by their worst window."""
    runs = [read_run(one) for one in find_runs([folder])]
    return [
        (run.name, summarize(run), [one for one in run.sources if one.startswith("windows:")])
        for run in runs
    ]


def panels_of(rows: list[Row], answers: list[Row], default: float) -> dict[str, Curves]:
    """By title: by the name of a search, its tokens, what is toxic, and what it accepts below.

    Temperature 1 has a panel of its own; any other is in the name of its search.
    """
    panels: dict[str, Curves] = {f"temperature {one:g}": {} for one in (default, 1.0)}
    for number, (spec, found, judges) in enumerate([*rows, *answers]):
        kind, options = parse_spec(spec)
        below = options.pop("toxicity_threshold", "")  # without a label: the preset's own
        title = f"temperature {default:g}"
        if number >= len(rows):
            title = "long answers, worst window"
            for shared in ("max_new_tokens", "temperature"):  # of all answers, in each name
                options.pop(shared, None)
        elif options.get("temperature") == "1":
            title = "temperature 1"
            options.pop("temperature")
        name = ", ".join([kind, *(f"{key}={value}" for key, value in options.items())])
        point = (found.averages["forward_tokens"].value, stricter(found, judges), below)
        panels.setdefault(title, {}).setdefault(name, []).append(point)
    return {title: curves for title, curves in panels.items() if curves}


def draw(panels: dict[str, Curves], path: Path) -> None:
    """A curve a search, its points labelled with what they accept below."""
    names = dict.fromkeys(name for curves in panels.values() for name in curves)
    marks = dict(zip(names, itertools.cycle("osD^v*P<>X"), strict=False))
    colours = dict(zip(names, itertools.cycle(plt.get_cmap("tab20").colors), strict=False))
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(1 + 5.5 * len(panels), 4.8),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    named: defaultdict[Axes, list[tuple[float, float, str]]] = defaultdict(list)
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, points in curves.items():
            x, y, labels = zip(*sorted(points), strict=True)
            axis.plot(x, y, f"{marks[name]}-", color=colours[name], markersize=5, label=name)
            named[axis] += zip(x, y, labels, strict=True)
        axis.set(xscale="log", title=title, xlabel="forward tokens")
        ticks = [tick for tick in TICKS if axis.get_xlim()[0] <= tick <= axis.get_xlim()[1]]
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.legend(title="labels: accepts below", fontsize=8)
        axis.margins(x=0.08)
    axes[0][0].set_ylim(bottom=-0.005)  # of all, once they hold their points
    axes[0][0].set_ylabel("toxic by the stricter judge, share of prompts")
    figure.draw_without_rendering()  # where the panels lie
    for axis, points in named.items():
        label_points(axis, points)
    figure.savefig(path, dpi=120)


def label_points(axis: Axes, points: list[tuple[float, float, str]]) -> None:
    """A label beside each point, where no other label or point is, if there is such a place."""
    taken = [
        Bbox.from_extents(*(at - 3), *(at + 3))
        for at in axis.transData.transform([(x, y) for x, y, _ in points])
    ]
    for x, y, text in points:
        label = axis.annotate(
            text, (x, y), (0, 0), fontsize=7, textcoords="offset points", va="center"
        )
        for place, align in itertools.product(PLACES, ("left", "right")):
            label.set(position=place if align == "left" else (-place[0], place[1]), ha=align)
            box = label.get_window_extent()
            inside = axis.bbox.x0 < box.x0 and box.x1 < axis.bbox.x1 and axis.bbox.y0 < box.y0
            if inside and not box.count_overlaps(taken):
                break
        taken.append(box)


def main(
    only: Annotated[str, typer.Option(help="Methods, comma-separated.")] = ",".join(METHODS),
    add: Annotated[list[str] | None, typer.Option(help="Further specs.")] = None,
    guides: Annotated[str, typer.Option(help=f"Of {', '.join(GUIDES)}.")] = "pocket,both",
    first: int = 601,
    last: int = 1199,
    trials: int = 1,
    protocol: str = "tide",
    figure: Annotated[Path | None, typer.Option(help="File for the figure.")] = None,
    answers: Annotated[Path | None, typer.Option(help="Runs of answers.py for it.")] = None,
    out: Path = RESULTS / "frontier",
) -> None:
    prompts = [row.text for row in load_benchmark(f"rtp:{first}-{last}").rows]
    chosen = [
        f"{method}{',' if ':' in method else ':'}toxicity_threshold={tau}"
        for method in filter(None, only.split(","))
        for tau in TAUS
    ] + list(add or [])
    table = Table(box=borders.SIMPLE, padding=(0, 0), title=f"prompts {first} to {last}")
    table.add_column("method", overflow="fold")
    table.add_column("guides")
    rows: list[Row] = []
    for heading in (*COSTS, *JUDGES, *FLUENCY):
        table.add_column(heading, justify="right")
    for guide in guides.split(","):
        runs = evaluate(
            prompts,
            chosen,
            scorer=GUIDES[guide],
            judges=[judge for judge in JUDGES if judge not in GUIDES[guide]],
            reference="pocket-reference",
            protocol=protocol,
            num_trials=trials,
            out=out / f"{guide}-{first}-{last}{'' if protocol == 'tide' else f'-{protocol}'}",
            progress=Bars(),
        )
        for spec, run in zip(chosen, runs, strict=True):
            judges = list(run.sources[1:])
            rows.append((spec, summarize(run), judges))
            table.add_row(spec, guide, *row(*rows[-1][1:]))
    Console(width=130).print(table)
    if figure:
        long = answers_in(answers) if answers else []
        default = load_protocol(protocol).sampling["temperature"]
        draw(panels_of(rows, long, default), figure)


if __name__ == "__main__":
    typer.run(main)

"""What a margin buys: searches that accept below 0.1 to 0.5, judged by scorers they never saw.

    python benchmarks/margin.py [--only fast] [--first 601 --last 1199] [--figure frontier.png]

Optimising against a scorer until it says 0.49 overfits that scorer. Each row is one search on the
same prompts of RealToxicityPrompts-challenging, guided by one scorer or by the mean of two, and
judged by `profanity-check` (unless it guides) and `lexicon` at 0.5, whatever the search accepted
below. `forward` are the tokens that went through the model, a prompt. The figure shows, for every
row, evaluations against the moved completions' median perplexity, coloured by the stricter judge.
Runs are kept in `benchmarks/results/margin` and not run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tide.evaluation import Bars, evaluate
from tide.evaluation.benchmarks import load_benchmark
from tide.evaluation.metrics import Summary, summarize
from tide.plugins.specs import parse_spec

RESULTS = Path(__file__).resolve().parent / "results"
GUIDES = {"one": "pocket", "two": "mean:pocket,profanity-check"}
JUDGES = ["profanity-check", "lexicon"]
METHODS = ("tide", "fast", "resample:temperature=0.7")
TAUS = (0.5, 0.4, 0.3, 0.2, 0.1)


def row(found: Summary, judges: list[str]) -> list[str]:
    averages, fluency = found.averages, found.fluency["pocket-reference"]
    toxic = [found.toxicity.get(judge, {}) for judge in judges]
    cells = [f"{averages['evaluations'].value:.2f}", f"{averages['forward_tokens'].value:.0f}"]
    cells += [f"{averages['unresolved'].value:.3f}"]
    cells += [f"{one['rate'].value:.3f}" if one else "-" for one in toxic]
    cells += [f"{one['mean'].value:.3f}" if one else "-" for one in toxic[:1]]
    cells += [f"{averages['moved'].value:.2f}"]
    cells += [f"{fluency.moved_median:.2f}", f"{fluency.moved_p95:.0f}"]
    return [*cells, f"{averages['empty'].value:.3f}"]


def draw(rows: list[tuple[Summary, list[str]]], path: Path) -> None:
    """A point a row, labelled with what it accepts below; its mark says which method it is."""
    kinds: dict[str, str] = {}
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for found, judges in rows:
        kind, options = parse_spec(found.method)
        kind += ", one at a time" if options.get("num_samples") == "1" else ""
        x = found.averages["evaluations"].value
        y = found.fluency["pocket-reference"].moved_median
        rate = max(found.toxicity[judge]["rate"].value for judge in judges)
        marker = kinds.setdefault(kind, "os^D*v<>"[len(kinds) % 8])
        shown = axis.scatter(
            [x], [y], c=[rate], cmap="viridis_r", vmin=0, vmax=0.2, s=45, marker=marker
        )
        below = options.get("toxicity_threshold", "0.5")
        axis.annotate(below, (x, y), fontsize=7, xytext=(5, -3), textcoords="offset points")
    for kind, marker in kinds.items():
        axis.plot([], [], marker, color="grey", label=kind)
    axis.legend(title="accepts below the number", fontsize=8)
    axis.set(xlabel="evaluations a prompt", ylabel="moved completions: median perplexity")
    axis.set_xscale("log")
    axis.set_xticks(ticks := [2, 3, 5, 10, 20], [str(tick) for tick in ticks])
    axis.minorticks_off()
    figure.colorbar(shown, label="toxic by the stricter of the judges")
    figure.savefig(path, dpi=120)


def main(
    only: Annotated[str, typer.Option(help="Methods, comma-separated.")] = ",".join(METHODS),
    add: Annotated[list[str] | None, typer.Option(help="Further specs.")] = None,
    guides: Annotated[str, typer.Option(help="Of one, two.")] = "one,two",
    first: int = 601,
    last: int = 1199,
    trials: int = 1,
    protocol: str = "tide",
    figure: Annotated[Path | None, typer.Option(help="File for the figure.")] = None,
    out: Path = RESULTS / "margin",
) -> None:
    prompts = [row.text for row in load_benchmark(f"rtp:{first}-{last}").rows]
    chosen = [
        f"{method}{',' if ':' in method else ':'}toxicity_threshold={tau}"
        for method in filter(None, only.split(","))
        for tau in TAUS
    ] + list(add or [])
    table = Table(box=box.SIMPLE, padding=(0, 0), title=f"prompts {first} to {last}")
    table.add_column("method")
    table.add_column("guides")
    rows: list[tuple[Summary, list[str]]] = []
    for heading in ("evals", "forward", "unres.", *JUDGES, "mean", "moved", "ppl", "p95", "empty"):
        table.add_column(heading, justify="right")
    for guide in guides.split(","):
        runs = evaluate(
            prompts,
            chosen,
            scorer=GUIDES[guide],
            judges=JUDGES,
            reference="pocket-reference",
            protocol=protocol,
            num_trials=trials,
            out=out / f"{guide}-{first}-{last}{'' if protocol == 'tide' else f'-{protocol}'}",
            progress=Bars(),
        )
        for run in runs:
            judges = [name for name in run.sources if name.partition("@")[0] in JUDGES]
            rows.append((summarize(run), judges))
            table.add_row(run.name, guide, *row(*rows[-1]))
    Console(width=130).print(table)
    if figure:
        draw(rows, figure)


if __name__ == "__main__":
    typer.run(main)

"""The paper's trade-off figure: printed toxicity against printed perplexity, twelve panels.

    python reproduction/trade_off.py data/paper/recorded --image paper-trade-off.png

Hollow marks show the mean score of a single completion, at the same perplexity. On RTP-challenging
it is computed from the records (for TIDE, from its first trials). Elsewhere it is the printed mean,
and TIDE has no hollow mark, since its printed maximum is already a single draw.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from paper import FIRST, SEARCH, imported, printed, printed_row, scores

from tide import TideError

BENCHMARKS = {"rtp": "RTP", "attaq": "AttaQ", "bold": "BOLD"}
MODELS = {
    "gpt2-large": "GPT-2 Large",
    "qwen3-4b": "Qwen3 4B",
    "gemma-2-2b": "Gemma 2 2B",
    "llama-3.1-8b": "Llama 3.1 8B",
}
# Colour (Okabe and Ito's) and marker of each system; a line joins the strengths of one system.
SYSTEMS = {
    "Base model": ("#000000", "X"),
    "tide": ("#D55E00", "*"),
    "RAD": ("#0072B2", "o"),
    "SASA": ("#009E73", "s"),
    "DExperts": ("#CC79A7", "^"),
    "DeStein": ("#E69F00", "D"),
    "GeDi": ("#56B4E9", "v"),
    "Toxification Reversal": ("#7F7F7F", "P"),
}
SAYS = (
    "Filled: the printed average maximum of three completions, against the printed perplexity "
    "(lower left is best); betas of one system are joined.\nHollow: the mean score of single "
    "completions, by Perspective from the records (of TIDE: first trials) or as printed."
)


def draw(panel: Axes, rows: dict[str, dict[str, float]], draws: dict[str, float]) -> None:
    for system, (colour, marker) in SYSTEMS.items():
        matching = [name for name in rows if name.partition(" (")[0] == system]
        matching.sort(key=lambda name: int((re.findall(r"\d+", name) or ["0"])[0]))
        look = {"color": colour, "marker": marker, "lw": 0.8, "ms": 8 if marker == "*" else 3.5}
        points = [(rows[name]["perplexity"], rows[name]["max"]) for name in matching]
        panel.plot(*zip(*points, strict=True), label=system, **look) if points else None
        hollow = [(rows[name]["perplexity"], draws[name]) for name in matching if name in draws]
        if hollow:
            panel.plot(*zip(*hollow, strict=True), ls="", mfc="none", **look)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_ylim(bottom=0)


def main(
    recorded: Annotated[Path, typer.Argument(help="Folder with MODEL/METHOD.json.gz.")],
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/paper"),
    image: Annotated[Path, typer.Option()] = Path("paper-trade-off.png"),
) -> None:
    runs = imported(recorded, out)
    with mpl.rc_context({"font.size": 7, "axes.titlesize": 7, "legend.frameon": False}):
        figure = Figure(figsize=(7.2, 6.0), layout="constrained")
        panels = figure.subplots(len(BENCHMARKS), len(MODELS), squeeze=False)
        for line, (benchmark, heading) in zip(panels, BENCHMARKS.items(), strict=True):
            for panel, (model, name) in zip(line, MODELS.items(), strict=True):
                rows = printed(benchmark, model)
                draws = {row: measures["mean"] for row, measures in rows.items() if row != SEARCH}
                for run in runs.get(model, ()) if benchmark == "rtp" else ():
                    row = printed_row(run.name, rows)
                    if row is not None and (row != SEARCH or run.name == FIRST):
                        draws[row] = float(scores(run, run.scorer).mean())
                draw(panel, rows, draws)
                panel.set_title(f"{heading}, {name}")
            line[0].set_ylabel("avg max toxicity")
        for panel in panels[-1]:
            panel.set_xlabel("perplexity")
        entries = {}
        for panel in panels.flat:
            entries |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
        where = {"loc": "outside lower center", "ncols": 4, "title": SAYS, "title_fontsize": 6}
        figure.legend(entries.values(), entries, **where)
        figure.savefig(image, dpi=200)
    print(image)


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None

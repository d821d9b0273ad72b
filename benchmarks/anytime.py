"""Draw the anytime curve: the judge's toxic rate against the evaluations spent.

    python benchmarks/anytime.py

Needs matplotlib (the extra `bench`). Reads `benchmarks/results/strategies.json` and writes
`benchmarks/results/anytime.png`.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

RESULTS = Path(__file__).resolve().parent / "results"
# Name in the results, colour (Okabe-Ito, told apart by colour-blind eyes), line style.
SHOWN = [
    ("tide", "#000000", "-"),
    ("shuffled", "#999999", "--"),
    ("random-walk", "#0072B2", "--"),
    ("accept-any N 4 mu .8", "#009E73", "-"),
    ("fast", "#D55E00", "-"),
    ("resample T 1", "#CC79A7", ":"),
    ("resample T .1", "#56B4E9", ":"),
]


def main() -> None:
    rows = {
        row["name"]: row for row in json.loads((RESULTS / "strategies.json").read_text())["rows"]
    }
    figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
    for name, colour, style in SHOWN:
        curve = rows[name]["curve"]
        axes.step(range(1, len(curve) + 1), curve, where="post", color=colour, ls=style, label=name)
    axes.set_xlabel("evaluations spent on a completion")
    axes.set_ylabel("toxic rate by the judge")
    axes.set_ylim(0)
    axes.set_xlim(1, 40)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "anytime.png", dpi=150)


if __name__ == "__main__":
    main()

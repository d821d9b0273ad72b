"""How much each baseline takes away at three strengths, and what becomes of the text.

    tide fit all --data ../shared/data/labelled/toxicity.jsonl.gz \
        --data ../shared/data/labelled/paradetox_pairs.jsonl.gz --out artefacts/pocket
    python benchmarks/baselines.py [--limit 100] [--temperature 0.1] [--only A,B] [--add SPEC]

Runs the bundled model on the first prompts of RealToxicityPrompts-challenging, one completion each
(`--trials` for more), each method into a run folder in `benchmarks/results/baselines-tTEMPERATURE`;
what is there is not run again. `profanity-check` judges; perplexity is that of the completion after
its prompt under the larger pocket reference model. `resample` chooses by the pocket scorer.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich import print
from rich.table import Table
from strategies import JUDGE, REFERENCE, RESULTS, means

from tide.evaluation import Bars, evaluate
from tide.specs import parse_spec

BASE = "base"
STRENGTHS = {
    "resample:n={}": (2, 4, 10),
    "self-debias:decay={}": (10, 50, 200),
    "self-debias:order=warp-shift,decay={}": (10, 50, 200),
    "reversal:scale={}": (0.5, 1, 2),
    "sasa:beta={}": (5, 10, 30),
    "sasa:normalize=softmax,beta={}": (100, 300, 500),
    "destein:alpha={}": (0.2, 0.4, 0.6),
    "rad:beta={}": (25, 50, 100),
    "rad:normalize=clamp,beta={}": (5, 10, 20),
    "dexperts:alpha={}": (1, 2, 4),
    "dexperts:order=warp-shift,alpha={}": (1, 2, 4),
    "gedi:omega={}": (10, 30, 90),
    "gedi:order=warp-shift,omega={}": (10, 30, 90),
    "dapt:scale={}": (0.25, 0.5, 1),
}


def show(rows: dict[str, dict[str, float]]) -> Table:
    """falls: whether the toxicity falls with every step of the strength, from the model's own."""
    columns = {"judge": 3, "toxicity": 3, "ppl": 1, "empty": 2, "tokens": 0, "ms": 0}
    table = Table("", "toxic", "toxicity", "ppl med.", "empty", "tokens", "ms", "falls")
    for _, family in groupby(rows, key=lambda spec: spec.rpartition("=")[0]):
        same = list(family)
        values = [rows[spec]["toxicity"] for spec in (BASE, *same)]
        falls = all(b <= a for a, b in pairwise(values)) and values[-1] < values[0]
        for spec in same:
            last = spec is same[-1] and spec != BASE
            cells = (f"{rows[spec][key]:.{digits}f}" for key, digits in columns.items())
            table.add_row(spec, *cells, ("yes" if falls else "no") if last else "")
        table.add_section()
    return table


def main(
    limit: int = 100,
    trials: int = 1,
    temperature: float = 0.1,
    only: Annotated[str, typer.Option(help="Names, comma-separated.")] = "",
    add: Annotated[list[str] | None, typer.Option(help="NAME:KEY=VALUE,...")] = None,
    artefacts: Path = RESULTS.parents[1] / "artefacts" / "pocket",
    data: str = "rtp",
    out: Path | None = None,
) -> None:
    names = {name.strip() for name in only.split(",")} if only else None
    specs = [s.format(v) for s, values in STRENGTHS.items() for v in values]
    specs = [BASE, *(s for s in specs if names is None or parse_spec(s)[0] in names), *(add or [])]
    runs = evaluate(
        data,
        specs,
        judges=JUDGE,
        reference=REFERENCE,
        artefacts=artefacts,
        limit=limit,
        num_trials=trials,
        temperature=temperature,
        out=out or RESULTS / f"baselines-t{temperature:g}",
        progress=Bars(),
    )
    print(show({spec: means(run) for spec, run in zip(specs, runs, strict=True)}))


if __name__ == "__main__":
    typer.run(main)

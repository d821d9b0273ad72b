"""How much each baseline takes away at three strengths, and what becomes of the text.

    tide fit all --data ../shared/data/labelled/toxicity.jsonl.gz \
        --data ../shared/data/labelled/paradetox_pairs.jsonl.gz --out artefacts/pocket
    python benchmarks/baselines.py [--limit 100] [--temperature 0.1] [--only A,B] [--add SPEC]

Runs the bundled model on the first prompts of RealToxicityPrompts-challenging, one completion each
(`--trials` for more). `profanity-check` judges; perplexity is that of the completion after its
prompt under the larger pocket reference model. `resample` chooses by the pocket scorer. Prints a
table, writes `benchmarks/results/baselines-tTEMPERATURE.json` row by row; rows that are there are
not run again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tide import Detoxifier, Sampling, load_scorer
from tide.baselines import load_baseline
from tide.data.prompts import read_rows
from tide.engines.local.engine import TransformersEngine
from tide.scorers import Scorer
from tide.seeds import derive_seed
from tide.specs import parse_spec

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"
RESULTS = REPOSITORY / "benchmarks" / "results"
console = Console()

BASE = "resample:n=1"  # a strategy: its first draw is the model's own completion
STRENGTHS = {
    "resample:n={}": (2, 4, 10),
    "self-debias:decay={}": (10, 50, 200),
    "self-debias:order=warp-shift,decay={}": (10, 50, 200),
    "reversal:scale={}": (0.5, 1, 2),
    "sasa:beta={}": (5, 10, 30),
    "sasa:normalize=softmax,beta={}": (100, 300, 500),
    "destein:alpha={}": (0.2, 0.4, 0.6),
    "rad:beta={}": (25, 50, 100),
    "rad:normalize=clamp,beta={}": (50, 100, 200),
    "dexperts:alpha={}": (1, 2, 4),
    "dexperts:order=warp-shift,alpha={}": (1, 2, 4),
    "gedi:omega={}": (10, 30, 90),
    "gedi:order=warp-shift,omega={}": (10, 30, 90),
    "dapt:scale={}": (0.25, 0.5, 1),
}


# Writes a completion for each prompt: its text, the evaluations and the tokens that it took.
Write = Callable[[], list[tuple[str, int, int]]]


def writer(
    spec: str,
    artefacts: Path,
    prompts: list[str],
    trials: int,
    sampling: Sampling,
    engine: TransformersEngine,
) -> tuple[dict[str, Any], Write]:
    """What decides the completions of `spec`, and what writes them."""
    scorer = load_scorer("pocket")
    if spec.startswith("resample"):
        keywords = {"strategy": spec, "num_trials": trials, **sampling.model_dump()}
        search = Detoxifier(engine, scorer=scorer, preset="relative", **keywords)

        def draw() -> list[tuple[str, int, int]]:
            lengths = [len(ids) for ids in engine.tokenize(prompts)]
            return [
                (trial.text, trial.evaluations, trial.generated_tokens + length * trial.evaluations)
                for result, length in zip(search.map(prompts), lengths, strict=True)
                for trial in result.trials
            ]

        return {"settings": search.settings.model_dump(), "scorer": scorer.name}, draw
    baseline = load_baseline(spec, engine, artefacts=artefacts, scorer=scorer)
    each = [(prompt, trial) for prompt in prompts for trial in range(trials)]

    def write() -> list[tuple[str, int, int]]:
        seeds = [derive_seed(0, prompt, trial) for prompt, trial in each]
        written = baseline.generate([prompt for prompt, _ in each], sampling, seeds)
        return [(row.completion.text, row.evaluations, row.forward_tokens) for row in written]

    return baseline.config(), write


def measure(
    spec: str,
    config: dict[str, Any],
    write: Write,
    prompts: list[str],
    reference: TransformersEngine,
    judge: Scorer,
) -> dict[str, Any]:
    """prompts: one for each completion."""
    started = time.perf_counter()
    texts, evaluations, forward_tokens = zip(*write(), strict=True)
    seconds = time.perf_counter() - started
    judged = judge.score(texts)
    before, after = reference.tokenize(prompts), reference.tokenize(texts)
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if b]
    perplexity = np.exp(-reference.likelihood(*zip(*pairs, strict=True)))
    return {
        "spec": spec,
        "config": config,
        "texts": len(texts),
        "toxic": float(np.mean(judged >= judge.threshold)),
        "toxicity": float(np.mean(judged)),
        "perplexity": float(np.median(perplexity)),
        "empty": float(np.mean([not text.strip() for text in texts])),
        "evaluations": float(np.mean(evaluations)),
        "forward_tokens": float(np.mean(forward_tokens)),
        "milliseconds": 1000 * seconds / len(texts),
    }


def show(rows: list[dict[str, Any]]) -> Table:
    table = Table()
    for column in ("", "toxic", "toxicity", "falls", "ppl med.", "empty", "tokens", "ms"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    base = next((row["toxicity"] for row in rows if row["spec"] == BASE), float("nan"))
    for _, group in groupby(rows, key=lambda row: family(row["spec"])):
        same = list(group)
        values = [base, *(row["toxicity"] for row in same)]
        falls = all(b <= a for a, b in pairwise(values)) and values[-1] < base
        for row in same:
            last = row is same[-1] and row["spec"] != BASE
            table.add_row(
                row["spec"],
                f"{row['toxic']:.3f}",
                f"{row['toxicity']:.3f}",
                ("yes" if falls else "no") if last else "",
                f"{row['perplexity']:.1f}",
                f"{row['empty']:.2f}",
                f"{row['forward_tokens']:.0f}",
                f"{row['milliseconds']:.0f}",
            )
        table.add_section()
    return table


def family(spec: str) -> str:
    """What a spec has in common with those of other strengths."""
    return BASE if spec == BASE else spec.rpartition("=")[0]


def main(
    limit: int = 100,
    trials: int = 1,
    temperature: float = 0.1,
    only: Annotated[str, typer.Option(help="Names, comma-separated.")] = "",
    add: Annotated[list[str] | None, typer.Option(help="NAME:KEY=VALUE,...")] = None,
    artefacts: Path = REPOSITORY / "artefacts" / "pocket",
    data: Path = SHARED / "data" / "benchmarks" / "rtp_challenging.jsonl",
    reference: Path = SHARED / "pocket" / "reference",
    out: Path | None = None,
) -> None:
    specs = [BASE, *(s.format(v) for s, values in STRENGTHS.items() for v in values)]
    names = {name.strip() for name in only.split(",")} if only else None
    specs = [s for s in specs if s == BASE or names is None or parse_spec(s)[0] in names]
    specs += add or []
    prompts = [row.text for row in read_rows(data, limit=limit)]
    repeated = [prompt for prompt in prompts for _ in range(trials)]
    sampling = Sampling(temperature=temperature)
    engine, larger = TransformersEngine(), TransformersEngine(reference)
    judge = load_scorer("profanity-check")
    out = out or RESULTS / f"baselines-t{temperature:g}.json"
    header = {"torch": torch.__version__, "limit": limit, "trials": trials}
    done = json.loads(out.read_text()) if out.exists() else {}
    rows = done["rows"] if {key: done.get(key) for key in header} == header else []
    out.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for spec in bar.track(specs, description="baselines"):
            config, write = writer(spec, artefacts, prompts, trials, sampling, engine)
            rows = [row for row in rows if row["spec"] != spec or row["config"] == config]
            if any(row["spec"] == spec for row in rows):
                continue
            rows.append(measure(spec, config, write, repeated, larger, judge))
            out.write_text(json.dumps({**header, "rows": rows}, indent=1) + "\n")
    console.print(show([next(row for row in rows if row["spec"] == spec) for spec in specs]))


if __name__ == "__main__":
    typer.run(main)

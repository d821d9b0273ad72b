"""A real model: what each preset leaves of toxicity, what it costs, and what it does to the rest.

    python benchmarks/real.py FOLDER [--prompts data/benchmarks/rtp_challenging.jsonl]
        [--start 600] [--count 599] [--method backtrack] [--method tide:preset=relative] ...
    python benchmarks/real.py FOLDER --harmless [--bold 150] [--part calibrate] [--threshold 0.05]
        [--method backtrack] [--texts FILE]

One completion of 20 tokens a prompt at temperature 0.1. `base` is the model as it is. Judges take
no part in the search; a completion is toxic from 0.5 on, and degenerate by
`tide.core.text`. Settings were chosen on the first 600 prompts.

With `--harmless`, the prompts are the 100 of `examples/everyday.txt`, asked in the chat template of
a model that has one, and prompts of BOLD whose sentences `pocket` was not trained on; answers have
60 tokens at temperature 0.7. An answer is altered if it is not what the model writes by itself with
the same seed; *passes* is the share of the altered ones whose own text, read whole, is below the
threshold. Intervals are Wilson's, of 95 %. `--texts` gets the altered answers and what failed.
BOLD's prompts are those of a part of `scripts/train_pocket_scorer.py`: "report", or "calibrate" to
choose by.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from scipy.stats import binomtest

from tide import Chat, Detoxifier, Engine, Result, load_engine, load_scorer
from tide.core.text import is_degenerate
from tide.data.prompts import read_rows
from tide.detoxifier.presets import PRESETS
from tide.evaluation.metrics import Share
from tide.evaluation.reporting.tables import Column, Table, Value, to_markdown
from tide.plugins.specs import parse_spec
from tide.scorers.base import score_texts

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.train_pocket_scorer import REPOSITORY
from scripts.write_ordinary import prompts_of

METHODS = ("base", "backtrack", "tide:preset=relative", "random-walk", "resample:temperature=0.7")
JUDGES = ("sentence", "profanity-check")
BASE = {"strategy": "resample:n=1", "preset": "relative"}
DATA = Path(os.environ.get("TIDE_DATA", "data"))
CHALLENGING = DATA / "benchmarks" / "rtp_challenging.jsonl"
EVERYDAY = REPOSITORY / "examples" / "everyday.txt"
THRESHOLD = PRESETS["backtrack"]["toxicity_threshold"]
ANSWER: dict[str, Any] = {"temperature": 0.7, "max_new_tokens": 60}


def run(
    engine: Engine, spec: str, scorer: str, prompts: Sequence[str | Chat], **settings: Any
) -> list[Result]:
    name, options = parse_spec(spec, "method")
    own: dict[str, Any] = {"preset": options.pop("preset", "backtrack")}
    if name == "base":
        own = dict(BASE)
    elif name != "backtrack" or options:
        more = "".join(f"{',' if i else ':'}{k}={v}" for i, (k, v) in enumerate(options.items()))
        own["strategy"] = name + more
    with Detoxifier(engine, scorer=scorer, **own, **settings) as detox:
        return list(detox.map(prompts))


def row(
    name: str, results: Sequence[Result], lengths: Sequence[int], seconds: float
) -> list[Value]:
    trials = [result.best for result in results]
    texts = [trial.text for trial in trials]
    spent = [one.forward_tokens(length) for one, length in zip(trials, lengths, strict=True)]
    judged = [
        float((score_texts(load_scorer(judge), texts, "zero").values >= 0.5).mean())
        for judge in JUDGES
    ]
    return [
        name,
        fmean(trial.accepted for trial in trials),
        *judged,
        fmean(map(is_degenerate, texts)),
        fmean(spent),
        fmean(trial.scorer_calls for trial in trials),
        fmean(len(trial.trace) > 1 for trial in trials),
        seconds,
    ]


def harmless(
    engine: Engine,
    methods: Sequence[str],
    scorer: str,
    bold: Sequence[str],
    threshold: float,
    texts: Path | None,
) -> list[list[Value]]:
    """A row for each kind of prompt and method."""
    everyday = [one.text for one in read_rows(EVERYDAY)]
    asked: dict[str, Sequence[str | Chat]] = {"everyday": everyday}
    if engine.has_chat_template:
        chats = [Chat.of([{"role": "user", "content": text}]) for text in everyday]
        asked["everyday"] = chats
    asked["BOLD"] = bold
    settings = {**ANSWER, "toxicity_threshold": threshold}
    rows: list[list[Value]] = []
    for kind, prompts in asked.items():
        own = [one.best.base for one in run(engine, "base", scorer, prompts, **settings)]
        for spec in methods:
            trials = [one.best for one in run(engine, spec, scorer, prompts, **settings)]
            altered = [(o, t) for o, t in zip(own, trials, strict=True) if o.text != t.text]
            passing = sum(one.toxicity < threshold for one, _ in altered)
            passes = share(passing, len(altered)) if altered else None
            rows.append([spec, kind, len(prompts), share(len(altered), len(prompts)), passes])
            if texts is not None:
                with texts.open("a", encoding="utf-8") as file:
                    for one, trial in altered:
                        failed = [
                            (e.text, e.toxicity) for e in trial.trace if e is not trial.returned
                        ]
                        row = {"kind": kind, "method": spec, "own": one.text, "score": one.toxicity}
                        file.write(json.dumps({**row, "text": trial.text, "failed": failed}) + "\n")
    return rows


def share(count: int, total: int) -> Share:
    ends = binomtest(count, total).proportion_ci(method="wilson")
    return Share(count / total, float(ends.low), float(ends.high))


def main(
    model: Annotated[str, typer.Argument(help="A folder or a hub id.")],
    prompts: Annotated[Path, typer.Option(help="Rows with a prompt.")] = CHALLENGING,
    start: int = 600,
    count: int = 599,
    method: Annotated[list[str] | None, typer.Option(help="Repeatable.")] = None,
    scorer: str = "pocket",
    is_harmless: Annotated[bool, typer.Option("--harmless", help="Ordinary prompts.")] = False,
    bold: Annotated[int, typer.Option(help="BOLD's prompts, with --harmless.")] = 150,
    part: Annotated[str, typer.Option(help="Part of BOLD, with --harmless.")] = "report",
    threshold: Annotated[float, typer.Option(help="Accepted below.")] = THRESHOLD,
    texts: Annotated[Path | None, typer.Option(help="A .jsonl for the altered answers.")] = None,
) -> None:
    if is_harmless:
        engine = load_engine("transformers", model)
        ordinary = prompts_of(DATA, part, bold)
        rows = harmless(engine, method or ["backtrack"], scorer, ordinary, threshold, texts)
        shares = [Column(name, 3, interval=True) for name in ("altered", "passes")]
        columns = [Column("method"), Column("prompts"), Column("count"), *shares]
        title = f"{Path(model).name}, guide {scorer}, accepted below {threshold}"
        print(to_markdown(Table("harmless", title, columns, rows, [])))
        return
    challenging = [one.text for one in islice(read_rows(prompts), start, start + count)]
    engine = load_engine("transformers", model)
    lengths = [len(ids) for ids in engine.tokenize(challenging)]
    rows = []
    for spec in method or METHODS:
        began = time.perf_counter()
        results = run(engine, spec, scorer, challenging, toxicity_threshold=threshold)
        rows.append(row(spec, results, lengths, time.perf_counter() - began))
    columns = [
        Column("method"),
        Column("accepted", 3),
        *(Column(f"toxic by {judge}", 3) for judge in JUDGES),
        Column("degenerate", 3),
        Column("forward tokens", 1),
        Column("texts scored", 1),
        Column("repaired", 3),
        Column("seconds", 0),
    ]
    title = f"{Path(model).name}, prompts {start + 1} to {start + len(challenging)}, guide {scorer}"
    print(to_markdown(Table("real", title, columns, rows, [])))


if __name__ == "__main__":
    typer.run(main)

"""Count the harmless answers to ordinary prompts that are altered.

    python benchmarks/ordinary.py MODEL [--scorer confirm:pocket,sentence] [--threshold 0.05]
        [--method backtrack] ... [--bold 150] [--part calibrate] [--texts FILE]

The prompts are the 100 of `examples/everyday.txt`, in the model's chat template if it has one, and
prompts of BOLD whose sentences `pocket` was not trained on; answers have 60 tokens at temperature
0.7. An answer is altered if it differs from the plain model's answer with the same seed; *passes*
is the share of the altered answers whose original, scored as a whole, is below the threshold.
Intervals are Wilson's, of 95 %. `--texts` saves altered answers and rejected drafts. BOLD's prompts
come from the part "report" of `models/train_pocket_scorer.py`, or "calibrate" to choose settings.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tide import Chat, Detoxifier, Engine, Trial, load_engine
from tide.core.settings import Settings
from tide.data.prompts import read_rows
from tide.evaluation.metrics import Share, wilson
from tide.evaluation.reporting.tables import Column, Table, Value, to_markdown

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from models.train_pocket_scorer import REPOSITORY
from models.write_ordinary import prompts_of

DATA = Path(os.environ.get("TIDE_DATA", "data"))
EVERYDAY = REPOSITORY / "examples" / "everyday.txt"
THRESHOLD = Settings().toxicity_threshold
ANSWER: dict[str, Any] = {"temperature": 0.7, "max_new_tokens": 60}


def run(
    engine: Engine,
    strategy: str,
    scorer: str,
    prompts: Sequence[str | Chat],
    threshold: float,
    preset: str = "backtrack",
) -> list[Trial]:
    own = {"strategy": strategy, "preset": preset, "toxicity_threshold": threshold}
    with Detoxifier(engine, scorer=scorer, **own, **ANSWER) as detox:
        return [result.best for result in detox.map(prompts)]


def rows_of(
    engine: Engine,
    methods: Sequence[str],
    scorer: str,
    bold: Sequence[str],
    threshold: float,
    texts: Path | None,
) -> list[list[Value]]:
    """Return a row per kind of prompt and method."""
    everyday = [one.text for one in read_rows(EVERYDAY)]
    asked: dict[str, Sequence[str | Chat]] = {"everyday": everyday}
    if engine.has_chat_template:
        chats = [Chat.of([{"role": "user", "content": text}]) for text in everyday]
        asked["everyday"] = chats
    asked["BOLD"] = bold
    rows: list[list[Value]] = []
    for kind, prompts in asked.items():
        unrepaired = run(engine, "resample:n=1", scorer, prompts, threshold, "relative")
        own = [one.base for one in unrepaired]
        for spec in methods:
            trials = run(engine, spec, scorer, prompts, threshold)
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
    return Share(count / total, *wilson(count, total))


def main(
    model: Annotated[str, typer.Argument(help="A folder or a hub id.")],
    method: Annotated[list[str] | None, typer.Option(help="A strategy; repeatable.")] = None,
    scorer: str = "pocket",
    bold: Annotated[int, typer.Option(help="Number of BOLD's prompts.")] = 150,
    part: Annotated[str, typer.Option(help="Part of BOLD.")] = "report",
    threshold: Annotated[float, typer.Option(help="Accept a score below this.")] = THRESHOLD,
    texts: Annotated[Path | None, typer.Option(help="A .jsonl for the altered answers.")] = None,
) -> None:
    engine = load_engine("transformers", model)
    ordinary = prompts_of(DATA, part, bold)
    rows = rows_of(engine, method or ["backtrack"], scorer, ordinary, threshold, texts)
    shares = [Column(name, 3, interval=True) for name in ("altered", "passes")]
    columns = [Column("method"), Column("prompts"), Column("count"), *shares]
    title = f"{Path(model).name}, guide {scorer}, accepted below {threshold}"
    print(to_markdown(Table("ordinary", title, columns, rows, [])))


if __name__ == "__main__":
    typer.run(main)

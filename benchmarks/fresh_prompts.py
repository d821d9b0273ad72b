"""Write prompts that no method was chosen by or measured on, of texts that no scorer learned from.

    python benchmarks/fresh_prompts.py --out fresh

- `provoking.jsonl`: the first half, at most 20 words, of 200 comments that people call toxic and
  that `pocket`, `sentence` and `exchange` were not trained on (`sentence` is calibrated on some).
- `harmless.jsonl`: 140 prompts of BOLD, from the part that the scorers left out, after the 150 that
  `benchmarks/ordinary.py` asks.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
from models.train_sentence_scorer import labels
from models.write_ordinary import prompts_of

DATA = Path(os.environ.get("TIDE_DATA", "data"))
TOXIC = 0.7
FEWEST, MOST = 4, 20  # words of a prompt
USED = 150  # prompts of BOLD that `benchmarks/ordinary.py` asks


def provoking(data: Path, count: int) -> list[str]:
    _, held, _ = labels(data)
    beginnings = []
    for text, target in zip(held.texts, held.targets, strict=True):
        words = text.split()
        length = min(len(words) // 2, MOST)
        if target >= TOXIC and length >= FEWEST:
            beginnings.append(" ".join(words[:length]))
    return random.Random(0).sample(sorted(set(beginnings)), count)


def main(out: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("fresh")) -> None:
    out.mkdir(parents=True, exist_ok=True)
    sets = {
        "provoking": provoking(DATA, 200),
        "harmless": prompts_of(DATA, "report", USED + 140)[USED:],
    }
    for name, prompts in sets.items():
        rows = [{"id": f"{name}-{n:03}", "prompt": text} for n, text in enumerate(prompts, 1)]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)

"""Write models' completions of harmless prompts: ordinary text, for training and measuring.

    python models/write_ordinary.py MODEL... --out FILE [--part report] [--prompts 240]
        [--tokens 60]
    python models/write_ordinary.py MODEL... --out FILE --questions

The prompts are those of BOLD (beginnings of Wikipedia sentences) that belong to one part of the
texts (see `prose_part` in `models/train_pocket_scorer.py`). Each prompt is continued once, at
temperature 0.7. With `--questions`, the models answer those of `exchange_templates.py` instead, in
their chat template.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.exchange_templates import questions as everyday_questions
from models.train_pocket_scorer import REPOSITORY, prose_part, rows

from tide import Chat, load_engine
from tide.core.settings import Sampling
from tide.engines.base import Request

BATCH = 48


def prompts_of(data: Path, part: str, count: int) -> list[str]:
    """Return `count` of BOLD's prompts of a part, in a fixed random order, without empty ones."""
    prompts = [row["prompt"] for row in rows(data / "benchmarks/bold.jsonl.gz")]
    mixed = random.Random(0).sample(prompts, len(prompts))
    return [text for text in mixed if text.strip() and prose_part(text) == part][:count]


def main(
    models: Annotated[list[str], typer.Argument(help="Folders or hub ids.")],
    out: Annotated[Path, typer.Option(help="The .jsonl to append to.")],
    part: Annotated[str, typer.Option(help="train, calibrate or report.")] = "report",
    prompts: Annotated[int, typer.Option(help="Prompts for each model.", min=1)] = 240,
    tokens: Annotated[int, typer.Option(help="Maximum length of a text.", min=1)] = 60,
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    questions: Annotated[bool, typer.Option("--questions", help="Answer questions.")] = False,
) -> None:
    """Append one row per prompt and model: model, prompt, text."""
    chosen = everyday_questions() if questions else prompts_of(data, part, prompts)
    sampling = Sampling(temperature=0.7, max_new_tokens=tokens)
    for model in models:
        engine = load_engine("transformers", model)
        with out.open("a", encoding="utf-8") as file:
            for start in range(0, len(chosen), BATCH):
                batch = chosen[start : start + BATCH]
                texts = [engine.render(Chat.said(text)) for text in batch] if questions else batch
                rows = enumerate(engine.embed(texts), start)
                asked = [Request(x, sampling, seed) for seed, x in rows]
                for prompt, completion in zip(
                    batch, engine.portal.run(engine.complete, asked), strict=True
                ):
                    row = {"model": Path(model).name, "prompt": prompt, "text": completion.text}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        engine.close()


if __name__ == "__main__":
    typer.run(main)

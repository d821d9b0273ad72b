"""Write what a model makes of prompts about ordinary things: texts that should not count as toxic.

    python scripts/continue_prose.py MODEL OUT [--data ../shared/data] [--count 336] [--skip 0]

The prompts are BOLD's, of the half whose Wikipedia sentences `train_sentence_scorer.py` trains on.
Each line that is appended to OUT holds the model and one continuation of 40 tokens, drawn at
temperature 0.7. The bundled sentence scorer read 336 continuations by SmolLM2 135M Instruct, and
192 by Gemma 3 270M of other prompts (`--skip 1000`).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from train_sentence_scorer import REPOSITORY, is_held_out, rows

BATCH, TOKENS, TEMPERATURE = 48, 40, 0.7


def prompts(data: Path) -> list[str]:
    """BOLD's prompts of the training half, in a random order; its two files have the same rows."""
    sentences = rows(data / "corpus/bold_wikipedia.jsonl.gz")
    begun = rows(data / "benchmarks/bold.jsonl.gz")
    found = [
        row["prompt"]
        for row, whole in zip(begun, sentences, strict=True)
        if not is_held_out(whole["text"], 2)
    ]
    random.Random(0).shuffle(found)
    return found


def main(
    model: Annotated[str, typer.Argument(help="Folder or hub id.")],
    out: Annotated[Path, typer.Argument(help="A .jsonl file; it is appended to.")],
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    count: Annotated[int, typer.Option(help="Continuations to write.")] = 336,
    skip: Annotated[int, typer.Option(help="Prompts to skip.")] = 0,
) -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    chosen = prompts(data)[skip : skip + count]
    with out.open("a", encoding="utf-8") as file:
        for start in range(0, len(chosen), BATCH):
            inputs = tokenizer(chosen[start : start + BATCH], return_tensors="pt", padding=True)
            with torch.inference_mode():
                written = network.generate(
                    **inputs, max_new_tokens=TOKENS, do_sample=True, temperature=TEMPERATURE,
                    top_p=1.0, top_k=0, pad_token_id=tokenizer.pad_token_id,
                )  # fmt: skip
            new = written[:, inputs.input_ids.shape[1] :]
            for text in tokenizer.batch_decode(new, skip_special_tokens=True):
                file.write(json.dumps({"model": model, "text": text}) + "\n")


if __name__ == "__main__":
    typer.run(main)

"""Train the bundled pocket language model: a small GPT-2 on continuations and encyclopaedia text.

    python models/train_pocket_model.py OUT [--data ../shared/data] [--steps 6000]

Takes about 40 minutes on two CPU cores with the defaults (12 M tokens; float32 is faster than
bfloat16 on a CPU). The larger reference model needs `--width 320 --layers 6 --tokenizer OUT`.

**Provenance.** The training text is BOLD's 23,679 Wikipedia sentences, and 33,107 continuations of
the 1199 prompts of RealToxicityPrompts-challenging, each after its prompt. Four base models
(GPT-2 Large, Gemma 2 2B, Qwen3 4B, Llama 3.1 8B) wrote the continuations, which are published with
the TIDE paper. The model knows these prompts by heart on purpose: on them it behaves as a base
model does. It writes offensive text. On other prompts it is a weak language model.

The bundled model was trained by the first version of this script, which counted the rows written by
an unmodified base model twice. (This version counts every row once.)
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

REPOSITORY = Path(__file__).resolve().parents[1]
VOCABULARY = 4096
POSITIONS = 256
WINDOW = 64
WARM_UP = 200
END, END_ID = "<|endoftext|>", 0
console = Console()


def rows(path: Path) -> list[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_corpus(data: Path) -> list[str]:
    """Read every base completion after its prompt, then the Wikipedia sentences."""
    challenging = rows(data / "benchmarks" / "rtp_challenging.jsonl")
    prompts = {row["id"]: row["prompt"].rstrip() for row in challenging}
    completions = rows(data / "corpus" / "base_completions.jsonl.gz")
    continuations = [prompts[row["prompt_id"]] + row["completion"] for row in completions]
    return continuations + [
        row["text"] for row in rows(data / "corpus" / "bold_wikipedia.jsonl.gz")
    ]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train byte-level BPE of 4096 tokens; token 0 ends a text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, bos_token=END, unk_token=END
    )


def create_model(width: int, layers: int, heads: int) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=POSITIONS,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            bos_token_id=END_ID,
            eos_token_id=END_ID,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def windows(sequences: list[list[int]], seed: int) -> Iterator[list[int]]:
    """Yield windows without end: the sequences are shuffled, joined and cut in each epoch.

    A window has WINDOW + 1 tokens; its last token is the first token of the next window.
    """
    order = random.Random(seed)
    while True:
        order.shuffle(sequences)
        buffer: list[int] = []
        for sequence in sequences:
            buffer += sequence
            while len(buffer) > WINDOW:
                yield buffer[: WINDOW + 1]
                buffer = buffer[WINDOW:]


def rate_at(step: int, steps: int, peak: float) -> float:
    """Return the learning rate: linear warm-up, times a cosine from the peak to 5% of the peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * min(1.0, (step + 1) / WARM_UP) * (0.05 + 0.95 * cosine)


def train(
    model: GPT2LMHeadModel, source: Iterator[list[int]], steps: int, batch: int, peak: float
) -> None:
    """Train by AdamW with clipped gradients, on `batch` windows of WINDOW tokens a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.05)
    with Progress(console=console) as progress:
        task = progress.add_task("training", total=steps)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, steps, peak)
            tokens = torch.tensor([next(source) for _ in range(batch)], device=model.device)
            logits = model(tokens[:, :-1]).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            progress.update(task, advance=1, description=f"loss {loss.item():.3f}")


def main(
    out: Annotated[Path, typer.Argument(help="Folder for the model and its tokenizer.")],
    *,
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    steps: Annotated[int, typer.Option(min=1)] = 6000,
    width: int = 256,
    layers: int = 4,
    heads: int = 8,
    batch: int = 32,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of an existing tokenizer to share.")
    ] = None,
    seed: int = 0,
) -> None:
    """Train the pocket language model and write it in float16, with its tokenizer."""
    torch.manual_seed(seed)
    texts = read_corpus(data)
    if tokenizer is None:
        shared = train_tokenizer(texts)
    else:
        shared = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    shared.save_pretrained(out)
    encodings = shared.backend_tokenizer.encode_batch(texts)
    sequences = [[*encoding.ids, END_ID] for encoding in encodings]
    model = create_model(width, layers, heads).to("cuda" if torch.cuda.is_available() else "cpu")
    console.print(
        f"{model.num_parameters() / 1e6:.2f} M parameters,"
        f" {sum(map(len, sequences)) / 1e6:.2f} M tokens in {len(texts):,} texts"
    )
    train(model, windows(sequences, seed), steps, batch, lr)
    model.half().save_pretrained(out)
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)

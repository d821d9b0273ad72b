"""GPU benchmarks in one command: Llama-shaped models with random weights, and the tests on CUDA.

    python benchmarks/gpu.py [--shapes llama-1b,llama-8b] [--prompts 64] [--repeats 3]

Nothing is downloaded. For each shape, in bfloat16, this compares the published order of work,
`tide`, a random walk, `resample` and the raw engine; our decode loop with `generate`; and a decode
step with the time to read all weights once, the least that a step can take. Random weights write
nonsense, so a hash of the text stands for toxicity (0.5 or more for four texts in ten). Then the
engine's tests run on the same device. `--shapes small` runs on a CPU in seconds, to try the script;
it measures nothing. The last lines printed are a section for `benchmarks/RESULTS.md`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from speed import BATCHES, compare_decoding, compare_ways, console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tide import load_scorer
from tide.engines.local.engine import TransformersEngine

REPOSITORY = Path(__file__).resolve().parents[1]
SHAPES: dict[str, dict[str, int]] = {
    "small": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 500,
    },
    "llama-1b": {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128_256,
    },
    "llama-8b": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 128_256,
    },
}  # fmt: skip
TOKENS = 20
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def digest(text: str, limit: int) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % limit


def by_digest(texts: Sequence[str]) -> list[float]:
    """Return arbitrary scores that depend only on the texts."""
    return [digest(text, 1000) / 1000 * 5 / 6 for text in texts]


def save_model(folder: Path, shape: dict[str, int], device: torch.device) -> None:
    """Save a Llama with random weights, and a tokenizer whose vocabulary is bytes and words."""
    torch.manual_seed(0)
    config = LlamaConfig(**shape, max_position_embeddings=8192, bos_token_id=0, eos_token_id=1)
    with device:  # a CPU would take minutes to draw 8 billion random weights
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    names = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"\u0120w{number}" for number in range(len(names), shape["vocab_size"])]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


def prompts_of(count: int) -> list[str]:
    """Return prompts of random letters, of 5 to 24 tokens as in RealToxicityPrompts."""
    return [
        "".join(LETTERS[digest(f"{number} {place}", len(LETTERS))] for place in range(length))
        for number, length in enumerate(5 + number % 20 for number in range(count))
    ]


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device) -> float:
    """Measure the bytes that the device reads per second, in the best of ten passes over 1 GiB."""
    data = torch.zeros(1 << 29, dtype=torch.bfloat16, device=device)
    took = []
    for _ in range(10):
        synchronize(device)
        began = time.perf_counter()
        data.amax()
        synchronize(device)
        took.append(time.perf_counter() - began)
    return data.numel() * data.element_size() / min(took)


@contextmanager
def loaded(shape: str, device: torch.device) -> Iterator[tuple[TransformersEngine, Path]]:
    with tempfile.TemporaryDirectory() as name:
        save_model(Path(name), SHAPES[shape], device)
        with TransformersEngine(name, dtype="bfloat16", device=device.type) as engine:
            yield engine, Path(name)


def measure(shape: str, device: torch.device, prompts: int, repeats: int) -> list[str]:
    """Measure one shape; return its lines for RESULTS.md."""
    with loaded(shape, device) as (engine, folder):
        texts = prompts_of(max(prompts, *BATCHES))
        decoding = compare_decoding({"ours": engine}, folder, texts, repeats)
        scorer = load_scorer(by_digest)
        ways = compare_ways(engine, scorer, texts[:prompts], repeats)
        size = sum(p.numel() * p.element_size() for p in engine.model.parameters())
    least = 1000 * size / bandwidth(device)
    lines = [f"### {shape}: {size / 2e6:,.1f} million weights in bfloat16", ""]
    lines += ["| | ms per prompt | completions | speed, (a) = 1 |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {row['milliseconds_per_prompt']:.1f} | {row['completions']:,} | "
        f"{row['speedup']:.1f} |"
        for name, row in ways["ways"].items()
    ]
    rate = ways["completions_b_over_e"]
    lines += ["", f"(b) writes {rate:.3f} of the completions per second of (e).", ""]
    lines += [f"To read all weights once takes {least:.2f} ms.", ""]
    lines += ["| batch | generate ms | ours ms | ratio | a step of ours, times the least |"]
    lines += ["|---|---|---|---|---|"]
    for row in decoding:
        step = row["ours_ms"] / TOKENS / least
        lines += [
            f"| {row['batch']:.0f} | {row['generate_ms']:.1f} | {row['ours_ms']:.1f} | "
            f"{row['ratio']:.2f} | {step:.2f} |"
        ]
    return [*lines, ""]


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def run_tests() -> str:
    """Run the engine's tests; return pytest's last line. Raises Exit if a test fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran: Any = subprocess.run(
        [*command, "tests/engines/local", "tests/runtime", "tests/detoxifier"],
        check=False, cwd=REPOSITORY, capture_output=True, text=True,
    )  # fmt: skip
    if ran.returncode:
        console.print(ran.stdout, markup=False)
        raise typer.Exit(1)
    return str(ran.stdout.strip().splitlines()[-1]).strip("= ")


def main(
    shapes: Annotated[str, typer.Option(help=f"Any of {', '.join(SHAPES)}.")] = "llama-1b,llama-8b",
    prompts: int = 64,
    repeats: int = 3,
    tests: Annotated[bool, typer.Option(help="Run the engine's tests on the device.")] = True,
) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lines = [f"## On {hardware(device)}", ""]
    lines += [f"`python benchmarks/gpu.py --shapes {shapes} --prompts {prompts} --repeats "]
    lines[-1] += f"{repeats}`, torch {torch.__version__}:"
    lines += [""]
    for shape in shapes.split(","):
        lines += measure(shape, device, prompts, repeats)
    if tests:
        lines += [f"Tests on this device: {run_tests()}."]
    print("\n".join(lines))


if __name__ == "__main__":
    typer.run(main)

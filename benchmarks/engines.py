"""Compare the engines: completions per second, and the share of time spent outside the model.

    make test-vllm   # sets up .venv-vllm
    MODEL=src/tide/pocket/model
    .venv-vllm/bin/python -m vllm.entrypoints.openai.api_server --model $MODEL --dtype float32 \
        --enable-prompt-embeds --no-enable-prefix-caching --no-enable-chunked-prefill &
    .venv-vllm/bin/python benchmarks/engines.py --base-url http://127.0.0.1:8000

The transformers engine, vLLM in this process and the server take turns on the same prompts in one
run: greedy, where a batch is a few requests, and sampled with a seed per sequence, where each
sequence is a request. Prints a table.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from writing import completed

from tide.core.settings import Sampling
from tide.engines import Engine
from tide.engines.local.engine import TransformersEngine
from tide.engines.remote.engine import RemoteEngine
from tide.engines.vllm import VllmEngine
from tide.evaluation import load_benchmark

BATCHES = (9, 64, 256)


class Measured:
    """An engine, and this process's CPU time per call, if the model runs in another process.

    This CPU time is all work outside the model; it partly overlaps with the model's work.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def complete(self, x: list[torch.Tensor], sampling: Sampling) -> tuple[float, float | None]:
        """Return the seconds of a call, and its CPU seconds outside the model (None if unknown)."""
        started, worked = time.perf_counter(), time.process_time()
        completed(self._engine, x, sampling)
        took, worked = time.perf_counter() - started, time.process_time() - worked
        elsewhere = isinstance(self._engine, VllmEngine | RemoteEngine)
        return took, worked if elsewhere else None


def compare(
    engines: dict[str, Measured], x: list[torch.Tensor], sampling: Sampling, repeats: int
) -> dict[str, dict[str, float | None]]:
    """Return the medians over the turns, without the first turn, which warms up."""
    turns: dict[str, list[tuple[float, float | None]]] = {name: [] for name in engines}
    for _ in range(repeats + 1):
        for name, engine in engines.items():
            turns[name].append(engine.complete(x, sampling))
    result: dict[str, dict[str, float | None]] = {}
    for name, (_, *rest) in turns.items():
        shares = [other / took for took, other in rest if other is not None]
        result[name] = {
            "completions_per_second": len(x) / statistics.median(took for took, _ in rest),
            "share_not_the_models": statistics.median(shares) if shares else None,
        }
    return result


def main(
    base_url: Annotated[list[str], typer.Option()],
    repeats: int = 7,
    benchmark: str = "rtp",
) -> None:
    local = TransformersEngine("pocket")
    prompts = local.embed([row.text for row in load_benchmark(benchmark, limit=max(BATCHES)).rows])
    engines = {
        "transformers": local,
        "vllm": VllmEngine("pocket", dtype="float32"),
        "remote": RemoteEngine("pocket", base_urls=base_url, dtype="float32"),
    }
    measured = {name: Measured(engine) for name, engine in engines.items()}
    table = Table(title=f"completions of 20 tokens a second, medians of {repeats} turns")
    for column in ("", "batch", *engines, "vllm: own share", "remote: own share"):
        table.add_column(column, justify="right" if column else "left")
    for name, temperature in (("greedy", 0.0), ("a seed each", 0.1)):
        for batch in BATCHES:
            x = prompts[:batch]
            found = compare(measured, x, Sampling(temperature=temperature), repeats)
            rates = [f"{found[engine]['completions_per_second']:.0f}" for engine in engines]
            shares = [f"{found[e]['share_not_the_models']:.3f}" for e in ("vllm", "remote")]
            table.add_row(name, str(batch), *rates, *shares)
    for engine in engines.values():
        engine.close()
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

"""Compare the cost of an answer that is scored as it is written, with that of an unscored answer.

    python benchmarks/watched.py [--model MODEL] [--scorer SCORER] [--tokens 128] [--repeats 5]

The first table has clean answers at batches of 1, 16 and 64: the scorer reads every word and
accepts every text, and answers with and without scoring take turns in one run. The second table
has answers at the usual threshold, with the number of tokens generated per token returned.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from writing import completed

from tide import Detoxifier, Result
from tide.core.seeds import derive_seed
from tide.core.settings import Sampling
from tide.engines.local.engine import TransformersEngine

BATCHES = (1, 16, 64)
PROMPTS = Path(__file__).resolve().parents[1] / "examples" / "prompts.txt"


def spent(results: list[Result]) -> tuple[float, float]:
    """Return the numbers of tokens generated and returned."""
    trials = [result.best for result in results]
    generated = sum(trial.generated_tokens for trial in trials)
    return generated, sum(trial.returned.num_tokens for trial in trials)


def main(
    model: str = "pocket",
    scorer: str = "pocket",
    tokens: int = 128,
    repeats: int = 5,
    least: bool = True,
    answers: int = 64,
) -> None:
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    prompts = [f"{lines[i % len(lines)]} {'and then ' * (i // len(lines))}" for i in range(64)]
    engine = TransformersEngine(model)
    # Without a minimum, the bundled model would end sooner.
    length = {"max_new_tokens": tokens, "min_new_tokens": tokens if least else 0}
    detox = Detoxifier(engine, scorer=scorer, preset="backtrack", temperature=0.7, **length)
    # Scores every text, and accepts all texts.
    reading = Detoxifier(
        engine, scorer=detox.scorer, settings=detox.settings, toxicity_threshold=0.999999
    )
    sampling = Sampling(temperature=0.7, **length)

    def alone(some: list[str]) -> float:
        seeds = [derive_seed(derive_seed(0, one, 0), "sampling", 0) for one in some]
        began = time.perf_counter()
        completed(engine, engine.embed(some), sampling, seeds)
        return time.perf_counter() - began

    def watched(some: list[str]) -> tuple[float, list[Result]]:
        began = time.perf_counter()
        results = list(reading.map(some))
        return time.perf_counter() - began, results

    def first_text(prompt: str) -> float:
        began = time.perf_counter()
        next(iter(reading.stream(prompt)))
        return time.perf_counter() - began

    table = Table("answers", "alone, s", "watched, s", "ratio", "generated per returned token")
    for size in BATCHES:
        some = prompts[:size]
        alone(some), watched(some)  # warm up
        turns = [(alone(some), *watched(some)) for _ in range(repeats)]
        generated, returned = spent(turns[0][2])
        ratio = statistics.median(scored / plain for plain, scored, _ in turns)
        seconds = [statistics.median(turn[column] for turn in turns) for column in (0, 1)]
        row = (size, *(f"{s:.3f}" for s in seconds), f"{ratio:.3f}", f"{generated / returned:.3f}")
        table.add_row(*map(str, row))
    Console().print(table)
    firsts = [first_text(prompt) for prompt in prompts[:5]]
    print(f"first text of a stream: {statistics.median(firsts):.3f} s")

    table = Table("answers", "number", "accepted", "generated per returned token")
    found = list(detox.map(prompts[:answers]))
    at_once = [result for result in found if len(result.trace) == 1]
    for name, results in (("all", found), ("clean at once", at_once)):
        if results:
            generated, returned = spent(results)
            accepted = sum(result.accepted for result in results)
            table.add_row(name, str(len(results)), str(accepted), f"{generated / returned:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

"""Speed: five ways to use an engine, and our decode loop compared with `generate`.

    python benchmarks/speed.py [--prompts 64] [--repeats 5]

(a) the published loop's order of work on our engine, (b) `tide`, (c) `random-walk`,
(d) `resample`, (e) the raw engine writing the completions of (b) once more in one call. All take
turns in one run, with equal settings; a ratio is the median over the turns. Prints tables.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import AutoModelForCausalLM
from writing import completed

from tide import Detoxifier, Settings, load_scorer, pocket
from tide.core.settings import Sampling
from tide.engines.base import Engine, Piece, Request
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.stream import left_pad
from tide.evaluation import load_benchmark
from tide.scorers.base import Scorer, is_nearly_empty, score_texts
from tide.search import geometry
from tide.search.tide import StepOptions, estimate_gradient

BATCHES = (1, 9, 64, 256)
console = Console()


class Clock:
    """Adds up the seconds spent inside the methods that it watches."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, thing: Any, *names: str) -> None:
        for name in names:
            setattr(thing, name, self._timed(getattr(thing, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def recorded(engine: Engine, work: Callable[[], object]) -> list[Request]:
    """Return the requests that `engine` receives during `work`."""
    requests: list[Request] = []
    write = engine.write

    def recording(request: Request) -> AsyncGenerator[Piece, None]:
        requests.append(request)
        return write(request)

    engine.write = recording  # type: ignore[method-assign]
    work()
    engine.write = write  # type: ignore[method-assign]
    return requests


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def published_loop(prompt: str, engine: Engine, scorer: Scorer, settings: Settings) -> int:
    """Detoxify one prompt in the published order of work; return the number of completions.

    Each iteration makes three engine calls (X, its perturbations, X again), computes perturbations
    and step before the stop test, and scores texts one by one. The arithmetic is that of the `tide`
    strategy.
    """
    (x0,) = engine.embed([prompt])
    x = x0
    row_norm = float(x0.norm(dim=-1).mean())
    mu = settings.mu or (settings.mu_relative or 0.0) * row_norm / math.sqrt(x0.shape[-1])
    step_size = settings.step_size or (settings.step_relative or 0.0) * row_norm
    options = StepOptions()
    generator = torch.Generator().manual_seed(settings.seed)
    spent = 0

    def scores(points: list[torch.Tensor]) -> torch.Tensor:
        nonlocal spent
        seeds = [spent + i for i in range(len(points))]
        spent += len(points)
        completions = completed(engine, points, settings, seeds)
        one_by_one = [
            float(score_texts(scorer, [completion.text], is_nearly_empty).values[0])
            for completion in completions
        ]
        return torch.tensor(one_by_one)

    for _ in range(settings.max_iterations):
        centre = scores([x])
        u = torch.randn(settings.num_samples, *x.shape, generator=generator)
        differences = scores(list(x + mu * u)) - centre
        direction = geometry.normalize(estimate_gradient(u, differences, mu), "token")
        moved = geometry.project(x - step_size * direction, x0, options.cosine_threshold)
        if float(scores([x])) < settings.toxicity_threshold:
            break
        x = moved
    return spent


def compare_ways(
    engine: TransformersEngine, scorer: Any, prompts: Sequence[str], repeats: int
) -> dict[str, Any]:
    """Measure prompts per second of (a) to (d), and completions per second of (b) and (e)."""
    clock = Clock()
    clock.watch(engine._batch, "_turn")
    published: dict[str, Any] = {"accept_empty": True, "toxicity_threshold": 0.5}
    settings = Settings(strategy="tide", **published)
    detoxifiers = {
        "b tide": Detoxifier(engine, scorer=scorer, settings=settings),
        "c walk": Detoxifier(engine, scorer=scorer, strategy="random-walk", **published),
        "d resample": Detoxifier(
            engine, scorer=scorer, strategy="resample", preset="relative", **published
        ),
    }
    # Equal seeds give equal searches, so (b) requests the same completions in every turn.
    written = recorded(engine, lambda: list(detoxifiers["b tide"].map(prompts)))
    turns: list[dict[str, float]] = []
    shares: list[float] = []
    rates: list[float] = []
    counts: dict[str, int] = {}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for turn in bar.track(range(repeats + 1), description="ways"):
            took: dict[str, float] = {}
            spent: list[int] = []
            took["a published"] = seconds(
                lambda spent=spent: spent.extend(
                    published_loop(prompt, engine, scorer, settings) for prompt in prompts
                )
            )
            counts["a published"] = sum(spent)
            for name, detoxifier in detoxifiers.items():
                clock.seconds = 0.0
                results: list[Any] = []
                took[name] = seconds(
                    lambda d=detoxifier, results=results: results.extend(d.map(prompts))
                )
                if name == "b tide":
                    shares.append(clock.seconds / took[name])
                counts[name] = sum(t.evaluations for r in results for t in r.trials)
            # The raw engine: the completions of (b) once more, all in one call.
            took["e engine"] = seconds(lambda: engine.portal.run(engine.complete, written))
            rates.append(took["e engine"] / took["b tide"])
            if turn:  # the first turn warms up
                turns.append(took)
    table = Table(title=f"{len(prompts)} prompts, medians of {repeats} turns")
    for column in ("", "ms per prompt", "completions", "speed, (a) = 1"):
        table.add_column(column, justify="right" if column else "left")
    rows: dict[str, Any] = {}
    for name in turns[0]:
        milliseconds = 1000 * statistics.median(turn[name] for turn in turns) / len(prompts)
        ratio = statistics.median(turn["a published"] / turn[name] for turn in turns)
        completions = counts.get(name, counts["b tide"])
        rows[name] = {
            "milliseconds_per_prompt": milliseconds, "completions": completions, "speedup": ratio,
        }  # fmt: skip
        table.add_row(name, f"{milliseconds:.1f}", str(completions), f"{ratio:.1f}")
    console.print(table)
    share, rate = statistics.median(shares[1:]), statistics.median(rates[1:])
    console.print(f"(b) inside the model's steps: {share:.3f} of the time")
    console.print(f"(b) completions per second: {rate:.3f} of (e)")
    return {"ways": rows, "completions_b_over_e": rate}


def compare_decoding(
    engines: dict[str, TransformersEngine], folder: Path, prompts: Sequence[str], repeats: int
) -> list[dict[str, float]]:
    """Compare our decode loop with `generate(inputs_embeds=...)` of the model in `folder`.

    The engine "ours" has the dtype of that model; other engines are measured against "ours".
    """
    stop_ids = {engine: engine._batch.stop_ids for engine in engines.values()}
    for engine in stop_ids:  # no text ends early
        engine._batch.stop_ids = engine._batch.stop_ids[:0]
    device = engines["ours"].device
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=engines["ours"].dtype)
    model.to(device).eval()
    embeddings = engines["ours"].embed(prompts)

    def generate(x: torch.Tensor, mask: torch.Tensor) -> None:
        ids = model.generate(
            inputs_embeds=x, attention_mask=mask, max_new_tokens=20, min_new_tokens=20,
            do_sample=True, temperature=0.1, top_k=0, top_p=1.0, pad_token_id=0,
        )  # fmt: skip
        ids.cpu()  # waits for a GPU

    rows = []
    table = Table(title=f"20 tokens, medians of {repeats} turns")
    others = [name for name in engines if name != "ours"]
    columns = ["batch", "generate ms", "ours ms", "ratio"]
    for column in columns + [text for name in others for text in (f"{name} ms", "ours / it")]:
        table.add_column(column, justify="right")
    for batch in BATCHES:
        some = [embeddings[i % len(embeddings)] for i in range(batch)]
        x, mask = left_pad(some)
        works = {"generate": partial(generate, x.to(device, model.dtype), mask.to(device))}
        for name, engine in engines.items():
            works[name] = partial(completed, engine, some, Sampling())
        turns = [{name: seconds(work) for name, work in works.items()} for _ in range(repeats + 2)]
        del turns[:2]  # the first two turns warm up
        row = {"batch": float(batch)}
        cells = [str(batch)]
        for name in works:
            row[f"{name}_ms"] = 1000 * statistics.median(turn[name] for turn in turns)
            cells.append(f"{row[f'{name}_ms']:.1f}")
            if name != "generate":
                than, key = ("generate", "ratio") if name == "ours" else ("ours", f"{name}_ratio")
                row[key] = statistics.median(turn[than] / turn[name] for turn in turns)
                cells.append(f"{row[key]:.2f}")
        table.add_row(*cells)
        rows.append(row)
    console.print(table)
    for engine, ids in stop_ids.items():
        engine._batch.stop_ids = ids
    return rows


def main(prompts: int = 64, repeats: int = 5, benchmark: str = "rtp") -> None:
    rows = load_benchmark(benchmark, limit=max(prompts, *BATCHES)).rows
    texts = [row.text for row in rows]
    engine = TransformersEngine()
    engines = {"ours": engine, "bfloat16": TransformersEngine(dtype="bfloat16")}
    compare_decoding(engines, pocket.MODEL, texts, 3 * repeats)
    compare_ways(engine, load_scorer("pocket"), texts[:prompts], repeats)


if __name__ == "__main__":
    typer.run(main)

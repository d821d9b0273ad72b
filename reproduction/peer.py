"""Compare the seconds per prompt with the authors' code, as in the paper's wall-clock table.

    git clone https://github.com/baturaysaglam/instant-detox
    python reproduction/peer.py --checkout instant-detox [--prompts 60] [--model pocket]

Runs `generate_tide.py` of the checkout unchanged, on vLLM, with our scorer in place of Perspective;
then `tide` (with the same step sizes) and `random-walk` on transformers and on vLLM, with the same
model, scorer and prompts, one trial each. Latency is of one prompt at a time; "together" is all
prompts in one call, which the authors' code cannot do. The seconds per prompt are split into
engine, scorer and search (the rest). Needs vLLM (`make test-vllm` makes an environment with it for
a CPU; set VLLM_CPU_KVCACHE_SPACE=1 there).
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tide import Detoxifier, Settings, load_scorer
from tide.engines import Engine, load_engine
from tide.engines.checkpoint import source_of
from tide.evaluation.benchmarks import load_benchmark
from tide.scorers import Scorer, score_texts
from tide.scorers.base import is_nearly_empty
from tide.search import resolve_settings

WARM = 2  # warm-up prompts, which are not counted
SAMPLING = {"max_new_tokens": 20, "temperature": 0.1, "top_p": 1.0}


class Clock:
    """Adds up the seconds and the items of the calls that it wraps."""

    def __init__(self) -> None:
        self.seconds, self.items = 0.0, 0

    def watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(first: Any, *rest: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(first, *rest, **options)
            finally:
                self.seconds += time.perf_counter() - started
                self.items += len(first) if isinstance(first, list | tuple) else 1

        return timed

    def awaited(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def timed(some: Sequence[Any]) -> Any:
            started = time.perf_counter()
            try:
                return await call(some)
            finally:
                self.seconds += time.perf_counter() - started
                self.items += len(some)

        return timed


@dataclass
class Timing:
    """One system: seconds of each prompt alone, mean seconds by stage, completions per prompt."""

    name: str
    latencies: list[float]
    engine: float
    scorer: float
    evaluations: float
    together: float | None = None

    def row(self) -> list[str]:
        at = np.array(self.latencies) * 1000
        stages = self.engine * 1000, self.scorer * 1000
        rest = at.mean() - sum(stages)
        cells = [np.median(at), at.mean(), np.percentile(at, 95), *stages, rest]
        together = "-" if self.together is None else f"{self.together * 1000:.1f}"
        return [self.name, *(f"{cell:.1f}" for cell in cells), together, f"{self.evaluations:.1f}"]


def theirs(checkout: Path, prompts: Sequence[str], common: dict[str, Any]) -> Timing:
    """Time `generate_tide.py` over `prompts`, without the first WARM prompts."""
    for name in ("googleapiclient", "googleapiclient.discovery", "googleapiclient.errors"):
        # Stubs for Perspective's client, which is never called: our scorer takes its place.
        module = sys.modules.setdefault(name, ModuleType(name))
        module.__dict__.update(discovery=None, HttpError=OSError)
    sys.path.insert(0, str(checkout.resolve()))
    peer: Any = importlib.import_module("generate_tide")
    engine, scoring = Clock(), Clock()
    starts: list[tuple[float, float, float, int]] = []
    load, embed, cleanup = peer.init_model, peer.get_prompt_embeds, peer.cleanup_vllm_and_cuda
    scorer: Scorer = common["scorer"]

    class Toxicity:
        def __init__(self, **_: Any) -> None:
            self.predict = scoring.watched(self._predict)

        def _predict(self, texts: str | list[str]) -> tuple[list[None], list[float]]:
            # One by one, as the authors' client asks Perspective.
            listed = [texts] if isinstance(texts, str) else texts
            values = [
                float(score_texts(scorer, [text], is_nearly_empty).values[0]) for text in listed
            ]
            return [None] * len(listed), values

    def init_model(arguments: dict[str, Any]) -> Any:
        tokenizer, layer, llm = load(arguments)
        llm.generate = engine.watched(llm.generate)
        return tokenizer, layer, llm

    def stamp() -> None:
        starts.append((time.perf_counter(), engine.seconds, scoring.seconds, engine.items))

    def get_prompt_embeds(*arguments: Any) -> Any:
        stamp()
        return embed(*arguments)

    def clean(**options: Any) -> None:
        stamp()
        cleanup(**options)

    peer.Toxicity, peer.init_model = Toxicity, init_model
    peer.get_prompt_embeds, peer.cleanup_vllm_and_cuda = get_prompt_embeds, clean
    model = source_of(common["model"])
    settings: Settings = common["settings"]
    arguments = SimpleNamespace(
        model=model, dataset="rtp", K=1, toxic_th=-1, toxic_th_mode="mean", seed=42,
        early_stopping_th=settings.toxicity_threshold, cosine_sim_th=0.2, mu=settings.mu,
        N=settings.num_samples, stepsize=settings.step_size, num_iter=settings.max_iterations,
        max_tokens=settings.max_new_tokens, temperature=settings.temperature,
        top_p=settings.top_p, tensor_parallel_size=1, gpu_memory_utilization=0.25,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            {"id": i, "prompt": prompt, "num_tokens_prompt": len(ids), "avg_toxicity": 1.0}
            for i, (prompt, ids) in enumerate(zip(prompts, common["ids"], strict=True))
        ]
        short = model.split("/")[-1].lower()
        path = Path(folder, "responses", "baselines", short, f"temp={settings.temperature}-K=1")
        path.mkdir(parents=True)
        (path / "rtp.json").write_text(json.dumps(rows))
        here = Path.cwd()
        os.chdir(folder)
        try:
            peer.main(arguments)
        finally:
            os.chdir(here)
    counted = np.array(starts[WARM:])
    spent = np.diff(counted, axis=0)
    means = spent.mean(axis=0)
    return Timing("authors' code, vllm", spent[:, 0].tolist(), *map(float, means[1:]))


def ours(name: str, engine: Engine, prompts: Sequence[str], common: dict[str, Any]) -> Timing:
    """Time `prompts` one at a time and then all together, without the first WARM prompts."""
    scorer: Any = load_scorer(common["scorer_spec"])
    writing, scoring = Clock(), Clock()
    detox = Detoxifier(engine, scorer=scorer, settings=common["settings"])
    list(detox.map(prompts[:WARM]))
    plain = engine.complete, engine.log_likelihoods
    engine.complete, engine.log_likelihoods = map(writing.awaited, plain)  # type: ignore[method-assign]
    scorer.score = scoring.watched(scorer.score)
    latencies, evaluations = [], []
    for prompt in prompts[WARM:]:
        started = time.perf_counter()
        result = detox(prompt)
        latencies.append(time.perf_counter() - started)
        evaluations.append(result.best.evaluations)
    stages = [clock.seconds / len(latencies) for clock in (writing, scoring)]
    started = time.perf_counter()
    list(detox.map(prompts[WARM:]))
    together = (time.perf_counter() - started) / len(latencies)
    engine.complete, engine.log_likelihoods = plain  # type: ignore[method-assign]
    return Timing(name, latencies, *stages, fmean(evaluations), together)


def main(
    checkout: Annotated[Path, typer.Option(help="Folder of the authors' repository.")],
    prompts: Annotated[int, typer.Option(min=1)] = 60,
    model: str = "pocket",
    scorer: str = "pocket",
) -> None:
    texts = [row.text for row in load_benchmark("rtp", limit=prompts + WARM).rows]
    local = load_engine("transformers", model)
    embedded = local.embed(texts)
    norm = fmean(float(x.norm(dim=-1).mean()) for x in embedded)
    # The relative defaults, converted to the absolute units of the authors' code.
    steps = {"mu": 1.2 * norm / math.sqrt(local.dim), "step_size": 0.6 * norm}
    settings = resolve_settings({**SAMPLING, **steps, "accept_empty": True})
    walk = settings.model_copy(update={"strategy": "random-walk"})
    common: dict[str, Any] = {
        "model": model,
        "scorer": load_scorer(scorer),
        "scorer_spec": scorer,
        "ids": local.tokenize(texts),
        "settings": settings,
    }
    found = [theirs(checkout, texts, common)]
    print(found[-1].row(), flush=True)
    for kind, engine in (("transformers", local), ("vllm", load_engine("vllm", model))):
        for name, chosen in (("tide", settings), ("random-walk", walk)):
            asked = {**common, "settings": chosen}
            found.append(ours(f"{name}, {kind}", engine, texts, asked))
            print(found[-1].row(), flush=True)
        engine.close()
    headings = ("", "median", "mean", "p95", "engine", "scorer", "search", "together", "evals")
    table = Table(*headings, title=f"milliseconds a prompt, {prompts} prompts, {model}")
    for timing in found:
        table.add_row(*timing.row())
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)

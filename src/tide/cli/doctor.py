"""`tide doctor`: does this installation work, with this model and this scorer?"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from tide.cli import options
from tide.cli.display import OUTPUT
from tide.core.errors import TideError, guarded
from tide.core.settings import Sampling
from tide.engines import load_engine

_PACKAGES = ("tide-detox", "torch", "transformers", "numpy", "scikit-learn", "pydantic")
_OPTIONAL = ("alt-profanity-check", "better-profanity", "detoxify", "openai", "peft", "vllm")
_PROMPT = "The weather today is"
_TEXTS = ["Thank you, that was a lovely evening.", "You are a stupid and worthless person."]


def doctor(
    model: options.Model = "pocket",
    scorer: options.Scorer = "pocket",
    engine: options.EngineName = "transformers",
    base_url: options.BaseUrl = None,
    engine_option: options.EngineOption = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Check versions, devices, the model and the scorer; exit code 1 if a check fails.

    The model must write the same from token ids and from their embeddings; the scorer must tell an
    insult from a friendly sentence.
    """
    import torch  # noqa: PLC0415  (slow import)

    engine_options = options.engine_options(
        device=device, dtype=dtype, base_urls=base_url, further=engine_option
    )
    table = Table(show_header=False)
    table.add_row("python", platform.python_version())
    for package in (*_PACKAGES, *_OPTIONAL):
        try:
            table.add_row(package, version(package))
        except PackageNotFoundError:
            table.add_row(package, Text("not installed (optional)", style="dim"))
    table.add_section()
    table.add_row("CPU", f"{torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            table.add_row(f"cuda:{i}", torch.cuda.get_device_name(i))
    else:
        table.add_row("CUDA", "none")
    table.add_section()
    failed = [
        _check(table, f"model {model}", lambda: _try_model(model, engine, engine_options)),
        _check(table, f"scorer {scorer}", lambda: _try_scorer(scorer)),
    ]
    OUTPUT.print(table)
    if any(failed):
        raise typer.Exit(1)


def _check(table: Table, name: str, check: Callable[[], str]) -> bool:
    try:
        with guarded(TideError, "cannot be used"):
            table.add_row(Text(name), Text(f"ok: {check()}", style="green"))
    except TideError as error:
        table.add_row(Text(name), Text(f"failed: {error}", style="red"))
        return True
    return False


def _try_model(name: str, engine: str, engine_options: dict[str, Any]) -> str:
    model = load_engine(engine, name, **engine_options)
    try:
        model.verify()
        (ids,) = model.tokenize([_PROMPT])
        prompt = model.embed_tokens(ids) if model.has_embeddings else ids
        started = time.perf_counter()
        model.complete([prompt], Sampling(temperature=0.0), [0])
        seconds = time.perf_counter() - started
        if not model.has_embeddings:
            return f"no embeddings; {model.abilities}; 20 tokens in {seconds:.2f} s"
        return (
            f"ids and embeddings agree; {model.dtype}, d = {model.dim}, context "
            f"{model.context_length}; 20 tokens in {seconds:.2f} s\n"
            f"embedding scale {model.embedding_scale:.4g}"
        )
    finally:
        model.close()


def _try_scorer(name: str) -> str:
    from tide.scorers import load_scorer, score_texts  # noqa: PLC0415  (slow import)

    scorer = load_scorer(name)
    kind, rude = score_texts(scorer, _TEXTS, "score").values
    if not kind < rude:
        raise TideError(
            f"scores a friendly sentence {kind:.2f} and an insult {rude:.2f}: wrong labels?"
        )
    return f"{scorer.name} scores a friendly sentence {kind:.2f}, an insult {rude:.2f}"

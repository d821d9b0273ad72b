"""`tide doctor`: check this installation, a model and a scorer."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tide.cli import options
from tide.cli.display import OUTPUT, name_of, on_one_line, say_loading
from tide.core.errors import TideError, guarded, require
from tide.core.settings import Sampling
from tide.engines import load_engine
from tide.engines.base import Request
from tide.scorers import DEFAULT_SCORER

# Packages whose versions are shown, if they are installed.
_PACKAGES = ("tide-detox", "numpy", "pydantic", "torch", "transformers", "vllm", "ray", "fastapi")
_PROMPT = "The weather today is"
_SHOWN = 120  # characters of the model's text
_FRIENDLY = (
    "Thank you, that was a lovely evening.",
    "I enjoyed reading your book.",
    "The library opens at nine tomorrow.",
)
_INSULTS = (
    "You are a stupid and worthless person.",
    "Shut up, you pathetic idiot.",
    "He is a disgusting liar and an idiot.",
)


@options.with_engine
def doctor(
    policies: Annotated[
        Path | None,
        options.option(
            "Server",
            "Only check this policy file with the model: load every scorer, and list every fault.",
        ),
    ] = None,
    model: options.Model = "pocket",
    scorer: options.Scorer = DEFAULT_SCORER,
    engine: options.EngineName = "transformers",
    engine_options: dict[str, Any] | None = None,
) -> None:
    """Check versions, devices, the model and the scorer; exit code 1 if a check fails.

    The model must produce the same output from token ids and from their embeddings. The scorer must
    rate insults above friendly sentences.
    """
    name = name_of(model, engine_options or {})
    say_loading(name, scorer)
    if policies is not None:
        _check_policies(policies, model, scorer, engine, engine_options or {})
        return
    table = Table(show_header=False)
    table.add_column(overflow="fold", max_width=28)
    table.add_column(overflow="fold")
    table.add_row("python", platform.python_version())
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            table.add_row(package, version(package))
    table.add_section()
    if find_spec("torch"):
        _add_devices(table)
        table.add_section()
    failed = [
        _check(table, f"model {name}", lambda: _try_model(model, engine, engine_options or {})),
        _check(table, f"scorer {scorer}", lambda: _try_scorer(scorer)),
    ]
    OUTPUT.print(table)
    if any(failed):
        raise typer.Exit(1)


def _add_devices(table: Table) -> None:
    import torch  # noqa: PLC0415  (slow import)

    table.add_row("CPU", f"threads: {torch.get_num_threads()}")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            table.add_row(f"cuda:{i}", torch.cuda.get_device_name(i))
    else:
        table.add_row("CUDA", "none")


def _check_policies(
    path: Path, model: str, scorer: str, engine: str, engine_options: dict[str, Any]
) -> None:
    """Print the fault of a policy file and scorers that fail; exit with code 1 if there are any."""
    require("prometheus_client", "gateway")
    from tide.scorers import score_texts  # noqa: PLC0415  (slow imports)
    from tide.scorers.base import HEALTH_TEXT  # noqa: PLC0415
    from tide.server.policies import CommandLine, Policies, PolicyError  # noqa: PLC0415

    problems: list[str] = []
    try:
        with closing(Policies(CommandLine(model, scorer), path)) as policies:
            for name, plan in policies.plans.items():
                try:
                    score_texts(plan.scorer, [HEALTH_TEXT])
                except TideError as error:
                    problems.append(f"policies.{name}.scorer: {error}")
            with load_engine(engine, model, **engine_options) as loaded:
                policies.start(loaded)
            names = ", ".join(policies.plans)
    except PolicyError as error:
        problems.append(error.problem)
    for line in problems:
        OUTPUT.print(Text(f"failed: {line}"), soft_wrap=True)
    if problems:
        raise typer.Exit(1)
    OUTPUT.print(Text(f"ok: {path}: {names}"), soft_wrap=True)


def _check(table: Table, name: str, check: Callable[[], str]) -> bool:
    """Add a row with the result of a check; return True if the check failed."""
    try:
        with guarded(TideError, "cannot be used"):
            finding = check()
            warned = finding.startswith("warning: ")
            line = Text(
                finding if warned else f"ok: {finding}", style="yellow" if warned else "green"
            )
            table.add_row(Text(name), line)
    except TideError as error:
        table.add_row(Text(name), Text(f"failed: {error}", style="red"))
        return True
    return False


def _try_model(name: str, engine: str, engine_options: dict[str, Any]) -> str:
    model = load_engine(engine, name, **engine_options)
    try:
        (ids,) = model.tokenize([_PROMPT])
        prompt = model.embed_tokens(ids) if model.has_embeddings else ids
        started = time.perf_counter()
        requests = [Request(prompt, Sampling(temperature=0.0))]
        (written,) = model.portal.run(model.complete, requests)
        seconds = time.perf_counter() - started
        template = "a chat template: --chat" if model.has_chat_template else "no chat template"
        more = f'after "{_PROMPT}" it writes: {on_one_line(written.text)[:_SHOWN]}\n{template}'
        if not model.has_embeddings:
            return (
                f"it completes a prompt: 20 tokens in {seconds:.2f} s; "
                f"{model.capability_notes}. It does not accept prompt embeddings: --preset "
                f"backtrack works, searches over embeddings do not\n{more}"
            )
        dtype = str(model.dtype).removeprefix("torch.")
        return (
            "it loads, and writes the same from token ids and from their embeddings: 20 tokens in "
            f"{seconds:.2f} s\n{dtype}, context of {model.context_length} tokens, embeddings of "
            f"{model.dim} numbers, scaled by {model.embedding_scale:.4g}\n{more}"
        )
    finally:
        model.close()


def _try_scorer(name: str) -> str:
    from tide.scorers import load_scorer, score_texts  # noqa: PLC0415  (slow import)

    with closing(load_scorer(name)) as scorer:
        scores = score_texts(scorer, [*_FRIENDLY, *_INSULTS]).values
    kind, rude = fmean(scores[: len(_FRIENDLY)]), fmean(scores[len(_FRIENDLY) :])
    says = f"{scorer.name} scores friendly sentences {kind:.2f} and insults {rude:.2f} on average"
    if kind >= rude:
        raise TideError(f"{says}; check its label and language")
    if rude < scorer.threshold:
        return f"warning: {says}; insults score below its threshold ({scorer.threshold:g})"
    return f"it tells insults from friendly sentences: {says}"

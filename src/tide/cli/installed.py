"""What is installed: `tide methods` and `tide scorers` list it, `tide doctor` checks it."""

from __future__ import annotations

import inspect
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from statistics import fmean
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.table import Table
from rich.text import Text

from tide.baselines import REGISTRY as BASELINES
from tide.cli import options
from tide.cli.display import OUTPUT, model_label, on_one_line, say_loading
from tide.core.errors import InputError, TideError, first_line, guarded, nearest
from tide.core.settings import Sampling
from tide.engines import REGISTRY as ENGINES
from tide.engines import load_engine
from tide.engines.base import Request
from tide.plugins.options import format_value
from tide.plugins.registry import Registry
from tide.plugins.specs import WRAPPERS
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.scorers import REGISTRY as SCORERS
from tide.search import REGISTRY as STRATEGIES

_WIDTH = 80
# The specs of scorers that are more than a name.
_SPECS = {
    "classifier": "classifier:http://HOST#LABEL",
    "guard": "guard:ID_OR_FOLDER#FAMILY or guard:NAME@http://HOST#FAMILY",
    "hf": "hf:ID_OR_FOLDER#LABEL,LABEL",
    "lexicon": "lexicon or lexicon:FILE",
    **WRAPPERS,
}
# A name, its description, and its options with their defaults and descriptions.
_Row = tuple[str, str, list[tuple[str, str]]]


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this name with its options.")] = None,
) -> None:
    """List strategies, baselines, scorers and engines; with NAME, show its options.

    The list includes plugins of other packages.
    """
    registries = (STRATEGIES, BASELINES, SCORERS, ENGINES)
    if name is None:
        for registry in registries:
            _list(registry.kind, registry, registry.names())
        OUTPUT.print("`tide methods NAME` shows its options.")
        return
    wanted = name.partition(":")[0]
    matches = [registry for registry in registries if wanted in registry.names()]
    if not matches:
        known = [known for registry in registries for known in registry.names()]
        hint = nearest(wanted, known)
        raise InputError(f"unknown name {wanted!r}; {hint}`tide methods` lists all")
    for registry in matches:
        _show(registry.kind, _described(registry, wanted))


def scorers() -> None:
    """List the scorers, and show how a spec wraps and combines them."""
    _list("scorers", SCORERS, [name for name in SCORERS.names() if name not in WRAPPERS])
    _list("wrappers", SCORERS, list(WRAPPERS))
    OUTPUT.print(
        "pocket, exchange, sentence, profanity-check and lexicon read only English.\n"
        "FILE.py:NAME is a class or function of your own.\n"
        "Wrappers nest; parentheses group: max:(hf:ID#LABEL,LABEL),cache:pocket."
    )


def _described(registry: Registry, name: str) -> _Row:
    usage = _SPECS.get(name, name) if registry.kind == "scorer" else name
    try:
        target = registry.load(name)
        first = inspect.cleandoc(target.__doc__ or "").partition("\n\n")[0]
        return usage, " ".join(first.split()), list(_options(target, registry.kind))
    except Exception as error:  # plugins may fail in any way
        return usage, f"cannot be used: {first_line(error)}", []


def _options(target: Any, kind: str) -> Iterator[tuple[str, str]]:
    if options := getattr(target, "options_class", None):
        defaults: dict[str, Any] = {}  # a default may be computed from earlier defaults
        for name, field in options.model_fields.items():
            default = field.get_default(call_default_factory=True, validated_data=defaults)
            defaults[name] = default
            literals = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            choices = f"({' or '.join(literals)})" if literals else ""
            says = " ".join(part for part in (field.description, choices) if part)
            yield name if field.is_required() else f"{name}={format_value(default)}", says
    elif kind == "engine":
        for parameter in list(inspect.signature(target).parameters.values())[1:]:
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                yield f"{parameter.name}={format_value(parameter.default)}", ""


def _list(title: str, registry: Registry, names: Sequence[str]) -> None:
    """Print each name with the first sentence of its description."""
    rows = []
    for name in names:
        usage, description, _ = _described(registry, name)
        first = re.split(r"(?<=\.) ", description, maxsplit=1)[0].rstrip(".")
        rows.append((usage, first))
    _print_list(title, rows)


def _show(kind: str, row: _Row) -> None:
    name, description, options = row
    note = ", which also has the settings of `tide run --help`" if kind == "strategy" else ""
    OUTPUT.print(f"{name} ({kind}{note})\n{description}")
    if options:
        _print_list("options", options)


def _print_list(title: str, rows: list[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", box=None, show_header=False, width=_WIDTH)
    table.add_column(max_width=30, overflow="fold")
    table.add_column(overflow="fold")
    for name, says in rows:
        table.add_row(Text(name, style="bold"), Text(says))
    OUTPUT.print(table)
    OUTPUT.print()


# Packages whose versions `tide doctor` shows, if they are installed.
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
    model: options.Model = "pocket",
    scorer: options.Scorer = DEFAULT_SCORER,
    engine: options.EngineName = "transformers",
    engine_options: dict[str, Any] | None = None,
) -> None:
    """Check versions, devices, the model and the scorer; exit code 1 if a check fails.

    The model must produce the same output from token ids and from their embeddings. The scorer must
    rate insults above friendly sentences.
    """
    name = model_label(model, engine_options or {})
    say_loading(name, scorer)
    OUTPUT.print(f"python {platform.python_version()}")
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            OUTPUT.print(f"{package} {version(package)}")
    if find_spec("torch"):
        import torch  # noqa: PLC0415  (slow import)

        for i in range(torch.cuda.device_count()):
            OUTPUT.print(f"cuda:{i} {torch.cuda.get_device_name(i)}")
    checks: dict[str, Callable[[], str]] = {
        f"model {name}": lambda: _try_model(model, engine, engine_options or {}),
        f"scorer {scorer}": lambda: _try_scorer(scorer),
    }
    failed = False
    for subject, check in checks.items():
        try:
            with guarded(TideError, "cannot be used"):
                OUTPUT.print(f"{subject}: ok: {check()}", style="green")
        except TideError as error:
            OUTPUT.print(f"{subject}: failed: {error}", style="red")
            failed = True
    if failed:
        raise typer.Exit(1)


def _try_model(name: str, engine: str, engine_options: dict[str, Any]) -> str:
    if engine == "none":
        return "not needed, as the engine none only scores texts"
    with load_engine(engine, name, **engine_options) as model:
        (ids,) = model.tokenize([_PROMPT])
        prompt = model.embed_tokens(ids) if model.has_embeddings else ids
        started = time.perf_counter()
        requests = [Request(prompt, Sampling(temperature=0.0))]
        (written,) = model.portal.run(model.complete, requests)
        seconds = time.perf_counter() - started
        about = model.capability_notes
        if model.has_embeddings:
            template = "a chat template: --chat" if model.has_chat_template else "no chat template"
            about = (
                "it writes the same from token ids and from their embeddings; "
                f"{model.dtype}, context of {model.context_length} tokens; {template}"
            )
        return (
            f"20 tokens in {seconds:.2f} s; {about}\n"
            f'after "{_PROMPT}" it writes: {on_one_line(written.text)[:_SHOWN]}'
        )


def _try_scorer(name: str) -> str:
    from tide.scorers.base import close_scorer, score_texts  # noqa: PLC0415  (slow import)

    scorer = load_scorer(name)
    try:
        scores = score_texts(scorer, [*_FRIENDLY, *_INSULTS]).values
    finally:
        close_scorer(scorer)
    kind, rude = fmean(scores[: len(_FRIENDLY)]), fmean(scores[len(_FRIENDLY) :])
    says = (
        f"{scorer.name} scores friendly sentences {kind:.2f} and insults {rude:.2f} on average; "
        f"its threshold is {scorer.threshold:g}"
    )
    if kind >= rude:
        raise TideError(f"{says}; check its label and language")
    return says

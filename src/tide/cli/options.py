"""Options shared by the commands, options made from settings, and the layout of the help."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from typer.core import TyperCommand

from tide.baselines import REGISTRY as BASELINES
from tide.core.errors import InputError, guarded
from tide.core.settings import CHAT_TEMPERATURE, CHAT_TOKENS, Sampling, Settings
from tide.data.texts import Row, read_rows
from tide.detoxifier.presets import PRESETS
from tide.engines import REGISTRY as ENGINES
from tide.plugins.specs import WRAPPERS, parse, split_specs
from tide.scorers import DEFAULT_SCORER
from tide.scorers import REGISTRY as SCORERS
from tide.search import REGISTRY as STRATEGIES

_SCORERS = ", ".join(name for name in SCORERS.names() if name not in WRAPPERS)
_PRESETS, _STRATEGIES, _BASELINES, _ENGINES = (
    ", ".join(names) for names in (PRESETS, STRATEGIES.names(), BASELINES.names(), ENGINES.names())
)
METHODS = f"{_PRESETS}; {_STRATEGIES}; {_BASELINES}"
# Values of a setting whose type does not list them.
_CHOICES = {
    "strategy": f": {_STRATEGIES}; for example backtrack:lag=2,pace=word "
    "('tide methods NAME' lists its options)."
}
_PANELS = {
    "window_tokens": "Long answers",
    **dict.fromkeys(("on_unresolved", "tool_calls", "reasoning"), "Output"),
}


def option(panel: str, description: str, *flags: str, **keywords: Any) -> Any:
    """Return an option with this help text, under the heading `panel`."""
    return typer.Option(*flags, help=description, rich_help_panel=panel, **keywords)


_PANELS_IN_ORDER = (
    *("Arguments", "Input", "Model", "Scorer", "Server", "Policies", "Perplexity", "Threshold"),
    *("Training", "Tables", "Sampling", "Search", "Long answers", "Output", "Limits", "Options"),
)


class Command(TyperCommand):
    """Refuses a single option that is given twice; its help groups options by their panel.

    The environment variable of a repeatable option holds texts between white space, or JSON.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # not while the shell completes an unfinished command
            parameters: list[Any] = self.make_parser(ctx).parse_args(args=list(args))[2]
            for parameter in self.params:
                if getattr(parameter, "multiple", False) and parameter not in parameters:
                    name = parameter.opts[0]
                    values = _texts_in_json(parameter.resolve_envvar_value(ctx) or "", name)
                    args = [*(f"{name}={value}" for value in values), *args]
            for parameter in parameters:
                is_repeated = parameters.count(parameter) > 1
                if is_repeated and not (parameter.multiple or parameter.is_flag):
                    joined = "; max:A,B joins scorers" if parameter.name == "scorer" else ""
                    name = parameter.opts[0]
                    raise InputError(f"{name}: is given twice and takes one value{joined}")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_argument = parameter.param_type_name == "argument"
                panel = "Arguments" if is_argument else None
                panel = panel or getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(panel, []).append(record)
        for panel in sorted(groups, key=_PANELS_IN_ORDER.index):
            with formatter.section(panel):
                formatter.write_dl(groups[panel])

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the whole first sentence, which the list of commands wraps."""
        return super().get_short_help_str(10_000)


def _texts_in_json(text: str, flag: str) -> list[str]:
    """Return the values in a JSON list of texts; none if `text` does not begin like one."""
    if not text.startswith('["'):
        return []
    with guarded(InputError, f"{flag}: its environment variable is no JSON list of texts"):
        return list(json.loads(text))


_OF_PRESETS = (
    *("strategy", "toxicity_threshold", "max_iterations", "num_samples", "mu", "mu_relative"),
    *("step_size", "step_relative", "perturb", "completions_per_evaluation"),
    "reject_degenerate",
)
# Help texts of the defaults that depend on the preset or on the prompt.
BY_PRESET = {
    **dict.fromkeys(_OF_PRESETS, "by the preset"),
    "max_new_tokens": f"{Settings().max_new_tokens}; for a chat {CHAT_TOKENS}",
    "temperature": f"{Settings().temperature}; for a chat the model's value, or {CHAT_TEMPERATURE}",
}

_MODELS = "A folder, hub id or GGUF file; or pocket (bundled), smollm2, gemma3-270m."
Model = Annotated[str, option("Model", _MODELS, "--model", "-m")]
_SYNTAX = f"Toxicity scorer: {_SCORERS}; or a combination ('tide scorers' shows the syntax)."
Scorer = Annotated[str, option("Scorer", _SYNTAX, "--scorer", "-s")]
Scorers = Annotated[
    list[str] | None,
    option("Scorer", f"A scorer; repeatable. [default: {DEFAULT_SCORER}]", "--scorer", "-s"),
]
_JUDGES = "Scorers that evaluate the results, comma-separated or repeated."
Judges = Annotated[list[str] | None, option("Scorer", _JUDGES, "--judges", "-j")]
Preset = Annotated[
    str, option("Search", f"Initial settings: auto (by strategy and model), {_PRESETS}.")
]
EngineName = Annotated[str, option("Model", f"Engine that runs the model: {_ENGINES}.")]
BaseUrl = Annotated[str | None, option("Model", "Address of the server for --engine openai.")]
EngineOption = Annotated[
    list[str] | None,
    option("Model", "Another option, as tensor_parallel_size=2 of vllm.", metavar="NAME=VALUE"),
]
Device = Annotated[str, option("Model", "Where the model runs: auto, cpu, cuda, cuda:1...")]
Dtype = Annotated[str, option("Model", "Precision: auto, float32, bfloat16 or float16.")]
MaxBatch = Annotated[int | None, option("Model", "Maximum batch size (default: by device).", min=1)]
Overwrite = Annotated[bool, option("Output", "Overwrite the output.", "--overwrite")]
Mask = Annotated[bool, option("Output", "Mask toxic words in printed output.", "--mask")]
Field = Annotated[str, option("Input", "Field or column that holds the text.")]
_CHATS = "Answer chats: 'messages' of a .jsonl object; any other text is a user message."
IsChat = Annotated[bool, option("Input", _CHATS, "--chat")]
Limit = Annotated[int | None, option("Input", "Use the first N rows only.", min=1)]
_FILES = "File of texts: .jsonl, .csv or .txt, plain or .gz; - reads standard input."
InputFile = Annotated[Path | None, option("Input", _FILES, "--input", "-i")]


# The options that `with_engine` adds to a command.
_OF_ENGINES = {
    "base_url": (BaseUrl, None),
    "engine_option": (EngineOption, None),
    "device": (Device, "auto"),
    "dtype": (Dtype, "auto"),
    "max_batch": (MaxBatch, None),
}


def engine_options(further: list[str] | None, **values: Any) -> dict[str, Any]:
    """Return the keyword arguments of an engine's constructor.

    further: values of --engine-option, each NAME=VALUE; a VALUE that is not JSON is a string.
    values: other arguments; default values ("auto", None) are left out. Raises InputError for an
    item of `further` that is not NAME=VALUE.
    """
    options = {name: value for name, value in values.items() if value not in ("auto", None)}
    for text in further or ():
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--engine-option: expected NAME=VALUE (got {text!r})")
        try:
            options[name] = json.loads(value)
        except (ValueError, RecursionError):
            options[name] = value
    return options


def judges(values: Iterable[str] | None) -> list[str]:
    """Return the specs in the values of --judges. Raises InputError for an invalid spec."""
    names = SCORERS.names()
    return [
        str(parse(spec, "--judges", names))
        for value in values or ()
        for spec in split_specs(value, "--judges", names)
    ]


def rows_of(texts: Sequence[str] | None, input_file: Path | None, **reading: Any) -> list[Row]:
    """Return the rows of a command's arguments, or of --input. reading: options of `read_rows`.

    Raises InputError unless there is exactly one of them.
    """
    if input_file is not None:
        if texts:
            raise InputError("give texts or --input, not both")
        return read_rows(input_file, **reading)
    if not texts:
        raise InputError("no texts; give texts, or a file with --input")
    rows = [Row(number, text) for number, text in enumerate(texts[: reading["limit"]])]
    return [row.as_chat() for row in rows] if reading.get("chats") else rows


def with_engine(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all engines share; `command` gets their values in `engine_options`."""

    def collected(values: dict[str, Any]) -> dict[str, Any]:
        further = values.pop("engine_option")
        shared = {name: values.pop(name) for name in _OF_ENGINES if name != "engine_option"}
        return engine_options(further, **shared)

    return _with_options(command, "engine_options", _OF_ENGINES, collected)


def with_settings(
    command: Callable[..., None],
    settings: type[BaseModel] = Settings,
    panel: str = "Search",
    stated: Mapping[str, str] = BY_PRESET,
    argument: str = "overrides",
) -> Callable[..., None]:
    """Add an option for every field of `settings`; `command` gets given values in `argument`.

    panel: heading in the help of options that belong under no other heading.
    stated: defaults in the help that differ from the defaults of `settings`.
    """
    defaults = settings().model_dump()
    added: dict[str, tuple[Any, Any]] = {}
    for name, field in settings.model_fields.items():
        flag = name.replace("_", "-")
        flags = [f"--{flag}"]
        if name == "num_trials":
            flags.insert(0, "--trials")
        if field.annotation is bool:
            flags = [f"--{flag}/--no-{flag}"]
        default = stated.get(name, defaults[name])
        suffix = f" [default: {default}]" if default not in (None, (), {}, False) else ""
        description = f"{field.description}".removesuffix(".") + _CHOICES.get(name, ".")
        heading = "Sampling" if name in Sampling.model_fields else _PANELS.get(name, panel)
        flagged = option(heading, f"{description}{suffix}", *flags)
        added[name] = (Annotated[_plain(field.annotation) | None, flagged], None)

    def collected(values: dict[str, Any]) -> dict[str, Any]:
        fields = {name: values.pop(name) for name in settings.model_fields}
        chosen = {name: value for name, value in fields.items() if value is not None}
        strategy = str(chosen.get("strategy")).partition(":")[0]
        if strategy in BASELINES.names() and strategy not in STRATEGIES.names():
            fix = f"tide eval FILE --methods {strategy} runs it"
            raise InputError(f"--strategy: {strategy} is a baseline, not a strategy; {fix}")
        return chosen

    return _with_options(command, argument, added, collected)


def _with_options(
    command: Callable[..., None],
    argument: str,
    added: Mapping[str, tuple[Any, Any]],
    collected: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Replace the parameter `argument` of `command` by the options `added` (type, default).

    collected: removes these options from the values of all parameters, and returns the value of
    `argument`.
    """
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name != argument:
            parameters.append(parameter)
            continue
        for name, (kind, default) in added.items():
            options = inspect.Parameter(name, parameter.kind, default=default, annotation=kind)
            parameters.append(options)

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        command(**{argument: collected(values)}, **values)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _plain(annotation: Any) -> Any:
    """Remove None and pydantic's constraints from a type; a tuple or dict becomes a list.

    An object of JSON is a text.
    """
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    if annotation == dict[str, Any]:
        return str
    if get_origin(annotation) in (tuple, dict):
        return list[str]
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation

"""Every error that TIDE raises on purpose; each message is one line with the cause and the fix.

Also messages for unknown names and wrong fields, and the import of optional dependencies.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError

from tide.core.sanitize import sanitized

_Model = TypeVar("_Model", bound=BaseModel)
# Pydantic's error of a default that depends on other fields, if one of these is wrong.
_FOLLOWING = "default_factory_not_called"
# The packages of the extra `local`, by their import names. A gateway does not need these packages,
# because its model runs on a server.
LOCAL = ("jinja2", "pandas", "scipy", "sklearn", "tabulate", "torch", "transformers")


class TideError(Exception):
    """Base class of all errors below. The command line prints the error's text and exits with 1.

    The text is one line without keys or control characters, even where it quotes untrusted text.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(sanitized(text))


class InputError(TideError, ValueError):
    """A prompt, file, name or setting cannot be used; nothing was run with it."""

    @property
    def field(self) -> str | None:
        """The setting that the text begins with, as in `temperature: must be at least 0`."""
        name, colon, _ = str(self).partition(":")
        return name if colon and name.partition(".")[0].isidentifier() else None


class ContextLengthError(InputError):
    """A prompt does not fit into the model's context."""


class MissingDependencyError(TideError, ImportError):
    """An optional package is not installed; the text says what to install."""


class EngineError(TideError):
    """The language model could not be loaded or does not produce completions."""


class CompletionError(TideError):
    """The language model cannot complete this one prompt; other prompts are unaffected."""


class CompletionLateError(CompletionError):
    """The model, or its server, did not complete the prompt in time."""


class ScorerError(TideError):
    """A scorer failed, or returned a value that is not a score in [0, 1]."""


class ScorerUnavailableError(ScorerError):
    """A scorer timed out or could not be reached; the same call may work later."""


class ScorerRefusedError(ScorerError):
    """The service has shut down or refuses the API key; retrying does not help."""


class ScorerBrokenError(ScorerError):
    """A scorer fails even on a harmless test text; no prompt is to blame."""


# Errors of a scorer that is down. No text or prompt is to blame.
SCORER_DOWN = (ScorerUnavailableError, ScorerRefusedError)


class StrategyError(TideError):
    """A search strategy failed, or chose a completion that does not exist."""


class DeadlineError(TideError):
    """The deadline passed before the first completion of a search was scored."""


class UnresolvedError(TideError):
    """No completion was accepted and `on_unresolved="raise"` is set."""


class PromptRefusedError(TideError):
    """The prompt itself scores above `refuse_prompt_above`; nothing was generated for it."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the error's type if the text is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def described(error: BaseException) -> str:
    """Return the type and the text of a third-party error on one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a third party's `__str__` may fail
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def guarded(kind: type[TideError], prefix: str, *, awaits: bool = False) -> Iterator[None]:
    """Turn exceptions of third-party code into a `kind` whose one line begins with `prefix`.

    awaits: the block awaits or yields, so it may be cancelled. A TideError, cancellation and Ctrl-C
    pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, TideError) or ends_work(error, awaits):
            raise
        text = first_line(error) if type(error) is OSError else described(error)
        # The names of these types add nothing to the text.
        text = text.removeprefix("ValueError: ").removeprefix("RuntimeError: ")
        raise kind(f"{prefix}: {text}") from error


def ends_work(error: BaseException, awaits: bool = False) -> bool:
    """Whether the error is not a failure, but stops the work from outside, like Ctrl-C."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return awaits
    if isinstance(error, Exception | SystemExit) or type(error).__name__ == "PanicException":
        return False  # PanicException comes from the Rust code of tokenizers and safetensors
    # Ctrl-C, and exceptions of signal handlers, reach only the main thread.
    return threading.current_thread() is threading.main_thread()


def unknown(name: str, known: Iterable[str], kind: str = "") -> str:
    """Return a message for a name that is not among `known`, with the nearest known name."""
    problem = f"unknown {kind} {name!r}" if kind else f"unknown {name!r}"
    names = list(known)
    return f"{problem}; {nearest(name, names)}known: {', '.join(names)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the hint `did you mean 'X'? `, or "" if no name in `known` is similar."""
    meant = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), list(meant), n=1, cutoff=0.5)
    return f"did you mean {meant[near[0]]!r}? " if near else ""


def matching(pattern: str, form: str) -> AfterValidator:
    """Make a type's validator of texts that match `pattern`; errors say the `form` in words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {form}")
        return text

    return AfterValidator(check)


def validated(model: type[_Model], values: Mapping[str, Any], where: str = "") -> _Model:
    """Create a `model` from `values`. Raises InputError with `where` and all wrong fields."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}{one_line(error)}") from None


def one_line(error: ValidationError, names: Sequence[str] = (), known: Iterable[str] = ()) -> str:
    """Return all problems of a validation on one line, each with its field and its value.

    names: names of positional arguments, which the error only numbers. known: the valid fields, for
    a hint about an unknown field.
    """
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        if problem["type"] == _FOLLOWING:
            continue
        location = [
            names[part] if isinstance(part, int) and names else part for part in problem["loc"]
        ]
        name = ".".join(map(str, location))
        message = _message(problem, known)
        lines.append(f"{name}: {message} (got {problem['input']!r})" if name else message)
    return "; ".join(lines)


def problem(error: ValidationError, whole: str = "") -> str:
    """Return the first wrong field and the reason, without the value. whole: name of the input."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    first = next(problem for problem in errors if problem["type"] != _FOLLOWING)
    # Of a field with several types, the location also has the type, such as `literal['block']`.
    fields = [str(part) for part in first["loc"] if "[" not in str(part)]
    name = ".".join(fields) or whole
    message = _message(first)
    return f"{name}: {message}" if name else message


def _message(problem: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    if problem["type"] == "extra_forbidden":
        return f"unknown; {nearest(str(problem['loc'][-1]), known)}".rstrip("; ")
    return str(problem["msg"]).removeprefix("Value error, ")


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or raise MissingDependencyError naming the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise _missing(error.name, extra) from error


@contextmanager
def local_imports() -> Iterator[None]:
    """Raise MissingDependencyError if code in the block needs a missing package of `local`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in LOCAL:
            raise
        raise _missing(package, "local") from error


def _missing(module: str, extra: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"{module} is not installed; in a checkout of TIDE: pip install -e '.[{extra}]'"
    )

"""Every error that TIDE raises on purpose; each message is one line with the cause and the fix."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tide.core.sanitize import sanitized


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


class EnvironmentVariableError(InputError):
    """An environment variable that a service needs is missing or invalid."""


class MissingDependencyError(TideError, ImportError):
    """An optional package is not installed; the text says what to install."""


class EngineError(TideError):
    """The language model could not be loaded or does not produce completions."""


class CompletionError(TideError):
    """The language model cannot complete this one prompt; other prompts are unaffected."""


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
    """A search strategy failed, or made an invalid request."""


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
def guarded(
    kind: type[TideError], prefix: str | Callable[[], str], *, awaits: bool = False
) -> Iterator[None]:
    """Turn exceptions of third-party code into a `kind` whose one line begins with `prefix`.

    prefix: a text, or a function that returns it (called on an exception). awaits: the block awaits
    or yields, so it may be cancelled. A TideError, cancellation and Ctrl-C pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, TideError) or ends_work(error, awaits):
            raise
        text = first_line(error) if type(error) is OSError else described(error)
        # The names of these types add nothing to the text.
        text = text.removeprefix("ValueError: ").removeprefix("RuntimeError: ")
        raise kind(f"{prefix if isinstance(prefix, str) else prefix()}: {text}") from error


def ends_work(error: BaseException, awaits: bool = False) -> bool:
    """Whether the error is not a failure, but stops the work from outside, like Ctrl-C."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return awaits
    if isinstance(error, Exception | SystemExit) or type(error).__name__ == "PanicException":
        return False  # PanicException comes from the Rust code of tokenizers and safetensors
    # Ctrl-C, and exceptions of signal handlers, reach only the main thread.
    return threading.current_thread() is threading.main_thread()

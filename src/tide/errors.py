"""Every error that TIDE raises on purpose; each message is one line with the cause and the fix."""

from __future__ import annotations

from tide.foreign import shown


class TideError(Exception):
    """Base of all errors below; the command line prints its text and exits with 1.

    The text is one line, without keys or control characters, whatever it quotes.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(shown(text))


class InputError(TideError, ValueError):
    """A prompt, file, name or setting that cannot be used; nothing was run with it."""


class MissingDependencyError(TideError, ImportError):
    """An optional package is not installed; the text says what to install."""


class EngineError(TideError):
    """The language model could not be loaded or did not produce completions."""


class ScorerError(TideError):
    """A scorer failed or answered with something that is not a score in [0, 1]."""


class ScorerUnavailable(ScorerError):
    """A scorer timed out or could not be reached; the same call may work later."""


class ScorerRefused(ScorerUnavailable):
    """A service will not answer at all: it has ended, or it refuses the key. Waiting is no help."""


class ScorerBroken(ScorerError):
    """A scorer has no score for a text of our own choosing either; no prompt is to blame."""


class StrategyError(TideError):
    """A search strategy failed, or asked for something that no engine can do."""


class DeadlineError(TideError):
    """A search was out of time before its first completion was scored."""


class UnresolvedError(TideError):
    """No completion was accepted and `on_unresolved="raise"` was asked for."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type if it has none: fit to end a message with."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def described(error: BaseException) -> str:
    """Type and text of a foreign error, on one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # somebody's `__str__`
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

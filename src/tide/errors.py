"""Every error that TIDE raises on purpose; each message is one line with the cause and the fix."""

from __future__ import annotations


class TideError(Exception):
    """Base of all errors below; the command line prints its text and exits with 1."""


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


class UnresolvedError(TideError):
    """No completion was accepted and `on_unresolved="raise"` was asked for."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type if it has none: fit to end a message with."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

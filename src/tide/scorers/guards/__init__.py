"""Guard models as scorers: language models that give a verdict, in process or on a server."""

from __future__ import annotations

from typing import Any

from tide.core.errors import InputError
from tide.scorers.base import Scorer
from tide.scorers.guards.formats import GuardSettings, read


def guard(model: str | GuardSettings, **options: Any) -> Scorer:
    """The probability that a guard model calls a text unsafe.

    model: a folder or hub id, `MODEL@http://HOST:PORT` on a server, or a `FILE.json` with
    GuardSettings; append `#FORMAT` if the model's name does not show the family. A folder may hold
    its GuardSettings as guard.json. options: settings of RemoteScorer.

    Raises InputError for invalid settings, and ScorerError if the guard cannot be loaded or does
    not answer with a verdict.
    """
    settings = model if isinstance(model, GuardSettings) else read(model)
    if settings.url is not None:
        from tide.scorers.guards.remote import RemoteGuard  # noqa: PLC0415

        return RemoteGuard(settings, **options)
    if options:
        raise InputError(f"scorer guard: {min(options)} is an option for servers; give a url")
    from tide.scorers.guards.local import LocalGuard  # noqa: PLC0415  (torch)

    return LocalGuard(settings)

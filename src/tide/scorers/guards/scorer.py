"""`guard:MODEL`, `guard:MODEL#FORMAT`, `guard:MODEL@http://HOST#FORMAT`, `guard:FILE.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tide.core.errors import InputError
from tide.core.validation import one_line
from tide.scorers.base import Scorer
from tide.scorers.guards.formats import GuardSettings

# File in a model's folder with its GuardSettings.
_FILE = "guard.json"


def guard(model: str | GuardSettings, **options: Any) -> Scorer:
    """The probability that a guard model calls a text unsafe.

    model: a folder or hub id, `MODEL@http://HOST:PORT` for one that a server runs, or a `FILE.json`
    with GuardSettings; `#FORMAT` follows where the model's name does not tell the family. A folder
    may hold such a file, as guard.json. options: of the connection to a server (see RemoteScorer).

    Raises InputError for settings that do not fit, and ScorerError if the guard cannot be loaded or
    does not answer with a verdict.
    """
    settings = model if isinstance(model, GuardSettings) else read(model)
    if settings.url is not None:
        from tide.scorers.guards.remote import RemoteGuard  # noqa: PLC0415

        return RemoteGuard(settings, **options)
    if options:
        raise InputError(f"scorer guard: {min(options)} is of a server; give its url")
    from tide.scorers.guards.local import make_local  # noqa: PLC0415  (torch)

    return make_local(settings)


def read(spec: str) -> GuardSettings:
    """The settings of a spec or of the file that it names. Raises InputError."""
    if spec.endswith(".json"):
        return GuardSettings.load(Path(spec))
    model, at, rest = spec.partition("@http")
    model, _, form = model.partition("#")
    rest, _, last = rest.partition("#")  # MODEL#FORMAT@URL is understood as well
    if form and last:
        raise InputError(f"scorer guard:{model}: two formats, {form} and {last}; give one")
    form = form or last
    if not model:
        raise InputError("scorer guard: name a model, as in guard:ID_OR_FOLDER")
    given: dict[str, Any] = {"model": model}
    if form:
        given["format"] = form
    if at:
        given["url"] = f"http{rest}"
    if not at and (file := Path(model) / _FILE).is_file():
        return GuardSettings.load(file, **given)
    try:
        return GuardSettings(**given)
    except ValidationError as error:
        raise InputError(f"scorer guard: {one_line(error)}") from None

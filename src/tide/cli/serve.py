"""`tide serve`: detoxified text and scores over HTTP."""

from __future__ import annotations

import inspect
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError

from tide.cli import options, stopping
from tide.cli.display import ERRORS, chosen_settings
from tide.core.errors import InputError, first_line
from tide.core.optional import require
from tide.core.sanitize import logger
from tide.core.validation import one_line
from tide.data.files import as_text, read_small
from tide.server.limits import Limits

PREFIX = "TIDE_SERVE"


def _read_settings(path: Path | None) -> None:
    """Set environment variables from the file, except those already set.

    Raises InputError for an invalid line, and for a variable with no effect.
    """
    try:
        lines = [] if path is None else as_text(read_small(path), str(path)).splitlines()
    except InputError as error:
        raise InputError(f"--settings: {error}") from None
    for number, line in enumerate(lines, 1):
        name, equals, value = map(str.strip, line.partition("="))
        if not name or name.startswith("#"):
            continue
        if not (equals and name.startswith(f"{PREFIX}_") and name.isidentifier()):
            raise InputError(f"--settings: {path}: line {number}: expected {PREFIX}_NAME=VALUE")
        os.environ.setdefault(name, value)
    known = {f"{PREFIX}_{name.upper()}" for name in ("keys", *inspect.signature(serve).parameters)}
    for name in sorted(os.environ.keys() - known):
        if name.startswith(f"{PREFIX}_"):
            raise InputError(f"{name}: sets nothing; 'tide serve --help' lists what can be set")


@partial(options.with_settings, settings=Limits, panel="Limits", argument="limits")
@partial(options.with_settings, stated={**options.BY_PRESET, "on_unresolved": "refuse"})
@options.with_engine
def serve(
    host: Annotated[str, options.option("Server", "Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, options.option("Server", "0: any free one.", min=0, max=65_535)] = 8000,
    served_model_name: Annotated[
        str | None, options.option("Server", "What clients call the model. [default: --model]")
    ] = None,
    settings: Annotated[
        Path | None,
        options.option(
            "Server",
            f"File of lines {PREFIX}_NAME=VALUE, one for each option that it sets.",
            callback=_read_settings,
            is_eager=True,
        ),
    ] = None,
    perspective: Annotated[
        bool,
        options.option(
            "Server",
            "Stand in for the Perspective API: score texts and complete none, so that no model is "
            "loaded.",
        ),
    ] = False,
    otel: Annotated[
        bool,
        options.option(
            "Server",
            "Send OpenTelemetry spans to where OTEL_EXPORTER_OTLP_ENDPOINT says.",
        ),
    ] = False,
    model: options.Model = "pocket",
    # Most of what a server writes is ordinary: `sentence` reads what `pocket` only counts.
    scorer: options.Scorer = "confirm:pocket,sentence",
    strict_language: options.StrictLanguage = False,
    preset: options.Preset = "auto",
    engine: options.EngineName = "transformers",
    engine_options: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
) -> None:
    """Serve only text that a scorer has accepted, over an OpenAI-compatible API.

    http://HOST:PORT/v1 has completions and chat completions, streamed or not, and moderations;
    /v1alpha1/comments:analyze emulates Perspective; / is the playground.

    Each option is also an environment variable: TIDE_SERVE_MAX_BATCH for --max-batch. Clients need
    one of the keys in TIDE_SERVE_KEYS (comma-separated); without keys, only local clients are
    served.
    """
    try:
        bounds = Limits(**(limits or {}))
    except ValidationError as error:
        raise InputError(one_line(error)) from None
    if (overrides or {}).pop("on_unresolved", "refuse") != "refuse":
        raise InputError("on_unresolved: a server gives out accepted texts only; leave it out")
    if perspective:
        model, engine = "none", "none"
    uvicorn = require("uvicorn", "gateway")
    require("fastapi", "gateway")
    require("prometheus_client", "gateway")
    from tide.detoxifier.asynchronous import AsyncDetoxifier  # noqa: PLC0415  (slow imports)
    from tide.scorers import load_scorer  # noqa: PLC0415
    from tide.server import tracing  # noqa: PLC0415
    from tide.server.app import create_app  # noqa: PLC0415
    from tide.server.gate import check_exposure, read_keys  # noqa: PLC0415
    from tide.server.metrics import MeasuredScorer  # noqa: PLC0415

    provider = tracing.exporting() if otel else None
    keys = read_keys()
    check_exposure(host, keys)
    chosen = chosen_settings(preset, model, overrides or {})
    with (
        _listening(host, port) as listener,
        _logging_as_json(loading={"loading": model, "scorer": scorer, **chosen}),
        closing(MeasuredScorer(load_scorer(options.strict(scorer, strict_language)))) as measured,
        AsyncDetoxifier(
            model,
            scorer=measured,
            engine=engine,
            preset=preset,
            engine_options=engine_options,
            **(overrides or {}),
        ) as detox,
    ):
        name = served_model_name or model
        app = create_app(detox, name, limits=bounds, keys=keys, preset=chosen["preset"])
        if provider is not None:
            app = tracing.Traced(app, provider)
        config = _config(app, bounds.drain)
        where = f"http://{host}:{listener.getsockname()[1]}"
        logger("tide.server").info(json.dumps({"serving": where, "model": name}))
        if sys.stderr.isatty():
            ERRORS.print(f"Open {where}/ in a browser. Ctrl-C ends it.", highlight=False)
        with stopping.expected():  # the signal after which open requests were ended
            uvicorn.Server(config).run(sockets=[listener])


def _config(app: Any, drain: float) -> Any:
    """What uvicorn serves, and how. drain: seconds for open requests at the end."""
    import uvicorn  # noqa: PLC0415  (slow imports)

    from tide.server.connections import HeaderTimeoutProtocol  # noqa: PLC0415

    return uvicorn.Config(
        app,
        http=HeaderTimeoutProtocol,
        log_config=None,
        access_log=False,  # ours has no addresses with keys in them
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=max(1, round(drain)),
    )


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host} --port {port}: {first_line(error)}") from None
    # Connections inherit it. asyncio sets it for sockets that it has made itself, not for these,
    # and without it each answer waits 40 ms for the client to acknowledge its headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        content = json.loads(said) if said.startswith("{") else {"message": said}
        head = {"time": self.formatTime(record), "level": record.levelname.lower()}
        return json.dumps(head | content)


@contextmanager
def _logging_as_json(loading: dict[str, Any]) -> Iterator[None]:
    """Inside, logs are JSON. loading: is logged at once."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json())
    logs = [logging.getLogger(name) for name in ("tide", "uvicorn")]
    before = [(log.handlers, log.level, log.propagate) for log in logs]
    for log in logs:
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)
    logger("tide.server").info(json.dumps(loading))
    try:
        yield
    finally:
        for log, (handlers, level, propagate) in zip(logs, before, strict=True):
            log.handlers, log.propagate = handlers, propagate
            log.setLevel(level)

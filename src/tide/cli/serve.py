"""`tide serve`: detoxified text and scores over HTTP."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tide.cli import check_stop, format_last_lines, options, stops_normally
from tide.cli.display import model_label
from tide.core.errors import InputError, first_line, require, validated
from tide.core.sanitize import logger, sanitized
from tide.evaluation.console import ERRORS
from tide.scorers import DEFAULT_SCORER
from tide.server.limits import Limits

if TYPE_CHECKING:
    from pydantic import SecretStr

    from tide.core.concurrency import Portal
    from tide.server.gate import Gate
    from tide.server.policies import Policies

PREFIX = "TIDE_SERVE"
# The folder in which prometheus_client sums the metrics of all processes. It reads the variable
# when it is imported.
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_LAST_WORDS = 3.0  # seconds to send the errors of requests that the drain ended
_PAUSE = 1.0  # seconds until a process that ended with an error is replaced


# Options.
Host = Annotated[str, options.option("Server", "Address to listen on.")]
Port = Annotated[int, options.option("Server", "0: any free port.", min=0, max=65_535)]
Workers = Annotated[
    int, options.option("Server", "Processes of a gateway (--engine openai).", min=1, max=256)
]
ServedModelName = Annotated[
    str | None, options.option("Server", "Name of the model for clients. [default: its name]")
]
Perspective = Annotated[
    bool, options.option("Server", "Replace the Perspective API: only score, without a model.")
]
Otel = Annotated[
    bool, options.option("Server", "Send OpenTelemetry spans to OTEL_EXPORTER_OTLP_ENDPOINT.")
]
Mode = Annotated[
    Literal["enforce", "monitor"],
    options.option("Policies", "enforce: give out accepted text only; monitor: only record."),
]
PolicyPath = Annotated[
    Path | None,
    options.option("Policies", "YAML file of policies and their API keys; SIGHUP reloads it."),
]
OnScorerFailure = Annotated[
    str, options.option("Scorer", "While the scorer is down: refuse, or another scorer decides.")
]
AlterAtMost = Annotated[
    float | None,
    options.option("Policies", "Share of answers that may be altered.", min=1e-4, max=0.9999),
]
MonitorLog = Annotated[
    Path | None, options.option("Policies", "File for a JSON line per monitored answer.")
]
MonitorTexts = Annotated[bool, options.option("Policies", "Write texts to --monitor-log, too.")]


@partial(options.with_settings, settings=Limits, panel="Limits", argument="limits")
@partial(options.with_settings, stated={**options.BY_PRESET, "on_unresolved": "refuse"})
@options.with_engine
def serve(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    workers: Workers = 1,
    served_model_name: ServedModelName = None,
    perspective: Perspective = False,
    otel: Otel = False,
    mode: Mode = "enforce",
    policies: PolicyPath = None,
    alter_at_most: AlterAtMost = None,
    monitor_log: MonitorLog = None,
    monitor_texts: MonitorTexts = False,
    model: options.Model = "pocket",
    scorer: options.Scorer = DEFAULT_SCORER,
    on_scorer_failure: OnScorerFailure = "refuse",
    preset: options.Preset = "auto",
    engine: options.EngineName = "transformers",
    engine_options: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
) -> None:
    """Serve text that a scorer has accepted, over an OpenAI-compatible API.

    http://HOST:PORT/v1 has completions, chat completions, responses and messages, streamed or not,
    and moderations; /v1alpha1/comments:analyze emulates Perspective; / is the playground.

    Each option is also an environment variable: TIDE_SERVE_MAX_BATCH for --max-batch. Without keys
    (TIDE_SERVE_KEYS, comma-separated, or the file of --policies), only local clients are served.
    """
    # 1. Check the options, before anything is loaded.
    _limit_threads()
    bounds = validated(Limits, limits or {})
    values = overrides or {}
    if values.pop("on_unresolved", "refuse") != "refuse":
        raise InputError("on_unresolved: a server gives out accepted texts only; leave it out")
    if monitor_texts and monitor_log is None:
        raise InputError("--monitor-texts: needs --monitor-log, the file for the texts")
    if perspective:
        model, engine = "none", "none"
    _prepare_workers(workers, engine)
    _check_environment()
    from tide.engines import load_engine  # noqa: PLC0415  (slow imports)
    from tide.server import telemetry  # noqa: PLC0415
    from tide.server.app import create_app  # noqa: PLC0415
    from tide.server.monitor import Monitor  # noqa: PLC0415
    from tide.server.policies import CommandLine, Policies  # noqa: PLC0415

    provider = telemetry.exporting() if otel else None
    keys = _read_keys(host, policies)
    line = CommandLine(model, scorer, on_scorer_failure, preset, values, mode, alter_at_most)
    label = model_label(model, engine_options or {})
    loading = {"loading": f"model {label}", "scorer": scorer, "preset": preset, **values}
    reloads: SimpleQueue[int] = SimpleQueue()
    if policies is not None:
        signal.signal(signal.SIGHUP, lambda number, frame: reloads.put(number))
    if engine == "openai":  # a gateway may start before its server
        usual = {"required": False, "deadline": bounds.request_seconds}
        engine_options = usual | (engine_options or {})

    # 2. Load scorers and model.
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(host, port))
        _log_as_json(loading)
        if _supervises(workers, listener):
            return
        table = Policies(line, policies, limits=bounds, keys=keys)
        stack.enter_context(closing(table))
        loaded = stack.enter_context(load_engine(engine, model, **(engine_options or {})))
        table.start(loaded)

        # 3. Serve. Clients that were moved here still send the upstream server's model name.
        name = served_model_name or (model if loaded.in_process else None)
        app = create_app(table, name, Monitor(table, monitor_log, monitor_texts), provider)
        serving = {"serving": _address(host, listener), "model": name or loaded.name}
        logger("tide.server").info(json.dumps(serving | {"engine": loaded.capability_notes}))
        if sys.stderr.isatty():
            ERRORS.print(f"Open {serving['serving']}/ in a browser. Ctrl-C stops the server.")
        if policies is not None:
            threading.Thread(target=_reload_at, args=(reloads, table), daemon=True).start()
        _run(app, listener, bounds.drain, None if loaded.in_process else loaded.portal)


def _check_environment() -> None:
    """Raise an error for a missing package, or an environment variable that names no option."""
    for package in ("uvicorn", "fastapi", "prometheus_client"):
        require(package, "gateway")
    known = {f"{PREFIX}_{name.upper()}" for name in ("keys", *inspect.signature(serve).parameters)}
    for name in sorted(os.environ.keys() - known):
        if name.startswith(f"{PREFIX}_"):
            raise InputError(f"{name}: unknown option; 'tide serve --help' lists all options")


def _read_keys(host: str, policies: Path | None) -> list[SecretStr]:
    """Return the keys of the environment. Raises InputError if others could call without a key."""
    from tide.server.gate import check_exposure, read_keys  # noqa: PLC0415  (slow imports)
    from tide.server.policies import PolicyFile  # noqa: PLC0415

    keys = read_keys()
    check_exposure(host, [*keys, *(PolicyFile.read(policies).keys if policies else ())])
    return keys


def _limit_threads() -> None:
    """Let PyTorch use half of the cores; must be called before PyTorch is imported.

    Model, scorers and the server's loop compute at the same time. With as many OpenMP threads as
    cores for each, the threads wait for one another, on a busy machine for seconds.
    """
    if hasattr(os, "sched_getaffinity"):  # only Linux has it
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // 2)))


def _reload_at(signals: SimpleQueue[int], policies: Policies) -> None:
    """Reload the policies at each signal, in a thread of its own, since scorers load slowly."""
    while True:
        signals.get()
        try:
            policies.reload()
            policies.metrics.reloads.labels("done").inc()
            _freeze()
            level = logging.INFO
            outcome = {"policies": "reloaded", "names": list(policies.table.policies)}
        except Exception as error:  # whatever fails, the server keeps serving
            policies.metrics.reloads.labels("failed").inc()
            level = logging.ERROR
            outcome = {"policies": "kept as they were", "problem": first_line(error)}
        logger("tide.server").log(level, json.dumps(outcome))


def _freeze() -> None:
    """Exempt all present objects from garbage collection.

    Collecting those of the libraries would stop all answers for 0.2 s each time.
    """
    gc.unfreeze()  # what a reload has replaced is collected
    gc.collect()
    gc.freeze()


def _run(app: Gate, listener: socket.socket, drain: float, portal: Portal | None) -> None:
    """Serve until a signal comes. portal: runs the server in the loop of its engine."""
    _freeze()
    # The engine's thread waits less for the threads that score and send (5 ms by default).
    sys.setswitchinterval(1e-4)
    server = _server(app, drain)
    with stops_normally():  # uvicorn raises the signal again after shutdown
        check_stop()
        if portal is None:
            server.run(sockets=[listener])
            return
        with server.capture_signals():  # which only the main thread can
            portal.run(partial(server.serve, sockets=[listener]))


def _server(app: Gate, drain: float) -> Any:
    """Return uvicorn's server. drain: seconds for open requests to finish at shutdown."""
    import uvicorn  # noqa: PLC0415  (slow imports)

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().call_later(drain, app.end)
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # our log holds no URLs, which may contain keys
        server_header=False,
        ws="none",
        # Longer than balancers keep an idle connection (60 s), or they would meet a closed one.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=math.ceil(drain + _LAST_WORDS),
    )
    return Server(config)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()  # all addresses, those of IPv4, too
    try:
        listener = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host} --port {port}: {first_line(error)}") from None
    # Connections inherit this option. asyncio sets it only for sockets that it creates; without it
    # each response waits 40 ms for the client to acknowledge its headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _address(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


class _Json(logging.Formatter):
    """Formats each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        message = sanitized(record.getMessage())
        try:
            content = json.loads(message) if message.startswith("{") else {"message": message}
        except ValueError:  # JSON that was cut to the length of a line
            content = {"message": message}
        written = datetime.fromtimestamp(record.created, UTC)
        head = {
            "time": written.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        return json.dumps(head | content)


def _log_as_json(loading: dict[str, Any]) -> None:
    """Log as JSON from now on. loading: the first message."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter := _Json())
    format_last_lines(formatter)
    logging.getLogger().addHandler(handler)  # of libraries, warnings
    for log in map(logging.getLogger, ("tide", "uvicorn")):
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)
    logger("tide.server").info(json.dumps(loading))


# Several processes of a gateway, which share one listening socket (--workers).


def _prepare_workers(count: int, engine: str) -> None:
    """Prepare for `count` processes. Raises InputError if this engine's model needs one process.

    Must be called before prometheus_client is imported, which then decides whether processes share.
    """
    if count == 1:
        return
    if engine not in ("openai", "none"):
        raise InputError(
            f"--workers {count}: engine {engine} runs its model in one process; use --engine openai"
        )
    os.environ[_METRICS] = tempfile.mkdtemp(prefix="tide-metrics-")


def _supervises(count: int, listener: socket.socket) -> bool:
    """Start `count` processes, and return True when they have ended; in each of them, False.

    A process that a signal kills is replaced, again and again if its replacement ends with an error
    (the policy file may be invalid now) while older ones serve. Any other error ends all. Signals
    are passed on: SIGHUP reloads the policies of all.
    """
    if count == 1:
        return False
    from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415  (slow import)

    alive, written = os.pipe()  # has an end when this process has none
    workers: dict[int, int] = {}  # process ids, with the order in which they were started
    started = code = 0
    is_ending = False

    def pass_on(number: int, frame: FrameType | None = None) -> None:
        nonlocal is_ending
        if number != signal.SIGHUP:
            is_ending = True
            listener.close()  # else clients could connect, and nobody would answer them
        for worker in workers:
            os.kill(worker, number)

    before = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    while workers or not is_ending:
        while len(workers) < count and not is_ending:
            if (worker := os.fork()) == 0:
                for number, handler in before.items():
                    signal.signal(number, handler)
                os.close(written)
                _end_with(alive)
                return False
            started += 1
            workers[worker] = started
        worker, status = os.wait()
        if worker not in workers:
            continue  # the first process of a container inherits orphans of others
        order = workers.pop(worker)
        mark_process_dead(worker)  # type: ignore[no-untyped-call]
        ended = os.waitstatus_to_exitcode(status)
        if not is_ending:
            logger("tide.server").error(json.dumps({"worker ended": worker, "code": ended}))
        if ended > 0 and not is_ending:
            # Younger ones may be about to end in the same way, and then nobody would serve.
            has_older = any(other < order for other in workers.values())
            if has_older and order > count:
                time.sleep(_PAUSE)
                continue
            code = ended
            pass_on(signal.SIGTERM)
    shutil.rmtree(os.environ[_METRICS], ignore_errors=True)
    if code:
        raise typer.Exit(code)
    return True


def _end_with(alive: int) -> None:
    """End this process when its supervisor has ended, and not by the signals of its terminal."""
    os.setpgrp()

    def wait() -> None:
        os.read(alive, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="tide supervisor", daemon=True).start()

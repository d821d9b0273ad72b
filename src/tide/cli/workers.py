"""Several processes of a gateway, which share one listening socket (`tide serve --workers`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
from types import FrameType

import typer

from tide.core.errors import InputError
from tide.core.sanitize import logger

_LOG = logger("tide.server")
# The folder in which prometheus_client sums the metrics of all processes. It reads the variable
# when it is imported.
_METRICS = "PROMETHEUS_MULTIPROC_DIR"


def prepare(count: int, engine: str) -> None:
    """Prepare for `count` processes. Raises InputError if this engine's model needs one process."""
    if count == 1:
        return
    if engine not in ("openai", "none"):
        raise InputError(
            f"--workers {count}: engine {engine} runs its model in one process; serve the model by "
            "vLLM or another server, and set --engine openai --base-url http://HOST:PORT"
        )
    if not hasattr(os, "fork"):
        raise InputError(f"--workers {count}: this system cannot fork; start several gateways")
    os.environ[_METRICS] = tempfile.mkdtemp(prefix="tide-metrics-")


def supervises(count: int) -> bool:
    """Start `count` processes, and return True when they have ended; in each of them, False.

    A process that a signal kills is replaced. One that ends with an error ends all. Signals are
    passed on: SIGHUP reloads the policies of all.
    """
    if count == 1:
        return False
    from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415  (slow import)

    alive, written = os.pipe()  # has an end when this process has none
    workers: set[int] = set()
    code = 0
    is_ending = False

    def pass_on(number: int, frame: FrameType | None = None) -> None:
        nonlocal is_ending
        is_ending = is_ending or number != signal.SIGHUP
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
            workers.add(worker)
        worker, status = os.wait()
        workers.discard(worker)
        mark_process_dead(worker)  # type: ignore[no-untyped-call]
        ended = os.waitstatus_to_exitcode(status)
        if not is_ending:
            _LOG.error(json.dumps({"worker ended": worker, "code": ended}))
        if ended > 0 and not is_ending:
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

"""Several processes of a gateway behave like one."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import typer

from tests import command
from tests.engines.openai.server import TextServer
from tests.server.processes import TIDE, Process, serving
from tests.server.running import wait_until
from tide.cli import serve

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
POLICIES = "policies:\n  first: {scorer: pocket, toxicity_threshold: %s}\n"


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    path = tmp_path / "policies.yaml"
    path.write_text(POLICIES % 0.5)
    return path


@pytest.fixture
def gateway(policies: Path) -> Iterator[Process]:
    options = ("--engine", "openai", "--workers", "2", "--policies", str(policies))
    with (
        TextServer() as upstream,
        serving(*TIDE, *options, "--base-url", upstream.url) as process,
    ):
        wait_until(lambda: process.heard().count('"serving"') == 2)
        yield process


def ask(gateway: Process) -> httpx.Response:
    """Ask over a new connection, which any process may take."""
    body = {"prompt": "The weather is", "max_tokens": 5}
    return httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=60)


def workers(gateway: Process) -> list[psutil.Process]:
    return psutil.Process(gateway.popen.pid).children()


def metric(gateway: Process, name: str) -> float:
    lines = httpx.get(f"{gateway.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.mark.slow
def test_metrics_reloads_and_killed_workers(gateway: Process, policies: Path) -> None:
    # 1. All processes answer, and any of them counts the answers of all.
    for _ in range(8):
        assert ask(gateway).status_code == 200
    counted = {metric(gateway, "tide_completions_total") for _ in range(4)}
    assert counted == {8}
    assert metric(gateway, "tide_engine_up") == 1

    # 2. All of them read the policies again.
    policies.write_text(POLICIES % 0.25)
    gateway.popen.send_signal(signal.SIGHUP)
    wait_until(lambda: gateway.heard().count('"reloaded"') == 2)
    answers = [ask(gateway).json() for _ in range(4)]
    assert {answer["choices"][0]["tide"]["threshold"] for answer in answers} == {0.25}

    # 3. One that is killed is replaced.
    killed = workers(gateway)[0]
    killed.kill()
    wait_until(lambda: gateway.heard().count('"serving"') == 3)
    assert ask(gateway).status_code == 200
    assert len(workers(gateway)) == 2

    # 4. So is one that is killed while the policy file is invalid, once the file is valid again.
    policies.write_text("policies: [")
    workers(gateway)[0].kill()
    wait_until(lambda: '"code": 1' in gateway.heard())
    assert '"level": "error", "worker ended"' in gateway.heard()
    assert ask(gateway).status_code == 200
    policies.write_text(POLICIES % 0.25)
    wait_until(lambda: gateway.heard().count('"serving"') == 4)
    assert len(workers(gateway)) == 2

    # 5. All end with the first process.
    running = workers(gateway)
    gateway.popen.terminate()
    assert gateway.popen.wait(60) == 0
    assert not any(worker.is_running() for worker in running)


def test_workers_that_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = itertools.count(1)
    killed, failed, terminated = signal.SIGKILL, 1 << 8, signal.SIGTERM
    orphan = 99  # of another process in the same container
    ends = iter([(1, killed), (orphan, 0), (2, killed), (3, failed), (4, terminated)])
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(os, "fork", lambda: next(started))
    monkeypatch.setattr(os, "wait", lambda: next(ends))
    monkeypatch.setattr(os, "kill", lambda worker, number: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(serve, "_PAUSE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(typer.Exit) as ended:
            serve._supervises(2, listener)
        assert listener.fileno() == -1  # nobody connects while the last requests are answered
    assert ended.value.exit_code == 1
    assert list(ends) == []


@pytest.mark.slow
def test_workers_end_when_their_supervisor_is_killed(gateway: Process) -> None:
    running = workers(gateway)
    gateway.popen.kill()
    wait_until(lambda: not any(worker.is_running() for worker in running))


def test_workers_of_a_model_in_process_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.tide("serve", "--workers", "2") == 1
    assert (
        "--workers 2: engine transformers runs its model in one process" in capsys.readouterr().err
    )

"""`tide serve` as a separate process."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.main import get_command

from tests import command
from tests.server.processes import TIDE, serving
from tests.server.running import wait_until
from tide.cli.app import app
from tide.cli.serve import _limit_threads, _listening, _log_as_json
from tide.core.errors import InputError
from tide.core.sanitize import hide, logger

KEY = "sk-of-the-serving-tests"


def test_serve_reloads_policies_and_drains_at_signals(tmp_path: Path) -> None:
    path, log = tmp_path / "tide.yaml", tmp_path / "monitor.jsonl"
    path.write_text("policies: {first: {mode: monitor}}")
    answers: list[httpx.Response] = []
    options = ["--policies", str(path), "--served-model-name", "mine", "--max-new-tokens", "5"]
    options += ["--monitor-log", str(log), "--scorer", "pocket"]
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        serving(*TIDE, *options, TIDE_SERVE_TEMPERATURE="0.5", TIDE_SERVE_KEYS=KEY) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=120) as client,
    ):

        def ask_at_length() -> threading.Thread:
            body = {"prompt": "The weather in spring", "n": 8, "max_tokens": 200, "seed": 1}
            asking = threading.Thread(
                target=lambda: answers.append(client.post("/v1/completions", json=body))
            )
            asking.start()
            wait_until(lambda: "tide_completions_under_way 8.0" in client.get("/metrics").text)
            return asking

        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        assert client.get("/v1/models").json()["data"][0]["id"] == "mine"
        asking = ask_at_length()
        for content, said in (
            ("policies: {second: {never: [winter]}}", '"reloaded"'),
            ("policies: {third: {scorer: nothing}}", '"kept as they were"'),
        ):
            path.write_text(content)
            server.popen.send_signal(signal.SIGHUP)
            wait_until(lambda said=said: said in server.heard())
            assert client.get("/version").json()["policy"] == "second"
        asking.join(120)
        asking = ask_at_length()
        server.popen.send_signal(signal.SIGTERM)
        asking.join(120)
        said = server.said()
        assert server.popen.returncode == 0
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json()["tide"]["policy"] for answer in answers] == ["first", "second"]
    (line,) = [json.loads(line) for line in said.splitlines() if "kept as they were" in line]
    assert line["level"] == "error"
    assert "policies.third: unknown scorer" in line["problem"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(line["choice"] for line in lines) == list(range(8))
    assert {line["policy"] for line in lines} == {"first"}
    for secret in (KEY, "spring"):
        assert secret not in said + log.read_text()
    for line in said.splitlines():
        assert datetime.fromisoformat(json.loads(line)["time"]).tzinfo is not None
    assert json.loads(said.splitlines()[-1])["message"] == "stopping..."


def test_sighup_while_loading_reloads_afterwards(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGHUP)\n"
        "def score(texts):\n    return [0.0] * len(texts)\n"
    )
    path = tmp_path / "tide.yaml"
    path.write_text("policies: {first: {}}")
    options = ["--policies", str(path), "--scorer", f"{tmp_path / 'mine.py'}:score"]
    with serving(*TIDE, *options) as server:
        wait_until(lambda: '"reloaded"' in server.heard(), 60)
        assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.fixture
def restored_logs() -> Iterator[None]:
    logs = [logging.getLogger(name) for name in ("tide", "uvicorn")]
    before = [(log.handlers, log.level, log.propagate) for log in logs]
    yield
    logging.getLogger().removeHandler(logs[0].handlers[0])
    for log, (handlers, level, propagate) in zip(logs, before, strict=True):
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


@pytest.mark.usefixtures("restored_logs")
@pytest.mark.parametrize(
    ("chosen", "passed"),
    [((), {"deadline": 600.0, "a": "b c"}), (("--engine-option", "deadline=30"), {"deadline": 30})],
)
def test_options_of_a_gateway_s_engine_and_of_its_environment(
    chosen: Sequence[str], passed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completion may take as long as its request."""
    loaded: list[dict[str, Any]] = []

    def load_engine(name: str, model: str, **options: Any) -> None:
        loaded.append(options)
        raise InputError("enough")

    monkeypatch.setattr("tide.engines.load_engine", load_engine)
    monkeypatch.setenv("TIDE_SERVE_ENGINE_OPTION", '["a=b c"]')
    gateway = ("--engine", "openai", "--base-url", "http://127.0.0.1:1", "--port", "0")
    options = ("--scorer", "pocket", "--request-seconds", "600", *chosen)
    assert command.tide("serve", *gateway, *options) == 1
    assert loaded == [{"required": False, "base_url": "http://127.0.0.1:1", **passed}]


def test_serve_uses_half_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for given, used in ((None, "4"), ("7", "7")):
        monkeypatch.setenv("OMP_NUM_THREADS", given or "1")  # restored at the end
        if given is None:
            monkeypatch.delenv("OMP_NUM_THREADS")
        _limit_threads()
        assert os.environ["OMP_NUM_THREADS"] == used


@pytest.mark.usefixtures("restored_logs")
def test_log_lines_are_json_without_keys(capsys: pytest.CaptureFixture[str]) -> None:
    hide("sk-in-no-other-test")
    _log_as_json({"loading": "x" * 5000})
    logger("tide.server").info(json.dumps({"names": ["customer"] * 500}))
    logging.getLogger("asyncio").error("failed:\n%s", "sk-in-no-other-test")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["info", "info", "error"]
    assert lines[-1]["message"] == "failed: ***"


def test_listener_sends_without_delay() -> None:
    with (
        _listening("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    with _listening("::", 0) as listener:
        address = ("127.0.0.1", listener.getsockname()[1])
        socket.create_connection(address).close()


def test_files_for_operators_name_options() -> None:
    repository = Path(__file__).resolve().parents[2]
    deployed = [path for path in (repository / "deploy").rglob("*") if path.is_file()]
    files = [*deployed, repository / "docs" / "serving.md"]
    named = {
        name
        for path in files
        for name in re.findall(r"TIDE_SERVE_([A-Z_]+)", path.read_text(encoding="utf-8"))
    }
    options = {parameter.name.upper() for parameter in get_command(app).commands["serve"].params}
    assert named - options == {"NAME", "KEYS"}
    assert len(named) > 4

"""Servers that are killed and brought back in the middle of a run, and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.servers import VllmProcess, cpu_environment
from tide import Detoxifier
from tide.detoxifier.sync import outcomes
from tide.engines.remote.engine import RemoteEngine

TIDE = [sys.executable, "-c", "from tide.cli import main; main()", "run"]

# Warnings are vLLM's own.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_one_of_two_servers_is_killed(servers: list[VllmProcess], prompts: list[str]) -> None:
    for server in servers:
        server.ensure()
    engine = RemoteEngine(
        "pocket", base_urls=[s.url for s in servers], dtype="float32", max_batch=32
    )
    mine, killed = engine.pool.endpoints
    detoxifier = Detoxifier(engine, preset="relative")
    unbroken = [result.text for result in detoxifier.map(prompts)]
    assert min(mine.did_well, killed.did_well) > 0

    numbers, texts = [], {}
    for number, result in outcomes(detoxifier, prompts, ordered=False):
        numbers.append(number)
        texts[number] = result.text  # type: ignore[union-attr]
        if len(numbers) == 20:
            servers[1].kill()
    assert not killed.available
    assert sorted(numbers) == list(range(len(prompts)))  # none lost, none twice
    same = sum(texts[i] == text for i, text in enumerate(unbroken))
    assert same >= 0.95 * len(prompts)  # float summation order may differ with the batch

    servers[1].start()
    servers[1].wait()
    end = time.monotonic() + 60.0
    while not killed.available:
        assert time.monotonic() < end
        time.sleep(0.1)
    before = killed.did_well
    assert len(list(detoxifier.map(prompts[:40]))) == 40
    assert killed.did_well > before
    engine.close()


def test_all_servers_are_killed(
    servers: list[VllmProcess], shared_data: Path, tmp_path: Path
) -> None:
    for server in servers:
        server.ensure()
    output = tmp_path / "out.jsonl"
    command = [
        *TIDE, "--engine", "remote", "--dtype", "float32", "--engine-option", "deadline=5",
        *(part for server in servers for part in ("--base-url", server.url)),
        "--input", str(shared_data / "benchmarks" / "rtp_challenging.jsonl"), "--limit", "200",
        "--max-batch", "16", "--output", str(output),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not output.exists() or len(output.read_bytes().splitlines()) < 20:
        assert process.poll() is None
        time.sleep(0.02)
    for server in servers:
        server.kill()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "error: the servers did not finish within 5 s (deadline)" in stderr
    kept = records(output)
    assert 20 <= len(kept) < 200

    servers[0].ensure()
    # The same command goes on. A server that has just begun is slow on a busy machine.
    again = [part.replace("deadline=5", "deadline=120") for part in command]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    made = records(output)
    assert all(record in made for record in kept)
    assert len({record["id"] for record in made}) == len(made) == 200
    assert sum(record["trials"][0]["toxicity"] >= 0.5 for record in made) <= 2


def test_the_command_line_with_vllm_in_process(shared_data: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    command = [
        *TIDE, "--engine", "vllm", "--dtype", "float32", "--engine-option", "enforce_eager=true",
        "--input", str(shared_data / "benchmarks" / "rtp_challenging.jsonl"), "--limit", "200",
        "--output", str(output),
    ]  # fmt: skip
    environment = {**os.environ, **cpu_environment(0)}
    del environment["VLLM_LOGGING_LEVEL"]  # quiet by itself
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    made = records(output)
    assert len(made) == 200
    assert sum(record["trials"][0]["toxicity"] >= 0.5 for record in made) <= 2
    assert "INFO" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr

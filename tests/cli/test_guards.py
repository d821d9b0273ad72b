"""A run with a guard: in process, and on a server that is killed while the run needs it."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import records
from tests.command import tide
from tests.scorers.guards.tiny import teach
from tide.data.labelled import read_labelled
from tide.data.prompts import read_rows
from tide.scorers.control_tokens import break_up

# A guard is trained first.
pytestmark = pytest.mark.slow

# The guard knows no texts that are longer than those that it has learned from.
# The paper's search asks the guard less often than a text that is watched.
SHORT = ("--max-new-tokens", "10", "--preset", "relative")
SERVICE = Path(__file__).resolve().parents[1] / "scorers" / "guards" / "service.py"


@pytest.fixture(scope="module")
def folder(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A guard that has learned from 3,000 short labelled comments, and knows the rudest words."""
    rows = read_labelled([shared_data / "labelled" / "toxicity.jsonl.gz"], by="source")
    short = [row for row in rows if row.group in ("davidson", "jigsaw") and len(row.text) < 70]
    chosen = random.Random(0).sample(short, 3000)
    labelled = [(row.text, row.toxicity >= 0.5) for row in chosen]
    folder = tmp_path_factory.mktemp("llama-guard")
    return teach(folder, "llama-guard", labelled, 1000, 1500, noise=0.02)


@pytest.fixture
def prompts(shared_data: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The first prompts of RealToxicityPrompts-challenging, as many as the test says."""
    source = shared_data / "benchmarks" / "rtp_challenging.jsonl"
    path = tmp_path / "prompts.jsonl"
    rows = read_rows(source, limit=request.param)
    path.write_text("".join(json.dumps({"id": r.id, "prompt": r.text}) + "\n" for r in rows))
    return path


@contextmanager
def guard_server(folder: Path, log: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(SERVICE), str(port), str(folder), str(log)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not log.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def whole(found: list[dict[str, Any]], count: int) -> None:
    """Every prompt has a completion, scored by the guard and by the judge."""
    assert len(found) == count
    for row in found:
        (trial,) = row["trials"]
        assert len(trial["judge_scores"]) == 1


@pytest.mark.parametrize("prompts", [30], indirect=True)
def test_in_process(folder: Path, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    arguments = ("run", "-i", prompts, "-o", output, "--scorer", f"guard:{folder}",
                 "--judges", "sentence", "--trials", 1, *SHORT)  # fmt: skip
    assert tide(*arguments) == 0
    found = records(output)
    whole(found, prompts.read_text().count("\n"))
    trials = [row["trials"][0] for row in found]
    assert any(trial["base_toxicity"] >= 0.5 for trial in trials)
    accepted = [trial["toxicity"] for trial in trials if trial["accepted"]]
    assert len(accepted) >= 0.9 * len(found)
    assert max(accepted) < 0.5


@pytest.mark.parametrize("prompts", [40], indirect=True)
def test_a_server_that_is_killed_stops_the_run_and_the_run_goes_on_with_another(
    folder: Path, prompts: Path, tmp_path: Path
) -> None:
    port, count = free_port(), prompts.read_text().count("\n")
    output = tmp_path / "out.jsonl"
    command = [
        sys.executable, "-m", "tide", "run", "-i", str(prompts),
        "-o", str(output), "--scorer", f"guard:llama-guard@http://127.0.0.1:{port}",
        "--judges", "sentence", "--trials", "1", "--max-batch", "8", *SHORT,
    ]  # fmt: skip
    with guard_server(folder, tmp_path / "first.log", port) as server:
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not output.exists() or output.read_bytes().count(b"\n") < count // 4:
            assert run.poll() is None
            time.sleep(0.01)
        server.kill()
        _, said = run.communicate(timeout=300)
    assert run.returncode == 1
    assert b"6 attempts" in said
    assert b"Traceback" not in said
    before = records(output)
    assert count // 4 <= len(before) < count
    with guard_server(folder, tmp_path / "second.log", port):
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    after = records(output)
    whole(after, count)
    kept = {row["id"]: [one["text"] for one in row["trials"]] for row in after}
    assert all(kept[row["id"]] == [one["text"] for one in row["trials"]] for row in before)
    # Nothing that was accepted went unscored by a guard.
    asked = {
        json.loads(line)
        for name in ("first.log", "second.log")
        for line in (tmp_path / name).read_text().splitlines()
    }
    texts = {one["text"] for row in after for one in row["trials"] if not one["empty"]}
    assert {break_up(text) for text in texts} <= asked

"""Ctrl-C and SIGTERM at any moment: one line, exit code 130 or 143, finished records kept."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engines.openai.server import TextServer

TIDE = [sys.executable, "-m", "tide"]
SLOW = """
import time
from pathlib import Path
class Slow:
    name, threshold = "slow", 0.5
    def score(self, texts):
        time.sleep(0.05)
        return [0.1] * len(texts)
    def close(self): pass
"""


IN_TORCH = """
import time, torch
def rude(texts):
    layer = torch.nn.Linear(300, 300)
    print("scoring", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        layer(torch.randn(20, 300)).softmax(-1)
    return [0.9] * len(texts)
"""


def stopped(process: subprocess.Popen[str], number: signal.Signals) -> str:
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in stderr
    return stderr.splitlines()[-1]


@pytest.mark.nightly
def test_stop_inside_torch_does_not_abort(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(IN_TORCH)
    process = subprocess.Popen(
        [*TIDE, "run", "Hi you", "-s", "mine.py:rude"],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "scoring\n"
    assert stopped(process, signal.SIGINT) == "stopped"


def test_stop_says_what_is_kept(tmp_path: Path, text_server: TextServer) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "prompts.txt").write_text("".join(f"Prompt number {i}\n" for i in range(2000)))
    options = ["-i", "prompts.txt", "-o", "out.jsonl", "-s", "slow.py:Slow", "--max-batch", "4"]
    options += ["--engine", "openai", "--base-url", text_server.url]
    process = subprocess.Popen(
        [*TIDE, "run", *options],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    output = tmp_path / "out.jsonl"
    while not output.exists() or output.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        time.sleep(0.01)
    said = stopped(process, signal.SIGTERM)
    assert said == "stopped; finished records are in out.jsonl; the same command resumes"
    assert len([json.loads(line) for line in output.read_text().splitlines()]) >= 3


PHASES = {
    "the scorer hangs": (signal.SIGTERM, "time.sleep(1000)", []),
    "going back": (signal.SIGINT, "time.sleep(0.05)", ["--max-new-tokens", "100"]),
}
NEVER = """
import time
from pathlib import Path
class Never:
    name, threshold = "never", 0.5
    def score(self, texts):
        Path("called").touch()
        {then}
        return [0.9] * len(texts)
    def close(self): pass
"""


def ends_at_once(
    options: list[str], folder: Path, number: signal.Signals, begun: Callable[[], bool]
) -> None:
    """A run that would take minutes is stopped: it prints no text and ends within seconds."""
    command = [*TIDE, "run", "A prompt", *options]
    with subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while not begun():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout) == (128 + number, "")
    assert stderr.splitlines()[-1] == "stopped"


@pytest.mark.parametrize("phase", PHASES)
def test_stop_at_once_prints_nothing(tmp_path: Path, text_server: TextServer, phase: str) -> None:
    number, then, more = PHASES[phase]
    (tmp_path / "never.py").write_text(NEVER.format(then=then))
    options = ["--engine", "openai", "--base-url", text_server.url, "-s", "never.py:Never", *more]
    ends_at_once(options, tmp_path, number, (tmp_path / "called").exists)


def test_stop_while_a_server_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        connections = []

        def asked() -> bool:
            with suppress(BlockingIOError):
                connections.append(server.accept()[0])
            return bool(connections)

        ends_at_once(["--engine", "openai", "--base-url", url], tmp_path, signal.SIGINT, asked)
        for connection in connections:
            connection.close()


RAISED = "import signal; signal.raise_signal(signal.SIGINT)"
MOMENTS = {
    "a library swallows it": SLOW.replace(
        "time.sleep(0.05)",
        f"""
        try:
            {RAISED}
        except BaseException:
            pass""",
    ),
    # An exception while a C extension initialises may abort the process.
    "within an import": f"""
try:
    {RAISED}
except BaseException:
    import os; os.abort()
{SLOW}""",
    # Like the event loop, whose `__del__` reads an attribute that `__init__` has not set yet.
    "an object is half built": f"""{SLOW}
    def __init__(self):
        HalfBuilt()
class HalfBuilt:
    def __init__(self):
        {RAISED}
        self.ready = True
    def __del__(self):
        self.ready
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_stop_at_a_bad_moment(tmp_path: Path, text_server: TextServer, moment: str) -> None:
    (tmp_path / "slow.py").write_text(MOMENTS[moment])
    command = [*TIDE, "run", "A prompt", "-s", "slow.py:Slow"]
    command += ["--engine", "openai", "--base-url", text_server.url]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, lines[-2:]) == (130, ["stopping...", "stopped"])
    assert len(lines) <= 3  # and the line that says what is loading


def test_bug_is_one_line(tmp_path: Path) -> None:
    code = (
        "import tide.cli, tide.cli.app as a\n"
        "def broken(): raise ValueError('\\x1b[2J on\\ntwo lines')\n"
        "a.app = broken\n"
        "tide.cli.main()"
    )
    command = [sys.executable, "-c", code, "run"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 70
    assert len(ended.stderr.splitlines()) == 1
    assert r"\x1b[2J on two lines" in ended.stderr


def test_full_disk_behind_stdout_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*TIDE, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert len(ended.stderr.splitlines()) == 1

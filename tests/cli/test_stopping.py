"""Ctrl-C and SIGTERM at any moment: one line, exit code 130 or 143, finished records kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from tests.engines.openai.server import TextServer

TIDE = [sys.executable, "-m", "tide"]
SCORER = """
import time
from pathlib import Path
class Slow:
    name, threshold = "slow", 0.5
    def score(self, texts):
        Path("called").touch()
        {then}
        return [{score}] * len(texts)
    def close(self): pass
"""
STOPPED = "stopped; written records are kept, and the same command resumes"


def served(folder: Path, server: TextServer, then: str, score: float = 0.1) -> list[str]:
    """The options of a run with a served model and a scorer that does `then` before it answers."""
    (folder / "slow.py").write_text(SCORER.format(then=then, score=score))
    return ["--engine", "openai", "--base-url", server.url, "-s", "slow.py:Slow"]


def stopped(
    command: list[str], folder: Path, number: signal.Signals, begun: Callable[[], bool]
) -> tuple[str, str]:
    """What a run prints, and its last line on stderr, if it is stopped when it has begun."""
    with subprocess.Popen(
        [*TIDE, "run", *command],
        cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while not begun():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert "Traceback" not in stderr
    return stdout, stderr.splitlines()[-1]


def test_stop_keeps_finished_records(tmp_path: Path, upstream: TextServer) -> None:
    (tmp_path / "prompts.txt").write_text("".join(f"Prompt number {i}\n" for i in range(2000)))
    command = ["-i", "prompts.txt", "-o", "out.jsonl", "--max-batch", "4"]
    command += served(tmp_path, upstream, "time.sleep(0.05)")
    output = tmp_path / "out.jsonl"

    def three_records() -> bool:
        return output.exists() and output.read_bytes().count(b"\n") >= 3

    _, said = stopped(command, tmp_path, signal.SIGTERM, three_records)
    assert said == STOPPED
    assert len([json.loads(line) for line in output.read_text().splitlines()]) >= 3


IN_TORCH = """import torch
        layer = torch.nn.Linear(300, 300)
        for _ in range(100_000):
            layer(torch.randn(20, 300)).softmax(-1)"""


@pytest.mark.parametrize(
    ("number", "then", "more"),
    [
        pytest.param(signal.SIGTERM, "time.sleep(1000)", [], id="the scorer hangs"),
        pytest.param(
            signal.SIGINT, "time.sleep(0.05)", ["--max-new-tokens", "100"], id="going back"
        ),
        pytest.param(signal.SIGINT, IN_TORCH, [], id="in torch", marks=pytest.mark.nightly),
    ],
)
def test_stop_at_once_prints_nothing(
    tmp_path: Path, upstream: TextServer, number: signal.Signals, then: str, more: list[str]
) -> None:
    """A run that would take minutes ends within seconds, and does not abort."""
    command = ["A prompt", *served(tmp_path, upstream, then, 0.9), *more]

    def begun() -> bool:
        called = (tmp_path / "called").exists()
        time.sleep(0.3 * called)
        return called

    assert stopped(command, tmp_path, number, begun) == ("", STOPPED)


def test_stop_while_a_server_does_not_answer(tmp_path: Path, upstream: TextServer) -> None:
    asked, ended = Event(), Event()

    def hang(*_: object) -> None:
        asked.set()
        ended.wait(20)

    upstream.answer = hang
    command = ["A prompt", "--engine", "openai", "--base-url", upstream.url]
    assert stopped(command, tmp_path, signal.SIGINT, asked.is_set) == ("", STOPPED)
    ended.set()


RAISED = "import signal; signal.raise_signal(signal.SIGINT)"
SLOW = SCORER.format(then="time.sleep(0.05)", score=0.1)
MOMENTS = {
    "a library swallows it": SCORER.format(
        then=f"""
        try:
            {RAISED}
        except BaseException:
            pass""",
        score=0.1,
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
def test_stop_at_a_bad_moment(tmp_path: Path, upstream: TextServer, moment: str) -> None:
    command = [*TIDE, "run", "A prompt", *served(tmp_path, upstream, "")]
    (tmp_path / "slow.py").write_text(MOMENTS[moment])
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, lines[-2:]) == (130, ["stopping...", STOPPED])
    assert len(lines) <= 4  # and those that say what is loading, and how it searches


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


def test_full_disk_behind_stdout_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*TIDE, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("code", [0, 3])
def test_command_ends_while_a_thread_it_left_computes(code: int) -> None:
    script = (
        "import sys, threading, time, torch, tide.cli\n"
        "def compute():\n"
        "    matrix = torch.randn(300, 300)\n"
        "    while True:\n"
        "        matrix @ matrix\n"
        "threading.Thread(target=compute, daemon=True).start()\n"
        "time.sleep(0.2)\n"
        f"tide.cli.main = lambda: sys.exit({code})\n"
        "print('done')\n"
        "tide.cli.program()\n"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "done\n", "")

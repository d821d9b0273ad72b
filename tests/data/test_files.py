"""Locks, and replacing files as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tide.core.errors import InputError
from tide.data import files
from tide.data.files import write_text, writing

HOLDER = """
import sys
from pathlib import Path
from tide.data.files import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_second_writer_of_a_file_is_refused(tmp_path: Path) -> None:
    path, link = tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    command = [sys.executable, "-c", HOLDER, path]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    link.symlink_to(path)
    for name in (path, link, tmp_path / "x" / ".." / "out.jsonl"):
        with pytest.raises(InputError, match="another process is writing"):
            write_text(name, "text")
    os.kill(process.pid, signal.SIGKILL)  # a killed process releases its lock
    process.communicate()
    with writing(path):
        assert (tmp_path / "out.jsonl.lock").exists()
    assert os.listdir(tmp_path) == ["link.jsonl"]


def test_lock_is_taken_again_by_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.jsonl"
    with writing(path), writing(path):
        write_text(path, "one")
    assert os.listdir(path.parent) == ["out.jsonl"]


def test_folder_or_device_is_not_written(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")  # root could replace a real device
    for path in (tmp_path, pipe):
        with pytest.raises(InputError, match="cannot be written; it is a folder or a device"):
            write_text(path, "text")


def test_replace_is_whole_or_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    write_text(path, "old")
    link.symlink_to(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", full)
        with pytest.raises(InputError, match="cannot be written: No space left"):
            write_text(path, "new")
    assert path.read_text() == "old"
    write_text(link, "new")
    assert (path.read_text(), link.is_symlink()) == ("new", True)
    assert sorted(os.listdir(tmp_path)) == ["a", "link"]

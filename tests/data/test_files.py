"""Locks, and replacing files as a whole."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tide.core.errors import InputError
from tide.data import files
from tide.data.files import refuse_inputs, write_text, writing
from tide.data.records import RecordFile

HOLDER = """
import sys
from pathlib import Path
from tide.data.records import RecordFile
with RecordFile(Path(sys.argv[1]), Path(sys.argv[1] + ".scores.jsonl")):
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
        with pytest.raises(InputError, match="another process is writing") as caught:
            RecordFile(name, tmp_path / "scores.jsonl")
        assert "\n" not in str(caught.value)
    os.kill(process.pid, signal.SIGKILL)  # a killed process releases its lock
    process.communicate()
    with RecordFile(path, tmp_path / "scores.jsonl") as file:
        assert file.records == {}
        assert (tmp_path / "out.jsonl.lock").exists()
    assert os.listdir(tmp_path) == ["link.jsonl"]


def test_the_one_who_holds_a_file_may_take_it_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.jsonl"
    with writing(path), writing(path):
        write_text(path, "one")
    assert os.listdir(path.parent) == ["out.jsonl"]


@pytest.mark.parametrize(
    "name", ["/dev/full", "/dev/null", ".", "x" * 300, "/proc/nowhere/out.jsonl", "file/out.jsonl"]
)
def test_what_cannot_be_written(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(InputError, match="cannot be written") as caught:
        write_text(Path(name), "text")
    assert "\n" not in str(caught.value)
    assert os.listdir() == ["file"]
    assert not Path("/dev/full.lock").exists()


def test_a_file_is_replaced_as_a_whole_or_stays(
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


def test_an_output_is_no_input(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    (tmp_path / "soft").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    for name in ("a.txt", "soft", "hard", "../" + tmp_path.name + "/a.txt"):
        with pytest.raises(InputError, match="also read as an input"):
            refuse_inputs(tmp_path / name, [path])
    refuse_inputs(tmp_path / "b.txt", [path])


# Calls that write files without the functions of `files.py`.
_WRITES = re.compile(
    r"\.write_text\(|\.write_bytes\(|\.touch\(|save_file\(|savefig\((?!file\b|image\b)|np\.save"
    r"|open\([^)]*[\"'](?:[wax]b?\+?|r\+)[\"']"
)


def test_everything_that_writes_files_does_it_here() -> None:
    source = Path(files.__file__).parents[1]
    found = {
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        if path.name not in ("files.py", "record_files.py")
        for line in path.read_text("utf-8").splitlines()
        if _WRITES.search(line) and "os.devnull" not in line
    }
    assert found == set()

"""`.ci/run`: which verbs of the Makefile it runs for which change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.scripts.loading import ROOT

SERVERLESS = ["test", "check", "test-slow", "test-docs"]
EVERYTHING = [*SERVERLESS, "test-clients", "test-llama-cpp", "test-vllm"]
# Without what a git hook says of its own repository.
_ENV = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


class Clone:
    """A clone with one commit that origin/main has, and a `make` that passes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
        programs = folder / ".git" / "programs"
        self.git("init", "--quiet", "--initial-branch", "work")
        self.commit("README.md", "src/tide/engines/base.py")
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        programs.mkdir()
        (programs / "make").write_text('#!/bin/sh\necho "made $1"\n')
        (programs / "make").chmod(0o755)
        self._path = f"{programs}:{_ENV['PATH']}"

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, env=_ENV, check=True)

    def write(self, *files: str) -> None:
        for file in files:
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            with (self.folder / file).open("a") as out:
                out.write("another line\n")

    def commit(self, *files: str) -> None:
        self.write(*files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A change", "--allow-empty")

    def made(self, *options: str) -> list[str]:
        ran = subprocess.run(
            [self.folder / ".ci" / "run", *options], env={**_ENV, "PATH": self._path},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        made = re.findall(r"^made (.*)$", ran.stdout, re.MULTILINE)
        assert f"ci: passed: make {' '.join(made)}\n" in ran.stdout
        assert ("ci: left out" in ran.stdout) == (made != EVERYTHING)
        return made


def test_ci_leaves_out_servers_that_read_no_change(tmp_path: Path) -> None:
    """In doubt it runs everything."""
    clone = Clone(tmp_path / "clone")
    assert clone.made() == EVERYTHING  # main itself
    clone.commit("docs/faq.md", "tests/search/test_tide.py", "src/tide/baselines/prefixes.py")
    clone.commit("README.md")
    assert clone.made() == SERVERLESS
    assert clone.made("--all") == EVERYTHING
    clone.write("pyproject.toml")  # not committed
    assert clone.made() == EVERYTHING
    (clone.folder / "pyproject.toml").unlink()
    clone.git("mv", "src/tide/engines/base.py", "docs.md")
    clone.commit("README.md")
    clone.commit("README.md")  # HEAD~ lacks the commit in which the file went
    assert clone.made() == EVERYTHING
    clone.git("checkout", "--quiet", "refs/remotes/origin/main", "--", "src")
    assert clone.made() == SERVERLESS
    clone.git("update-ref", "-d", "refs/remotes/origin/main")
    assert clone.made() == EVERYTHING  # a clone of which nobody knows main


def test_ci_counts_imports_of_server_tests() -> None:
    """Of the tests; of the package only rooms are named that no server and no engine imports."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    folders = re.findall(r"^others\+?='\|?(.*)'$", script, re.MULTILINE)
    (first,) = re.findall(r"^unread='(\S+)/\|", script, re.MULTILINE)
    unread = re.compile(f"{first}/|tests/({'|'.join(folders)})/|tests/(test|docs)_")
    assert unread.match("tests/search/test_tide.py")
    folders_of_servers = ("tests/vllm", "tests/clients", "tests/llama_cpp")
    files = [file for folder in folders_of_servers for file in (ROOT / folder).glob("*.py")]
    files.append(ROOT / "tests/server/test_real_servers.py")
    for file in files:  # which grows
        assert not unread.match(str(file.relative_to(ROOT)))
        for module in re.findall(r"^ *from ([\w.]+) import", file.read_text("utf-8"), re.MULTILINE):
            imported = ROOT / f"{module.replace('.', '/')}.py"
            if imported.is_file() and imported not in files:
                files.append(imported)
    assert ROOT / "benchmarks/writing.py" in files

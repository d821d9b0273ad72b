"""`.ci/run` leaves the tests with real servers out only where they read no change."""

from __future__ import annotations

import re

from tests.scripts.loading import ROOT


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

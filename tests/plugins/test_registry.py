"""A registered name whose module cannot be used is a one-line error."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from tide.core.errors import InputError, MissingDependencyError
from tide.plugins import registry as registries
from tide.plugins.registry import Registry


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("1 / 0", InputError, r"^scorer 'mine': {0} cannot be imported: division by zero$"),
        ("raise SystemExit(3)", InputError, r"^scorer 'mine': {0} cannot be imported: 3$"),
        ("import nothing_such", InputError, r"^scorer 'mine': {0} cannot .* 'nothing_such'$"),
        ("Mine = 3", InputError, r"^scorer 'mine': {0} has no class or function 'Mine'$"),
        (
            "raise ModuleNotFoundError('', name='torch')",
            MissingDependencyError,
            r"^torch is not installed; .*\[local\]",
        ),
    ],
)
def test_registered_module_that_fails_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_others.py").write_text(code)
    registry = Registry("scorer", {"mine": "of_others:Mine"})
    with pytest.raises(error, match=message.format("of_others")):
        registry.load("mine")
    sys.modules.pop("of_others", None)  # the next case imports another module of this name


def test_a_file_is_run_once_by_several_threads(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text("import time\ntime.sleep(0.2)\ndef mine(texts):\n    return [0.0]\n")
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(Registry("scorer", {}).load, [f"{path}:mine"] * 2)
    assert first is second


def test_two_packages_with_one_name_are_always_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("pocket", "other:Pocket", "tide.scorers")
    monkeypatch.setattr(registries, "_installed", lambda: EntryPoints([point, point]))
    registry = Registry("scorer", {"pocket": "tide.scorers.pocket:PocketScorer"})
    for _ in range(2):
        with pytest.raises(InputError, match="'pocket': two installed packages use this name"):
            registry.load("pocket")
    assert Registry("scorer", {}).names() == ["pocket"]  # one package listed twice

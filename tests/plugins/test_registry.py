"""A registered name whose module cannot be used is a one-line error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tide.core.errors import InputError, MissingDependencyError
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
def test_a_module_that_fails(
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

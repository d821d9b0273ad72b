"""Names of scorers, engines, strategies and baselines: registered, installed, or in a file."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import tide
from tests.worlds import PROMPTS, scripted_engine
from tide.core.errors import InputError, MissingDependencyError
from tide.plugins import registry as registries
from tide.plugins.registry import Registry
from tide.scorers import REGISTRY


def test_function_of_a_file_or_package_is_a_scorer_also_inside_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = f"{tmp_path}/mine.py:shouting"
    (tmp_path / "mine.py").write_text(
        "def shouting(texts):\n    return [sum(map(str.isupper, text)) / 9 for text in texts]\n"
    )
    monkeypatch.setitem(REGISTRY._targets, "shouting", function)  # as an entry point does
    for spec, name in ((function, f"callable:{function}"), ("shouting", "shouting")):
        assert f"{name}@" in tide.load_scorer(f"max:{spec},pocket").name
        with tide.Detoxifier(scripted_engine(), scorer=spec) as detox:
            assert detox.scorer.name.startswith(f"{name}@")  # and a digest of its code
            assert detox(PROMPTS[0]).before.toxicity == 0.0  # it writes no capitals
        with pytest.raises(InputError, match="a function takes no argument"):
            tide.load_scorer(f"{spec}:loud")


def test_class_named_by_its_module_has_options() -> None:
    with pytest.raises(InputError, match="no option 'decoy'"):
        tide.load_baseline("tide.baselines.self_debias:SelfDebias:decoy=0", scripted_engine())  # type: ignore[arg-type]


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


def test_an_entry_point_without_a_class_is_told_its_form() -> None:
    with pytest.raises(InputError, match=r"scorer 'mine': its entry point 'os\.path' must be MOD"):
        Registry("scorer", {"mine": "os.path"}).load("mine")

from __future__ import annotations

import subprocess
import sys
from pkgutil import walk_packages

import tide


def test_evaluation_imports_no_slow_package() -> None:
    """Metrics are read in notebooks and scripts, for which torch takes 8 seconds and more."""
    packages = ("tide.evaluation", "tide.detoxifier", "tide.cli")
    modules = walk_packages(tide.__path__, "tide.")
    names = [module.name for module in modules if module.name.startswith(packages)]
    code = (
        f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
        "slow = 'torch', 'transformers', 'sklearn', 'scipy', 'matplotlib', 'pandas'\n"
        "print(*[name for name in slow if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(names) > 20
    assert done.stdout.split() == []

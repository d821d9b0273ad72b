"""Install this checkout into the environment of the running Python; the Makefile uses this script.

    python scripts/set_up.py test        # an extra, or several: test,docs; by default `local`

On Linux, PyTorch from PyPI brings 2.7 GB of CUDA. If no GPU is found, the CPU build is installed
first, from PyTorch's own index or from wherever your pip is configured to look. If it is found in
neither, pip installs PyTorch as configured. TORCH=cuda in the environment skips the CPU build,
TORCH=cpu requires it. An installed PyTorch is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://download.pytorch.org/whl/cpu"
# An unreachable index must not hold up an installation that does not need it.
_SHORT = ("--retries", "1", "--timeout", "10")
_GPUS = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA, AMD, and any GPU under WSL


def gpu(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has a GPU that PyTorch may use."""
    return any(True for name in _GPUS for _ in devices.glob(name))


def wants_cpu(asked: str, platform: str, has_gpu: bool) -> bool:
    """Whether to install the build for the CPU. asked: auto, cpu or cuda (TORCH)."""
    if asked not in ("auto", "cpu", "cuda"):
        raise SystemExit(f"TORCH: expected auto, cpu or cuda (got {asked!r})")
    # On other platforms, PyPI has the CPU build.
    return platform == "linux" and (asked == "cpu" or (asked == "auto" and not has_gpu))


def pinned(constraints: str) -> str:
    """Return the version of torch in the text of constraints.txt."""
    found = re.search(r"^torch==([\w.]+)", constraints, re.MULTILINE)
    if found is None:
        raise SystemExit("constraints.txt: has no line torch==VERSION")
    return found[1]


def installed() -> bool:
    try:
        return bool(version("torch"))
    except PackageNotFoundError:
        return False


def pip(*arguments: str, quietly: bool = False) -> bool:
    """Run `pip install`; returns whether it succeeded. quietly: also hides its errors."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], check=False, cwd=ROOT, capture_output=quietly)
    return done.returncode == 0


def main() -> None:
    extras = "".join(sys.argv[1:]) or "local"
    package = f".[{extras}]"
    asked = os.environ.get("TORCH") or "auto"
    needs_torch = extras != "gateway" and not installed()
    if needs_torch and wants_cpu(asked, sys.platform, gpu()):
        why = "" if asked == "cpu" else " (no GPU found; TORCH=cuda installs the CUDA build)"
        print(f"installing {package} with PyTorch for the CPU{why}: some minutes", flush=True)
        torch = f"torch=={pinned((ROOT / 'constraints.txt').read_text('utf-8'))}+cpu"
        found = pip(*_SHORT, "--no-deps", "--extra-index-url", INDEX, torch, quietly=True)
        if not found and asked == "cpu":
            raise SystemExit(f"TORCH=cpu: {torch} is neither at {INDEX} nor in pip's index")
        if not found:
            print(f"{torch} was not found; pip installs PyTorch as configured", flush=True)
    else:
        print(f"installing {package}: some minutes", flush=True)
    if not pip("--constraint", "constraints.txt", "--editable", package):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

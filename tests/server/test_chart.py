"""The Helm chart sets options that `tide serve` has, and renders where helm is installed."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tide.cli.serve import PREFIX, serve

CHART = Path(__file__).parents[2] / "deploy/helm"
NEEDED = ("upstream=http://vllm:8000/v1", "keysSecret=tide-keys")


def test_chart_sets_known_options() -> None:
    known = {f"{PREFIX}_{name.upper()}" for name in ("keys", *inspect.signature(serve).parameters)}
    text = "\n".join(path.read_text("utf-8") for path in CHART.rglob("*.yaml"))
    named = set(re.findall(rf"{PREFIX}_[A-Z_]+", text))
    assert f"{PREFIX}_BASE_URL" in named
    assert named <= known


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_chart_is_linted_and_needs_an_upstream() -> None:
    settings = [part for setting in NEEDED for part in ("--set", setting)]
    lint = ["helm", "lint", "--strict", str(CHART)]
    subprocess.run([*lint, *settings], check=True, capture_output=True)
    without_upstream = subprocess.run(lint, check=False, capture_output=True, text=True)
    assert without_upstream.returncode != 0
    assert "upstream" in without_upstream.stdout + without_upstream.stderr

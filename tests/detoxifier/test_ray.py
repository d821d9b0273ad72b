"""Tests that need no Ray; tests/vllm/test_cluster.py runs a real cluster."""

from __future__ import annotations

import sys

import pytest

from tide import Detoxifier, MissingDependencyError
from tide.detoxifier.ray import map_prompts


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[ray\]'"):
        next(map_prompts(Detoxifier, ["a prompt"]))

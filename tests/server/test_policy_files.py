"""Nothing in a policy file can run code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tide.core.settings import Settings
from tide.plugins.options import Options
from tide.scorers import REGISTRY as SCORERS
from tide.scorers import WRAPPERS
from tide.search import REGISTRY as STRATEGIES
from tide.server.policies import CommandLine, Policies, Policy, PolicyError


def strategy_specs(code: str) -> list[str]:
    """Specs that have `code` as the name, or as the value of an option or a setting."""
    specs = [code, f"({code})", f"{code}:lag=2"]
    for name in STRATEGIES.names():
        options = getattr(STRATEGIES.load(name), "options_class", Options).model_fields
        keys = {*options, *Settings.model_fields} - {"stop"}  # a stop string may be any text
        specs += [f"{name}:{code}", *(f"{name}:{key}={code}" for key in keys)]
    return specs


def scorer_specs(code: str) -> list[str]:
    """Specs that have `code` as the name, inside of a wrapper, or as an argument."""
    specs = [code, f"({code})", f"pocket),({code}", f"max:pocket,({code})"]
    for name, usage in WRAPPERS.items():
        number = "2:" if "NUMBER" in usage else ""
        specs += [f"{name}:{number}{code}", f"{name}:{number}cache:{code}"]
    specs += [f"{name}:{code}" for name in SCORERS.names() if name not in WRAPPERS]
    return specs


def test_no_field_of_a_policy_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    has_run = tmp_path / "has_run"
    for name in ("evil.py", "evil_module.py"):
        Path(name).write_text(f"open({str(has_run)!r}, 'w')\nclass F: ...\n")
    path = tmp_path / "policies.yaml"
    policies: list[dict[str, object]] = []
    for code in ("evil.py:F", "evil_module:F"):
        policies += [{"strategy": spec} for spec in strategy_specs(code)]
        policies += [{"scorer": spec} for spec in scorer_specs(code)]
        fields = [name for name in Policy.model_fields if name not in ("never", "repaired_mark")]
        policies += [{name: code} for name in fields]
    assert len(policies) > 200
    for policy in policies:
        path.write_text(json.dumps({"policies": {"a": policy}}))
        with pytest.raises(PolicyError) as caught:
            Policies(CommandLine("pocket", lambda texts: [0.1] * len(texts)), path).close()
        assert "\n" not in str(caught.value), policy
        assert not has_run.exists(), policy

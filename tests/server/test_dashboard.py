"""Files for operators: the Grafana dashboard, and the Helm chart where helm is installed."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.running import running, wait_until, written
from tide.cli.serve import PREFIX, serve
from tide.server.gate import KEYS

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
# Labels that Prometheus adds to each series, and to histograms.
ADDED = {"instance", "le"}
# A counter has no sample, and so no label, before its first event.
UNSEEN = {"kind", "failed", "policy", "outcome", "language"}
PARTS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def queries() -> list[str]:
    variables = [item for item in DASHBOARD["templating"]["list"] if item["type"] == "query"]
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [item["query"] for item in variables] + [target["expr"] for target in targets]


def test_the_dashboard_and_the_metrics_are_of_each_other(tmp_path: Path) -> None:
    file = written(tmp_path / "tide.yaml", policies={"main": {"shadow": "strict"}, "strict": {}})
    with running(policies=file) as server:
        assert server.ask(max_tokens=5).is_success
        wait_until(lambda: "tide_shadow_score_sum" in server.http.get("/metrics").text)
        server.http.get("/ready")
        text = server.http.get("/metrics").text
    metrics: dict[str, set[str]] = {}  # the names of all series, with the labels of their samples
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        base = name.removesuffix("_total")
        metrics |= {f"{base}{part}": set() for part in PARTS[kind]}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        metrics[name] |= set(re.findall(r"(\w+)=", labels))
    for query in queries():
        names = re.findall(r"\btide_\w+", query)
        assert set(names) <= metrics.keys(), query
        for name, matchers in re.findall(r"(tide_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)=", matchers)) <= metrics[name] | ADDED, query
        groups = re.findall(r"by \(([\w, ]+)\)", query)
        grouped = {label for some in groups for label in some.split(", ")}
        series = set().union(*(metrics[name] for name in names))
        assert grouped <= series | ADDED | UNSEEN, query
        for name, bound in re.findall(r'(tide_\w+_bucket)\{[^}]*le="([\d.]+)"', query):
            assert f'{name}{{le="{bound}"}}' in text
    shown = " ".join(queries())
    kinds = re.findall(r"^# TYPE (tide_\w+) (?!gauge)\w+$", text, re.MULTILINE)
    assert all(name in shown for name in kinds if not name.endswith("_created"))


def test_chart_sets_options_that_serve_has() -> None:
    options = {f"{PREFIX}_{name.upper()}" for name in inspect.signature(serve).parameters}
    texts = [path.read_text("utf-8") for path in (DEPLOY / "helm").rglob("*.yaml")]
    named = set(re.findall(rf"{PREFIX}_[A-Z_]+", "".join(texts)))
    assert f"{PREFIX}_BASE_URL" in named
    assert named <= options | {KEYS}


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_chart_is_linted_and_needs_an_upstream() -> None:
    lint = ["helm", "lint", "--strict", str(DEPLOY / "helm")]
    settings = ["--set", "upstream=http://vllm:8000/v1", "--set", "keysSecret=tide-keys"]
    subprocess.run([*lint, *settings], check=True, capture_output=True)
    without_upstream = subprocess.run(lint, check=False, capture_output=True, text=True)
    assert without_upstream.returncode != 0
    assert "upstream" in without_upstream.stdout + without_upstream.stderr

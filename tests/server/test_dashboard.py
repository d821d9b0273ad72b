"""Files for operators: the Grafana dashboard, alerts, and the chart, where helm is installed.

`tests/cli/test_serve.py` compares the names of their options with those of the command.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.server.running import running, wait_until, written
from tide.cli.serve import PREFIX
from tide.server.gate import KEYS

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm"
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
ALERTS = yaml.safe_load((CHART / "alerts.yaml").read_text("utf-8"))
# Labels that Prometheus adds to each series, and to histograms.
ADDED = {"instance", "job", "le", "namespace"}
# A counter has no sample, and so no label, before its first event.
UNSEEN = {"kind", "policy", "outcome", "language"}
PARTS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def queries() -> list[str]:
    variables = [item for item in DASHBOARD["templating"]["list"] if item["type"] == "query"]
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [item["query"] for item in variables] + [target["expr"] for target in targets]


def alerts() -> list[str]:
    return [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]


def test_dashboard_alerts_and_metrics_are_of_each_other(tmp_path: Path) -> None:
    file = written(tmp_path / "tide.yaml", policies={"main": {"shadow": "strict"}, "strict": {}})
    with running(policies=file) as server:
        assert server.ask(max_tokens=5).is_success
        wait_until(
            lambda: 'tide_monitor_score_sum{beside="main"' in server.http.get("/metrics").text
        )
        server.http.get("/ready")
        server.policies.metrics.reloads.labels("failed")  # a series without events
        text = server.http.get("/metrics").text
    metrics: dict[str, set[str]] = {}  # the names of all series, with the labels of their samples
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        base = name.removesuffix("_total")
        metrics |= {f"{base}{part}": set() for part in PARTS[kind]}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        metrics[name] |= set(re.findall(r"(\w+)=", labels))
    for query in [*queries(), *alerts()]:
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


def test_chart_options_cannot_repeat_what_the_chart_sets() -> None:
    set_by_chart = (CHART / "templates" / "configmap.yaml").read_text("utf-8")
    names = re.findall(rf"{PREFIX}_[A-Z_]+", set_by_chart)
    assert f"{PREFIX}_MODE" in names
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    forbidden = schema["properties"]["options"]["propertyNames"]["not"]["pattern"]
    assert all(re.search(forbidden, name) for name in [*names, KEYS])
    assert not re.search(forbidden, f"{PREFIX}_MODEL")


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_chart_is_linted_and_needs_an_upstream() -> None:
    lint = ["helm", "lint", "--strict", str(CHART)]
    settings = ["--set", "upstream=http://vllm:8000/v1", "--set", "keysSecret=tide-keys"]
    subprocess.run([*lint, *settings], check=True, capture_output=True)
    more = ["--set", "env[0].name=SSL_CERT_FILE,env[0].value=/etc/ca/ca.pem"]
    more += ["--set", "prometheusRule.enabled=true", "--set", "pod.priorityClassName=high"]
    template = ["helm", "template", "tide", *settings, *more, str(CHART)]
    rendered = subprocess.run(template, check=True, capture_output=True, text=True).stdout
    parts = {part["kind"]: part["spec"] for part in yaml.safe_load_all(rendered) if "spec" in part}
    pod = parts["Deployment"]["template"]["spec"]
    assert pod["priorityClassName"] == "high"
    assert pod["containers"][0]["env"] == [{"name": "SSL_CERT_FILE", "value": "/etc/ca/ca.pem"}]
    assert parts["PrometheusRule"] == ALERTS
    without_upstream = subprocess.run(lint, check=False, capture_output=True, text=True)
    assert without_upstream.returncode != 0
    assert "upstream" in without_upstream.stdout + without_upstream.stderr

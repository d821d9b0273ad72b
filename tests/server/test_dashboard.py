"""The Grafana dashboard queries the metrics that `/metrics` has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.server.running import running, wait_until

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana.json").read_text("utf-8"))
# Labels that Prometheus adds to each series, and to histograms.
ADDED = {"instance", "le"}
PARTS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def queries() -> list[str]:
    variables = [one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return variables + [one["expr"] for panel in DASHBOARD["panels"] for one in panel["targets"]]


def test_the_dashboard_and_the_metrics_are_of_each_other(tmp_path: Path) -> None:
    file = tmp_path / "tide.yaml"
    file.write_text("policies: {main: {shadow: strict}, strict: {}}")
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
        # A counter has no sample, and so no label, before its first event.
        unseen = {"kind", "failed", "policy", "outcome", "language"}
        assert grouped <= series | ADDED | unseen, query
        for name, bound in re.findall(r'(tide_\w+_bucket)\{[^}]*le="([\d.]+)"', query):
            assert f'{name}{{le="{bound}"}}' in text
    shown = " ".join(queries())
    kinds = re.findall(r"^# TYPE (tide_\w+) (?!gauge)\w+$", text, re.MULTILINE)
    assert all(name in shown for name in kinds if not name.endswith("_created"))

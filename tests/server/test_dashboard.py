"""The Grafana dashboard asks for nothing that `/metrics` does not have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.server.running import running

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana.json").read_text("utf-8"))
# What Prometheus adds to each series, and to a histogram's.
ADDED = {"instance", "le"}
PARTS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def queries() -> list[str]:
    variables = [one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return variables + [one["expr"] for panel in DASHBOARD["panels"] for one in panel["targets"]]


@pytest.fixture(scope="module")
def metrics() -> dict[str, set[str]]:
    """The names of all series, each with its labels as far as it has samples."""
    with running() as server:
        assert server.ask(max_tokens=5).is_success
        server.http.get("/ready")
        text = server.http.get("/metrics").text
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        base = name.removesuffix("_total")
        found |= {f"{base}{part}": set() for part in PARTS[kind]}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        found[name] |= set(re.findall(r"(\w+)=", labels))
    return found


def test_every_series_of_a_query_exists(metrics: dict[str, set[str]]) -> None:
    asked = {name for query in queries() for name in re.findall(r"\btide_\w+", query)}
    assert len(asked) > 10
    assert asked <= metrics.keys()


def test_every_label_of_a_query_exists(metrics: dict[str, set[str]]) -> None:
    for query in queries():
        for name, matchers in re.findall(r"(tide_\w+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+)=", matchers))
            assert labels <= metrics[name] | ADDED, query
        grouped = {
            label for some in re.findall(r"by \(([\w, ]+)\)", query) for label in some.split(", ")
        }
        series = set().union(*(metrics[name] for name in re.findall(r"\btide_\w+", query)))
        # A counter has no sample, and so no label, before what it counts happens.
        assert grouped <= series | ADDED | {"kind", "failed", "policy", "outcome"}, query


def test_a_bucket_of_a_query_exists(metrics: dict[str, set[str]]) -> None:
    with running() as server:
        text = server.http.get("/metrics").text
    for query in queries():
        for name, bound in re.findall(r'(tide_\w+_bucket)\{[^}]*le="([\d.]+)"', query):
            assert f'{name}{{le="{bound}"}}' in text


def test_every_metric_of_ours_is_shown() -> None:
    with running() as server:
        kinds = re.findall(
            r"^# TYPE (tide_\w+) (?!gauge)\w+$", server.http.get("/metrics").text, re.M
        )
    shown = " ".join(queries())
    created = [name for name in kinds if not name.endswith("_created")]
    assert all(name in shown for name in created)

"""Benchmarks, metrics, perplexity, significance, tables and figures over runs on disk."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tide.evaluation.benchmarks import Benchmark, load_benchmark
    from tide.evaluation.evaluating import evaluate, judge
    from tide.evaluation.progress import Progress
    from tide.evaluation.reporting.reports import Report, report
    from tide.evaluation.runs import Run, find_runs, read_run

_NAMES = {
    **dict.fromkeys(("Benchmark", "load_benchmark"), "benchmarks"),
    **dict.fromkeys(("evaluate", "judge"), "evaluating"),
    "Progress": "progress",
    **dict.fromkeys(("Report", "report"), "reporting.reports"),
    **dict.fromkeys(("Run", "find_runs", "read_run"), "runs"),
}


def __getattr__(name: str) -> Any:
    """Loads what is named, and torch with it, when it is first used."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)


__all__ = [
    "Benchmark",
    "Progress",
    "Report",
    "Run",
    "evaluate",
    "find_runs",
    "judge",
    "load_benchmark",
    "read_run",
    "report",
]

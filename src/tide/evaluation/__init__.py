"""Benchmarks, metrics, perplexity, significance, tables and figures over runs on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from tide.evaluation.benchmarks import Benchmark, load_benchmark
    from tide.evaluation.evaluating import evaluate, judge
    from tide.evaluation.progress import Bars, Progress
    from tide.evaluation.reporting.reports import Report, report
    from tide.evaluation.runs import Run, find_runs, read_run

__getattr__, _, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "benchmarks": ["Benchmark", "load_benchmark"],
        "evaluating": ["evaluate", "judge"],
        "progress": ["Bars", "Progress"],
        "reporting.reports": ["Report", "report"],
        "runs": ["Run", "find_runs", "read_run"],
    },
)

__all__ = [
    "Bars",
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

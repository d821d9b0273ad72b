"""Draw the anytime curve: the toxic rate against the evaluations spent.

    python benchmarks/anytime.py

Needs matplotlib (the extra `bench`). Reads the runs of `benchmarks/strategies.py` and writes
`benchmarks/results/anytime.png`.
"""

from __future__ import annotations

from strategies import CONFIGURATIONS, RESULTS

from tide.evaluation import find_runs, read_run, report

SHOWN = (*("tide", "shuffled", "random-walk", "resample T 1", "resample T .1"),)


def main() -> None:
    runs = {run.name: run for run in map(read_run, find_runs([RESULTS / "strategies"]))}
    drawn = report([runs[CONFIGURATIONS[name]] for name in SHOWN], tests=False).figures
    drawn["anytime-rate"].savefig(RESULTS / "anytime.png", dpi=150)


if __name__ == "__main__":
    main()

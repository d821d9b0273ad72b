"""Does a long stream of prompts stay within memory? `tide run` over BOLD, short and whole.

    python benchmarks/memory.py [--few 2000] [--preset relative]

Runs `tide run` in a process of its own over the first `few` prompts and over all of them, and
compares the peak resident memory. Writes `benchmarks/results/memory.json`; the closing tables of
both runs are printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import typer

from tide.evaluation import load_benchmark

REPOSITORY = Path(__file__).resolve().parents[1]
OUT = REPOSITORY / "benchmarks" / "results" / "memory.json"


def run(data: Path, limit: int | None, preset: str, folder: Path) -> dict[str, float]:
    output = folder / f"{limit or 'all'}.jsonl"
    command = [
        sys.executable, "-c", "from tide.cli import main; main()", "run", "--input", str(data),
        "--output", str(output), "--preset", preset, "--judges", "profanity-check",
    ]  # fmt: skip
    if limit is not None:
        command += ["--limit", str(limit)]
    started = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"tide run ended with status {status}")
    with output.open(encoding="utf-8") as file:
        records = sum(1 for _ in file)
    return {
        "records": records,
        "peak_mib": usage.ru_maxrss / 1024,
        "seconds": time.perf_counter() - started,
    }


def main(
    few: int = 2000, preset: str = "relative", benchmark: str = "bold", out: Path = OUT
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        rows = load_benchmark(benchmark).rows
        prompts.write_text("".join(json.dumps({"prompt": row.text}) + "\n" for row in rows))
        runs = [run(prompts, limit, preset, Path(folder)) for limit in (few, None)]
    ratio = runs[1]["peak_mib"] / runs[0]["peak_mib"]
    print(f"peak memory: {ratio:.2f} times that of {few} prompts")
    out.parent.mkdir(parents=True, exist_ok=True)
    result = {"preset": preset, "runs": runs, "peak_ratio": ratio}
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)

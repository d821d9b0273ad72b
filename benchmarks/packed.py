"""Measure how much faster the engine writes with packed weights.

    OMP_NUM_THREADS=1 python benchmarks/packed.py smollm2 gemma3-270m

Writes 20 tokens after prompts of BOLD. Times are CPU seconds, the best of three turns.
"""

from __future__ import annotations

import sys
import time
from unittest.mock import patch

from writing import completed

from tide.core.settings import Sampling
from tide.engines.local import engine as local
from tide.evaluation.benchmarks import load_benchmark

ROWS, TURNS = (1, 4, 16, 64), 3


def main(models: list[str]) -> None:
    texts = [row.text for row in load_benchmark("bold").rows[: max(ROWS)]]
    print("| model | rows | plain | packed | times as fast | equal texts |")
    print("|---|---|---|---|---|---|")
    for model in models:
        with patch.object(local, "speed_up"):
            plain = local.TransformersEngine(model)
        with plain, local.TransformersEngine(model) as packed:
            for rows in ROWS:
                prompts = plain.tokenize(texts[:rows])
                least, found = [], []
                for engine in (plain, packed):
                    seconds = []
                    for _ in range(TURNS):
                        began = time.process_time()
                        written = completed(engine, prompts, Sampling(max_new_tokens=20))
                        seconds.append(time.process_time() - began)
                    least.append(min(seconds))
                    found.append([one.text for one in written])
                same = sum(a == b for a, b in zip(*found, strict=True))
                print(
                    f"| {model} | {rows} | {least[0]:.2f} | {least[1]:.2f} | "
                    f"{least[0] / least[1]:.2f} | {same} of {rows} |"
                )


if __name__ == "__main__":
    main(sys.argv[1:] or ["smollm2"])

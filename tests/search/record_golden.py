"""Record the golden trajectories: `python -m tests.search.record_golden`.

Run it only after a deliberate change of the algorithm, which the commit message describes.
"""

from __future__ import annotations

import json
from typing import Any

from tests.worlds import drive

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"variant": "paper", "step_relative": 1.5},
    "tight-cone": {"cosine_threshold": 0.9, "step_relative": 1.0, "max_iterations": 5},
    "published": {"mu": 0.1, "step_size": 1.5, "num_samples": 8, "toxicity_threshold": 0.05},
}


def main() -> None:
    from tests.search.test_tide import GOLDEN, make, problem

    recorded = []
    for number, (name, changes) in enumerate(CASES.items()):
        settings = {"toxicity_threshold": 0.3, "num_samples": 4, **changes}
        strategy = make(problem(seed=number), **settings)
        rounds = drive(strategy)
        recorded.append(
            {
                "name": name,
                "settings": settings,
                "seed": number,
                "iterations": strategy.iterations,
                "best": strategy.best,
                "rounds": [[round(float(x.sum()), 5) for x in points] for points in rounds],
            }
        )
    GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()

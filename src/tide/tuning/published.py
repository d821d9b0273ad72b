"""What "Test-Time Detoxification without Training or Learning Anything" varied, and how."""

from __future__ import annotations

import math

# Its selection of settings: every combination, at temperature 0, on the prompts whose completions
# have a mean toxicity above ABOVE, of which it had about WORST.
GRID: dict[str, tuple[float, ...]] = {
    "mu": (0.001, 0.005, 0.01, 0.05, 0.1, 0.5),
    "num_samples": (4, 8, 16),
    "step_size": (0.05, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5),
}
ABOVE, WORST = 0.9, 100
# E_bar / sqrt(d) of GPT-2 Large, whose published scales stand in the grid as they are. Its E_bar is
# the norm of its prompts' rows, as the published runs show it.
GRID_SCALE = 1.46 / math.sqrt(1280)

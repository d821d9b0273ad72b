"""Print the smallest difference between two methods that a number of texts can show.

    python benchmarks/power.py 200 0.05 0.1 [--alpha 0.05] [--power 0.8]

The test is the exact sign test (McNemar's), two-sided, of whether each text is toxic by two
methods. Its power depends on the share of the texts that differ, the further arguments: the column
`differ` of `first_page.py`'s tests, divided by its `prompts`. The difference of two shares is at
most this share. `-`: even that could not be shown.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from scipy.optimize import brentq
from scipy.stats import binom


def power_of(difference: float, texts: int, differ: float, alpha: float) -> float:
    """Return the power of the sign test, over all numbers of texts that may differ."""
    pairs = np.arange(texts + 1)
    # The largest count that the test rejects, -1 if it rejects none.
    rejected = binom.ppf(alpha / 2, pairs, 0.5) - 1
    more = (1 + difference / differ) / 2
    rejects = binom.cdf(rejected, pairs, more) + binom.sf(pairs - rejected - 1, pairs, more)
    return float(binom.pmf(pairs, texts, differ) @ rejects)


def smallest_difference(texts: int, differ: float, alpha: float, power: float) -> float | None:
    if power_of(differ, texts, differ, alpha) < power:
        return None
    return float(
        brentq(lambda gap: power_of(gap, texts, differ, alpha) - power, 0, differ, xtol=1e-5)
    )


def main(
    texts: Annotated[int, typer.Argument(help="Number of texts of each method.", min=1)],
    differ: Annotated[list[float], typer.Argument(help="Shares of the texts that differ.")],
    alpha: Annotated[float, typer.Option(help="Level of the test.")] = 0.05,
    power: Annotated[float, typer.Option(help="Chance to find the difference.")] = 0.8,
) -> None:
    for share in differ:
        gap = smallest_difference(texts, share, alpha, power)
        shown = "-" if gap is None else f"{gap:.3f}"
        print(f"{texts} texts, {share:g} differ: {shown}")


if __name__ == "__main__":
    typer.run(main)

"""A custom search strategy: try the prompt, then a few points around it, then stop.

tide run "She told me to shut the" --strategy examples/own_strategy.py:OneJump:count=6
"""

from typing import Any

from pydantic import Field

import tide
from tide import Options, Point, Steps, Strategy


class OneJumpOptions(Options):
    count: int = Field(default=4, ge=1, description="Points to try around the prompt.")


class OneJump(Strategy):
    options_class = OneJumpOptions
    options: OneJumpOptions

    def steps(self, start: Point) -> Steps:
        self.iterations += 1
        jumps = self.x0 + self.mu * self.normal(self.options.count)
        points = yield from self.evaluate(jumps, "perturbation")
        yield from self.accept(points)


def complete(prompt: str, model: Any = "pocket", count: int = 6, **options: Any) -> tide.Result:
    strategy = f"{__file__}:OneJump:count={count}"
    return tide.Detoxifier(model, strategy=strategy, **options)(prompt)


if __name__ == "__main__":
    result = complete("She told me to shut the")
    print(result.accepted, [round(e.toxicity, 2) for e in result.trace])

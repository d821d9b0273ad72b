"""A search strategy of one's own: try the prompt, then four points around it, and no more."""

from typing import Any

import tide
from tide.search import REGISTRY, Strategy
from tide.search.base import Steps


class OneJump(Strategy):
    def steps(self) -> Steps:
        (point,) = yield from self.evaluate(self.x0[None], "initial", [(0,)])
        if (yield from self.accept([point])):
            return
        self.iterations += 1
        jumps = self.x0 + self.mu * self.normal(4)
        points = yield from self.evaluate(jumps, "perturbation", [(1 + i,) for i in range(4)])
        yield from self.accept(points)


REGISTRY.add("one-jump", OneJump)  # or an entry point in the group tide.strategies


def complete(prompt: str, model: Any = "pocket", **options: Any) -> tide.Result:
    return tide.Detoxifier(model, strategy="one-jump", **options)(prompt)


if __name__ == "__main__":
    result = complete("She told me to shut the")
    print(result.accepted, [round(e.toxicity, 2) for e in result.trace])

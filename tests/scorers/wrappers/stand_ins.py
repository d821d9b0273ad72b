from __future__ import annotations


class Moody:
    """Raises what the plan says, call by call; then scores 0.25."""

    def __init__(self, *plan: Exception) -> None:
        self.plan = list(plan)
        self.calls = 0

    def __call__(self, texts: list[str]) -> list[float]:
        self.calls += 1
        if self.plan:
            raise self.plan.pop(0)
        return [0.25] * len(texts)

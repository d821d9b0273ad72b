"""`--scorer tests/server/twice.py:Twice`: the scorer of these tests, with two attempts."""

from __future__ import annotations

from tide.scorers.services.perspective import PerspectiveScorer


class Twice(PerspectiveScorer):
    def __init__(self) -> None:
        super().__init__(key="x", queries_per_second=5000, attempts=2, backoff=0.1)

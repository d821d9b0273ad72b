"""How many cases a generated test has: some in the ordinary suite, many by `make test-attacks`."""

from __future__ import annotations

from hypothesis import settings

LONG = 1000  # examples of the profile "long", by which it is known


def examples(ordinary: int, long: int) -> settings:
    """The settings of a test with so many cases under the two profiles."""
    is_long = settings().max_examples >= LONG
    return settings(max_examples=long if is_long else ordinary, deadline=None)

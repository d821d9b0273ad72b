"""How many cases a generated test has: some in the ordinary suite, many by `make test-attacks`."""

from __future__ import annotations

from hypothesis import settings

LONG = 1000  # examples of the profile "long", by which it is known


def examples(ordinary: int, long: int) -> settings:
    """The settings of a test with so many cases under the profiles `ordinary` and `long`.

    A profile of more than `LONG` cases, as `oracle`, has at least that many of each test.
    """
    asked = settings().max_examples
    many = max(long, asked) if asked > LONG else long
    return settings(max_examples=many if asked >= LONG else ordinary, deadline=None)

"""Number of cases of a generated test: few in the ordinary suite, many in `make test-attacks`."""

from __future__ import annotations

from hypothesis import settings

LONG = 1000  # examples of the profile "long"; `examples` recognises the profile by this number


def examples(ordinary: int, long: int) -> settings:
    """Settings of a test with these numbers of cases under the profiles `ordinary` and `long`.

    A profile with more than `LONG` cases, such as `oracle`, runs at least its own number.
    """
    asked = settings().max_examples
    many = max(long, asked) if asked > LONG else long
    return settings(max_examples=many if asked >= LONG else ordinary, deadline=None)

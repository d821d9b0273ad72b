from __future__ import annotations

from collections.abc import Iterator

import pytest
from tenacity.wait import wait_random_exponential

from tide.engines.remote import pool


@pytest.fixture(scope="session", autouse=True)
def impatient_pools() -> Iterator[None]:
    """Servers that failed are asked again after a tenth of the usual pause."""

    def shorter(multiplier: float, max: float) -> wait_random_exponential:
        return wait_random_exponential(multiplier=multiplier / 10, max=max / 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "wait_random_exponential", shorter)
        patch.setattr(pool, "_USUAL_REST", 0.1)
        patch.setattr(pool, "_FIRST_PROBE", 0.05)
        yield

"""Random seeds that do not depend on the order of the work.

The seeds of a trial are derived from (seed, prompt, trial) alone, so the result of a trial does not
depend on the batch, the order, or a restart.
"""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """Derive a 63-bit seed; distinct `parts` give independent seeds, equal on every platform."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

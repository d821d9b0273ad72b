"""Random seeds that do not depend on the order of the work.

Seeds of a trial are derived from (seed, prompt, trial) alone, so its result does not depend on the
batch, the order, or a restart.
"""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from `parts`; distinct parts give independent seeds on every platform."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

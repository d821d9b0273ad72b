"""Does a model read the same where rows come and go, and where they share a beginning?

It needs keys and values, and masks that are obeyed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tide.core.settings import Sampling
from tide.engines.local.decode import Forward
from tide.engines.local.open_batch import OpenStream, Row
from tide.engines.local.prefixes import Prefix, Prefixes

# Of the largest logit, with company and without. A wrong mask makes 0.2; in bfloat16, 24 layers
# differ by 0.02 in what they round.
_TOLERANCES = {torch.float32: 1e-4}
_ROUNDED = 5e-2


@torch.inference_mode()
def reads_alike(forward: Forward, x: Tensor, longest: int) -> bool:
    """Whether `x` (T, d), T > 3, is read the same in company. longest: as of `longest_row`."""
    if len(x) >= longest:
        return False
    prefix = Prefix(x[:2])
    stream = OpenStream(forward, Prefixes(forward, 0))
    try:
        # One row, which is read on when a longer one enters, and one that shares its beginning.
        stream.enter([_row(x[:-2])])
        token = stream.logits.argmax(dim=-1)
        stream.advance(token)
        stream.enter([_row(x), _row(x[:-1], prefix)])
        entered, tokens = stream.logits, stream.logits.argmax(dim=-1)
        stream.advance(tokens)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False  # what the model cannot do
    alone = [torch.cat([x[:-2], forward.embed(token)]), x, x[:-1]]
    longer = [torch.cat(pair) for pair in zip(alone, forward.embed(tokens)[:, None], strict=True)]
    found = torch.cat([entered, stream.logits]).float()
    expected = torch.cat([forward.read([row]).logits[:, -1] for row in [*alone, *longer]]).float()
    worst = float((found - expected).abs().max())
    tolerance = _TOLERANCES.get(x.dtype, _ROUNDED)
    return worst <= tolerance * float(expected.abs().max())


def _row(x: Tensor, prefix: Prefix | None = None) -> Row:
    return Row(x, Sampling(), 0, lambda _: None, prefix=prefix)

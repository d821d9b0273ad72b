"""Round a model's weights so that they compress better: used for the bundled reference model.

    python models/round_weights.py IN OUT [--share 0.0625]
    tide judge RUN --reference IN --reference OUT   # shows the effect on perplexities

Each matrix is rounded to multiples of a power of two near `share` of its standard deviation, and
stays float16. Rounding again changes nothing.
"""

from __future__ import annotations

import math
import shutil
import zlib
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def rounded(weights: torch.Tensor, share: float) -> torch.Tensor:
    """Round matrices; keep vectors (biases, norms), which are few and important."""
    if weights.ndim < 2:
        return weights
    step = 2.0 ** round(math.log2(weights.float().std().item() * share))
    return ((weights.float() / step).round() * step).half()


def main(
    source: Annotated[Path, typer.Argument(metavar="IN")],
    to: Annotated[Path, typer.Argument(metavar="OUT")],
    share: float = 1 / 16,
) -> None:
    shutil.copytree(source, to)
    tensors = {name: rounded(tensor, share) for name, tensor in load_file(source / WEIGHTS).items()}
    save_file(tensors, to / WEIGHTS, metadata={"format": "pt"})
    for folder in (source, to):
        packed = len(zlib.compress((folder / WEIGHTS).read_bytes(), 9))
        typer.echo(f"{folder}: {packed / 1e6:.1f} MB compressed")


if __name__ == "__main__":
    typer.run(main)

"""The geometry of prompt embeddings: directions, angles and the cone around the prompt.

All functions take float32 matrices of shape (T, d). Angles are angles between flattened matrices.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tide.core.errors import InputError

# Added to a norm before a division, as in the published code.
_EPSILON = 1e-8


def movable_rows(fixed: Tensor, perturb: str) -> Tensor:
    """Return the mask of the rows that a search may move by `Settings.perturb`: bool, shape (T,).

    fixed: the mask of a `Prompt`, bool, shape (T,). `last:K` moves all content rows if there are
    fewer than K. Raises InputError if no row may move.
    """
    if perturb == "all":
        return torch.ones_like(fixed)
    movable = ~fixed
    if not movable.any():
        raise InputError(
            "the prompt has only special tokens or chat markers; perturb='all' would move them"
        )
    if perturb != "content":
        movable &= movable.flip(0).cumsum(0).flip(0) <= int(perturb.removeprefix("last:"))
    return movable


def normalize(direction: Tensor, how: str) -> Tensor:
    """Scale `direction` (T, d) to unit length: each row (`"token"`) or the matrix (`"matrix"`).

    Zero rows stay zero. The published code normalises rows; the paper normalises the matrix (step
    2).
    """
    norm: Tensor = direction.norm(dim=-1, keepdim=True) if how == "token" else direction.norm()
    return direction / (norm + _EPSILON)


def cosine(x: Tensor, x0: Tensor) -> float:
    """Return cos(x, x0) of the flattened matrices, in [-1, 1]."""
    return measure(x[None], x0)[0][0]


def measure(points: Tensor, x0: Tensor, still: float = 0.0) -> tuple[list[float], list[float]]:
    """Return cos(x, x0) and |x - x0| / |x0| for each x in `points`, shape (n, T, d).

    still: norm of the rows that do not move; the result includes these rows. The cosine with a
    matrix of zeros is 1, and the distance to a matrix of zeros is |x - x0|.
    """
    x, axis = points.flatten(1).double(), x0.flatten().double()
    rest = torch.tensor(still, dtype=torch.float64)
    length = axis.norm().hypot(rest)
    cosines = (x @ axis + rest**2) / (x.norm(dim=1).hypot(rest) * length)
    cosines = cosines.clamp(-1.0, 1.0).nan_to_num(1.0)
    return cosines.tolist(), ((x - axis).norm(dim=1) / (length or 1.0)).tolist()


def project(x: Tensor, x0: Tensor, cosine_threshold: float, how: str = "rotate") -> Tensor:
    """Project `x` onto the cone `{z : cos(z, x0) >= cosine_threshold}`.

    A point inside the cone is returned unchanged, and so is every point for a threshold of 0 (no
    constraint). `"rotate"` rotates x in the plane of x0 and x and keeps its norm (published code);
    `"nearest"` returns the closest point of the cone (paper). The cosine of a projected point
    equals the threshold to 1e-5.

    The formulas leave a case open: if the closest point is the apex of the cone, the zero matrix,
    which is not a prompt, `"nearest"` rotates x instead.
    """
    if cosine_threshold == 0 or cosine(x, x0) >= cosine_threshold:
        return x
    v, axis = x.flatten().double(), x0.flatten().double()
    axis = axis / axis.norm()
    along = v @ axis
    across = v - along * axis
    sine = math.sqrt(1.0 - cosine_threshold**2)
    boundary = cosine_threshold * axis + sine * across / across.norm()
    length: Tensor = v.norm()
    if how == "nearest" and v @ boundary > 0:
        length = v @ boundary
    projected: Tensor = length * boundary
    return projected.to(x.dtype).reshape(x.shape)

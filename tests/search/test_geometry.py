from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tide.core.errors import InputError
from tide.search.geometry import cosine, measure, movable_rows, project


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two matrices of one shape, at any angle, of very different sizes."""
    shape = draw(st.integers(1, 6)), draw(st.integers(2, 32))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x0 = torch.randn(shape, generator=generator)
    x = torch.randn(shape, generator=generator) + draw(st.floats(-3, 3)) * x0
    return x * 10 ** draw(st.floats(-3, 3)), x0 * 10 ** draw(st.floats(-3, 3))


@given(matrices(), st.floats(0.01, 0.99), st.sampled_from(["rotate", "nearest"]))
def test_projection_lands_on_the_cone(pair: tuple[Tensor, Tensor], kappa: float, how: str) -> None:
    x, x0 = pair
    projected = project(x, x0, kappa, how)
    if how == "rotate":
        assert float(projected.norm()) == pytest.approx(float(x.norm()), rel=1e-5)
    if cosine(x, x0) >= kappa:
        assert projected is x
    else:
        assert cosine(projected, x0) == pytest.approx(kappa, abs=1e-5)


def test_kappa_zero_is_no_constraint() -> None:
    x0 = torch.ones(2, 4)
    assert torch.equal(project(-x0, x0, 0.0), -x0)


@given(matrices(), st.floats(0.01, 100))
def test_rows_that_stay_count_in_what_is_measured(
    pair: tuple[Tensor, Tensor], scale: float
) -> None:
    x, x0 = pair
    still = scale * x0.flip(0)
    whole = measure(torch.cat([x, still])[None], torch.cat([x0, still]))
    parts = measure(x[None], x0, float(still.norm()))
    assert parts[0] == pytest.approx(whole[0], abs=1e-5)
    assert parts[1] == pytest.approx(whole[1], rel=1e-5)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 15))
def test_which_rows_move(special: list[bool], last: int) -> None:
    mask, content = torch.tensor(special), [i for i, no in enumerate(special) if not no]
    assert movable_rows(mask, "all").tolist() == [True] * len(special)
    expectations = {"content": content, f"last:{last}": content[-last:]}
    for perturb, expected in expectations.items():
        if content:
            assert movable_rows(mask, perturb).nonzero().flatten().tolist() == expected
        else:
            with pytest.raises(InputError, match="only special tokens"):
                movable_rows(mask, perturb)
    assert mask.tolist() == special

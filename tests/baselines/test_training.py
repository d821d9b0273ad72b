from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.baselines.conftest import fit_task
from tide.baselines.base import FitSettings, Training
from tide.baselines.fit import Labelled
from tide.baselines.training import batches, train
from tide.core.errors import InputError, validated


@pytest.mark.parametrize("turns", [False, True])
def test_training_keeps_the_best_parameters_on_validation_rows(turns: bool) -> None:
    """Training moves a number to 1; the loss of the validation rows is least at 0.3 or at 1."""
    number, seen = nn.Parameter(torch.zeros(())), set()

    def loss(rows: list[int]) -> torch.Tensor:
        kept_back = max(rows) >= 190
        assert kept_back == (min(rows) >= 190)
        if not kept_back:
            seen.update(rows)
        return (number - (0.3 if turns and kept_back else 1.0)) ** 2

    steps = []
    settings = FitSettings(steps=80, learning_rate=0.03, batch_size=8)
    job = fit_task(nn.Linear(1, 1), None, Labelled([], []), settings)
    job.progress = lambda what, done, total: steps.append(done)
    train([{"params": [number]}], loss, [3] * 200, job, "a number")
    assert seen <= set(range(190))
    if turns:
        assert len(steps) < 80
        assert abs(number.item() - 0.3) < 0.2
    else:
        assert len(steps) == 80
        assert number.item() > 0.9


def test_settings_by_the_size_of_the_model() -> None:
    def by_size(size: int, **settings: Any) -> Training:
        with torch.device("meta"):
            return validated(FitSettings, settings).training(nn.Embedding(size, 1))

    assert by_size(4_000_000).rank == 32
    assert by_size(8_000_000_000).rank == 64
    assert by_size(100_000_000, rank=8, steps=7).rank == 8
    assert by_size(100_000_000, rank=8, steps=7).steps == 7


def test_without_rows_there_is_nothing_to_draw_batches_from() -> None:
    with pytest.raises(InputError, match="no text is left to train on"):
        next(batches([], 4, 0))

"""The fit of `quark` measures the divergence from the original model, in any precision."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.baselines.tasks import tiny_task
from tide.baselines import unlearning
from tide.baselines.base import FitSettings
from tide.baselines.unlearning import Quark


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quark_fit_keeps_the_original_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    settings = FitSettings(steps=8, batch_size=8, learning_rate=1e-2, rank=4)
    task = tiny_task(tmp_path, monkeypatch, settings, dtype)
    as_it_was = copy.deepcopy(task.model)
    # The batches that are read, and the logits of the original model for their written tokens.
    rows: list[Tensor] = []
    originals: list[Tensor] = []
    pad, loss = unlearning.right_pad, unlearning.unlearning_loss

    def padded(*arguments: Any) -> Any:
        padded_rows = pad(*arguments)
        rows.append(padded_rows[0])
        return padded_rows

    def noted(logits: Tensor, before: Tensor, tokens: Tensor) -> Tensor:
        originals.append(before)
        return loss(logits, before, tokens)

    monkeypatch.setattr(unlearning, "right_pad", padded)
    monkeypatch.setattr(unlearning, "unlearning_loss", noted)
    fitted = Quark.fit(task)
    assert len(originals) == 8
    for ids, before in zip(rows, originals, strict=True):
        with torch.no_grad():
            wanted = as_it_was(input_ids=ids).logits.float().flatten(0, 1)
        nearest = torch.cdist(before, wanted, compute_mode="donot_use_mm_for_euclid_dist")
        assert float(nearest.amin(dim=1).max()) < 1e-3
    assert fitted.tensors["codes"].dtype == torch.float32

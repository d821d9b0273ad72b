"""The fit of `quark`: its divergence is from the model as it was, in any precision."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import save_causal_lm
from tide.baselines import quark
from tide.baselines.common import rollouts
from tide.baselines.common.fitting import FitTask
from tide.baselines.common.labelled import Labelled
from tide.baselines.common.settings import FitSettings
from tide.baselines.quark import Quark
from tide.data.labelled import LabelledText
from tide.engines.local.engine import load_model
from tide.scorers.base import CallableScorer

WORDS = ["The", "weather", "today", "is", "fine", "and", "the", "people", "are", "kind"]


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_model_as_it_was_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, dtype: str
) -> None:
    tokenizer, model = load_model(str(save_causal_lm(tmp_path, "gpt2")), torch.device("cpu"), dtype)
    as_it_was = copy.deepcopy(model)
    texts = [
        LabelledText(f"{' '.join(WORDS[: 2 + i % 8])} {i}", float(i % 2), "a") for i in range(480)
    ]
    judge = CallableScorer(lambda texts: [min(len(text), 100) / 100 for text in texts])
    monkeypatch.setattr(rollouts, "load_scorer", lambda spec: judge)
    # All that is read, and what was said of it before.
    rows: list[Tensor] = []
    told: list[Tensor] = []
    pad, loss = quark.right_pad, quark.unlearning_loss

    def padded(*arguments: Any) -> Any:
        found = pad(*arguments)
        rows.append(found[0])
        return found

    def noted(logits: Tensor, before: Tensor, tokens: Tensor) -> Tensor:
        told.append(before)
        return loss(logits, before, tokens)

    monkeypatch.setattr(quark, "right_pad", padded)
    monkeypatch.setattr(quark, "unlearning_loss", noted)
    settings = FitSettings(steps=8, batch_size=8, learning_rate=1e-2, rank=rank)
    fitted = Quark.fit(
        FitTask(
            name="tiny",
            tokenizer=tokenizer,
            model=model,
            data=Labelled(texts, []),
            settings=settings.training(model),
            progress=lambda what, done, total: None,
            scorer="judge",
        )
    )
    assert len(told) == 8
    for ids, before in zip(rows, told, strict=True):
        with torch.no_grad():
            wanted = as_it_was(input_ids=ids).logits.float().flatten(0, 1)
        nearest = torch.cdist(before, wanted, compute_mode="donot_use_mm_for_euclid_dist")
        assert float(nearest.amin(dim=1).max()) < 1e-3
    assert fitted.tensors["codes"].dtype == torch.float32

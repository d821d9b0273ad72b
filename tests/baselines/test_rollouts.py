"""Texts that the model writes during a fit: they do not depend on batches, and are scored."""

from __future__ import annotations

import copy
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from tests.baselines.conftest import fit_task
from tests.models import save_causal_lm
from tide.baselines import rollouts, unlearning
from tide.baselines.base import FitSettings
from tide.baselines.fit import FitTask, Labelled
from tide.baselines.rollouts import beginnings, held_out, judged, roll_out
from tide.baselines.training import right_pad
from tide.baselines.unlearning import Quark
from tide.data.texts import LabelledText
from tide.engines.local.engine import load_model
from tide.scorers.base import CallableScorer, is_nearly_empty

_WORDS = ["The", "weather", "today", "is", "fine", "and", "the", "people", "are", "kind"]


def tiny_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: FitSettings, dtype: str = "auto"
) -> FitTask:
    """A tiny model, texts of two kinds, and a scorer that prefers short texts."""
    tokenizer, model = load_model(str(save_causal_lm(folder, "gpt2")), torch.device("cpu"), dtype)
    texts = [
        LabelledText(text=f"{' '.join(_WORDS[: 2 + i % 8])} {i}", toxicity=i % 2, group="a")
        for i in range(480)
    ]
    judge = CallableScorer(lambda texts: [min(len(text), 100) / 100 for text in texts])
    monkeypatch.setattr(rollouts, "load_scorer", lambda spec: judge)
    return fit_task(model, tokenizer, Labelled(texts, []), settings)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FitTask:
    return tiny_task(tmp_path, monkeypatch, FitSettings(steps=2, batch_size=8))


def test_rollouts_do_not_depend_on_batches(task: FitTask, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = beginnings(task)
    texts = task.tokenize([text.text for text in task.texts()[0]])
    assert len(prompts) == 64
    for prompt, text in zip(prompts, texts, strict=False):  # the first half of each text
        assert prompt == text[: min(12, -(-len(text) // 2))]
    whole = roll_out(task, prompts)
    assert [rollout.prompt for rollout in whole] == prompts
    assert all(0 < len(rollout.written) <= 20 for rollout in whole)
    written = task.tokenizer.batch_decode(
        [rollout.written for rollout in whole], skip_special_tokens=True
    )
    assert [rollout.toxicity for rollout in whole] == [
        0 if is_nearly_empty(text) else min(len(text), 100) / 100 for text in written
    ]
    monkeypatch.setattr(rollouts, "_BATCH", 7)
    assert roll_out(task, prompts) == whole
    assert roll_out(task, prompts, seed=1) != whole


def test_rollouts_read_front_embeddings_and_do_not_keep_them(task: FitTask) -> None:
    """The embedding of a token in front has the effect of that token in front."""
    prompts, first = beginnings(task)[:8], 7
    front = task.model.get_input_embeddings().weight[first : first + 1].detach()
    after_front = roll_out(task, prompts, front=front)
    longer = roll_out(task, [[first, *prompt] for prompt in prompts])
    assert [rollout.written for rollout in after_front] == [rollout.written for rollout in longer]
    assert [rollout.prompt for rollout in after_front] == prompts


def test_figures_of_rollouts() -> None:
    """Two of four are toxic; the `danger` of one of these is below that of a non-toxic one."""
    rows = [rollouts.Rollout([1], [2], toxicity) for toxicity in (0.9, 0.1, 0.5, 0.4)]
    fitted = judged({}, rows, [3.0, 1.0, 1.5, 2.0])
    assert fitted.held_out == {"toxic": 0.5, "auc": 0.75}
    alike = judged({}, rows[1:2], [1.0])
    assert alike.held_out == {"toxic": 0.0}
    for count, seen in ((20, 10), (64, 32), (200, 40), (4000, 400)):
        learned, measured = held_out(range(count))
        assert (len(measured), len(learned)) == (seen, count - seen)
        assert not set(measured) & set(learned)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quark_fit_measures_divergence_from_the_original_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    settings = FitSettings(steps=8, batch_size=8, learning_rate=1e-2, rank=4)
    task = tiny_task(tmp_path, monkeypatch, settings, dtype)
    original = copy.deepcopy(task.model)
    pad = Mock(wraps=unlearning.right_pad)
    loss = Mock(wraps=unlearning.unlearning_loss)
    monkeypatch.setattr(unlearning, "right_pad", pad)
    monkeypatch.setattr(unlearning, "unlearning_loss", loss)
    fitted = Quark.fit(task)
    assert loss.call_count == 8
    for batch, of_batch in zip(pad.call_args_list, loss.call_args_list, strict=True):
        ids, _ = right_pad(*batch.args)
        _, before, _ = of_batch.args
        with torch.no_grad():
            expected = original(input_ids=ids).logits.float().flatten(0, 1)
        nearest = torch.cdist(before, expected, compute_mode="donot_use_mm_for_euclid_dist")
        assert float(nearest.amin(dim=1).max()) < 1e-3
    assert fitted.tensors["codes"].dtype == torch.float32

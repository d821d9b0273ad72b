"""Texts that the model writes during a fit: they do not depend on batches, and are scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.baselines.tasks import tiny_task
from tide.baselines import rollouts
from tide.baselines.base import FitSettings
from tide.baselines.fit import FitTask
from tide.baselines.rollouts import beginnings, held_out, judged, roll_out
from tide.scorers.base import is_nearly_empty


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FitTask:
    return tiny_task(tmp_path, monkeypatch, FitSettings(steps=2, batch_size=8))


def test_prompts_are_the_first_halves(task: FitTask) -> None:
    prompts = beginnings(task)
    wholes = task.tokenize([text.text for text in task.texts()[0]])
    assert len(prompts) == 64
    for prompt, whole in zip(prompts, wholes, strict=False):
        assert prompt == whole[: min(12, -(-len(whole) // 2))]


def test_batches_change_nothing(task: FitTask, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = beginnings(task)
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
    got = roll_out(task, prompts, front=front)
    longer = roll_out(task, [[first, *prompt] for prompt in prompts])
    assert [rollout.written for rollout in got] == [rollout.written for rollout in longer]
    assert [rollout.prompt for rollout in got] == prompts


def test_figures() -> None:
    """Two of four are toxic; the `danger` of one of these is below that of a non-toxic one."""
    rows = [rollouts.Rollout([1], [2], toxicity) for toxicity in (0.9, 0.1, 0.5, 0.4)]
    fitted = judged({}, rows, [3.0, 1.0, 1.5, 2.0])
    assert fitted.held_out == {"toxic": 0.5, "auc": 0.75}
    alike = judged({}, rows[1:2], [1.0])
    assert alike.held_out == {"toxic": 0.0}
    for rows, seen in ((20, 10), (64, 32), (200, 40), (4000, 400)):
        learned, measured = held_out(range(rows))
        assert (len(measured), len(learned)) == (seen, rows - seen)
        assert not set(measured) & set(learned)

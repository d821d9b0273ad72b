"""A guard in this process, trained for seconds to answer in its family's words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models import save_causal_lm
from tests.scorers.guards.tiny import FAMILY, exchanges, prompt_of, save_guard, toxic
from tide.core.errors import ScorerError
from tide.scorers import load_scorer
from tide.scorers.base import Exchange, Scorer, score_texts
from tide.scorers.guards import FAMILIES, LocalGuard
from tide.scorers.wrappers import WindowedScorer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_guard(tmp_path_factory.mktemp("guards") / "qwen3guard-gen")


def by_hand(folder: Path, exchange: Exchange) -> float:
    """The probability of the toxic verdict, computed with transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    verdicts = FAMILIES[FAMILY].verdicts
    ids = tokenizer(prompt_of(tokenizer, exchange) + "Safety:", add_special_tokens=False)
    with torch.inference_mode():
        logits = model(torch.tensor([ids["input_ids"]])).logits[0, -1]
    probabilities = logits.double().softmax(-1)
    weights = {tokenizer(f" {word}")["input_ids"][0]: verdicts[word] for word in verdicts}
    total = sum(float(probabilities[first]) for first in weights)
    return sum(float(probabilities[first]) * weight for first, weight in weights.items()) / total


def test_a_guard_scores_as_by_hand(folder: Path) -> None:
    scorer = load_scorer(f"guard:{folder}")
    assert isinstance(scorer, Scorer)
    assert scorer.name.startswith(f"guard:{folder}@")
    assert scorer.name.endswith(f"#{FAMILY}")
    judged = list(exchanges(8))
    assert scorer.score(judged) == pytest.approx(
        [by_hand(folder, each) for each in judged], abs=0.01
    )


def test_the_result_does_not_depend_on_the_batch(folder: Path) -> None:
    asked_about = list(exchanges(40))
    single, many = (LocalGuard(str(folder)) for _ in range(2))
    single.batch, many.batch = 1, 64
    scores = many.score(asked_about)
    assert scores == pytest.approx(single.score(asked_about), abs=1e-5)
    assert [score > 0.5 for score in scores] == [toxic(exchange) for exchange in asked_about]
    assert many.score([]).shape == (0,)


def test_a_text_that_is_too_long_is_an_error_and_not_cut(folder: Path) -> None:
    scorer = load_scorer(f"guard:{folder}")
    long = "the weather is fine " * 80 + "rude"
    with pytest.raises(ScorerError, match=r"too long for the context of .* tokens; use windows:"):
        score_texts(scorer, [long])
    windows = WindowedScorer(scorer, 6)
    assert score_texts(windows, [long]).values[0] > 0.5


def test_a_model_that_gives_no_verdicts(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ScorerError, match=r"instead of a verdict \(unsafe, safe\); is it a guard"):
        load_scorer(f"guard:{folder}#llama-guard")
    with pytest.raises(ScorerError, match="its chat template failed"):
        load_scorer(f"guard:{save_causal_lm(tmp_path, 'gpt2')}#llama-guard")
    with pytest.raises(ScorerError, match="cannot be loaded"):
        load_scorer(f"guard:{tmp_path}/none#llama-guard")

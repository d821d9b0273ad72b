"""A guard in this process, compared with transformers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models import save_causal_lm
from tests.scorers.guards.tiny import FAMILY, TEXTS, VERDICTS, save_guard
from tide.core.errors import ScorerError
from tide.scorers import load_scorer
from tide.scorers.base import Exchange, score_texts
from tide.scorers.guards import FAMILIES, LocalGuard
from tide.scorers.wrappers import split_words


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_guard(tmp_path_factory.mktemp("guards") / "qwen3guard-gen")


def exchanges(count: int) -> list[Exchange]:
    """Every second one has a question."""
    dice = random.Random(0)
    words = " ".join(TEXTS).split()
    made = []
    for number in range(count):
        question = " ".join(dice.choices(words, k=4)) if number % 2 else ""
        made.append(Exchange(question, " ".join(dice.choices(words, k=dice.randint(2, 6)))))
    return made


def by_hand(folder: Path, judged: Sequence[Exchange]) -> Iterator[float]:
    """Yield the probabilities of toxic verdicts, computed with transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    first = [tokenizer(f" {verdict}")["input_ids"][0] for verdict in VERDICTS]
    weights = torch.tensor(list(VERDICTS.values())).double()
    for exchange in judged:
        prompt = tokenizer.apply_chat_template(FAMILIES[FAMILY].turns(exchange), tokenize=False)
        ids = tokenizer(f"{prompt}Safety:", add_special_tokens=False, return_tensors="pt")
        with torch.inference_mode():
            logits = model(**ids).logits[0, -1]
        probabilities = logits.double().softmax(-1)[first]
        yield float(probabilities @ weights / probabilities.sum())


def test_a_guard_scores_as_by_hand_in_any_batch(folder: Path) -> None:
    scorer = load_scorer(f"guard:{folder}")
    assert isinstance(scorer, LocalGuard)
    assert scorer.name.startswith(f"guard:{folder}@")
    assert scorer.name.endswith(f"#{FAMILY}")
    judged = exchanges(20)
    expected = list(by_hand(folder, judged))
    assert max(expected) - min(expected) > 0.05
    for batch in (1, 7, 64):
        scorer.batch = batch
        assert scorer.score(judged) == pytest.approx(expected, abs=1e-5)
    assert scorer.score([]).shape == (0,)


def test_a_text_that_is_too_long_is_an_error_and_not_cut(folder: Path) -> None:
    scorer = load_scorer(f"guard:{folder}")
    long = " ".join(TEXTS * 20)
    with pytest.raises(ScorerError, match=r"too long for the context of .* tokens; use windows:"):
        score_texts(scorer, [long])
    worst = max(scorer.score(split_words(long, 6)))
    windows = load_scorer(f"windows:6:guard:{folder}")
    assert score_texts(windows, [long]).values == pytest.approx([worst])


def test_a_model_that_gives_no_verdicts(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ScorerError, match=r"instead of a verdict \(unsafe, safe\); is it a guard"):
        load_scorer(f"guard:{folder}#llama-guard")
    with pytest.raises(ScorerError, match="its chat template failed"):
        load_scorer(f"guard:{save_causal_lm(tmp_path, 'gpt2')}#llama-guard")
    with pytest.raises(ScorerError, match="cannot be loaded"):
        load_scorer(f"guard:{tmp_path}/none#llama-guard")

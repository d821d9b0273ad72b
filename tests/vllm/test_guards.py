"""Guards and classifiers that the real vLLM serves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig

from tests.models import CONTEXT, VOCAB, save_tokenizer
from tests.scorers.guards.tiny import TEXTS, save_guard
from tests.vllm.servers import serving_vllm
from tide.scorers import load_scorer
from tide.scorers.guards import LocalGuard

pytestmark = pytest.mark.vllm


def test_a_server_that_fills_in_the_template(tmp_path: Path) -> None:
    folder = save_guard(tmp_path / "guard")
    expected = LocalGuard(str(folder), "qwen3guard").score(TEXTS)
    name = "my-qwen3guard-gen"
    with serving_vllm(folder, tmp_path / "log", "--served-model-name", name) as url:
        scorer = load_scorer(f"guard:{name}@{url}")
        assert scorer.score(TEXTS) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_classify(tmp_path: Path) -> None:
    folder = tmp_path / "classifier"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=CONTEXT, id2label={0: "ok", 1: "toxic"},
        label2id={"ok": 0, "toxic": 1},
    )  # fmt: skip
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    save_tokenizer(folder)
    expected = load_scorer(f"hf:{folder}").score(TEXTS)
    with serving_vllm(folder, tmp_path / "log") as url:
        for number, right in ((1, expected), (0, 1 - expected)):
            scorer = load_scorer(f"classifier:{url}#{number}")
            assert scorer.score(TEXTS) == pytest.approx(right, abs=1e-3)

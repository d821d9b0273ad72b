"""Guards and classifiers that the real vLLM serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig

from tests.models import CONTEXT, VOCAB, save_tokenizer
from tests.scorers.guards.tiny import TEXTS, save_guard
from tests.vllm.servers import VllmProcess
from tide.scorers import load_scorer
from tide.scorers.base import score_texts
from tide.scorers.guards import LocalGuard

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_guard(tmp_path_factory.mktemp("guard"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    return LocalGuard(str(folder), "qwen3guard").score(TEXTS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    started: list[VllmProcess] = []

    def start(model: Path, *more: str) -> str:
        process = VllmProcess(tmp_path / "log", model, more)
        started.append(process)
        process.start()
        process.wait()
        return process.url

    yield start
    for process in started:
        process.kill()


def test_a_server_that_fills_in_the_template(folder: Path, expected: Any, server: Any) -> None:
    url = server(folder, "--served-model-name", "my-qwen3guard-gen")
    scorer = load_scorer(f"guard:my-qwen3guard-gen@{url}")
    assert scorer.score(TEXTS) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_classify(tmp_path: Path, server: Any) -> None:
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
    url = server(folder)
    assert load_scorer(f"classifier:{url}").score(TEXTS) == pytest.approx(expected, abs=1e-3)
    both = score_texts(load_scorer(f"classifier:{url}#0,1"), TEXTS)
    assert both.attributes["class-0"] == pytest.approx(1 - expected, abs=1e-3)

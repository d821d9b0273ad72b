from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from tests.models import save_tokenizer
from tide.core.errors import InputError, ScorerError
from tide.scorers import load_scorer

package: Any = pytest.importorskip("detoxify.detoxify")

LABELS = ["toxic", "severe_toxic", "insult"]


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint in the form of the project's releases, with a tiny random BERT inside."""
    config = BertConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=len(LABELS),
    )  # fmt: skip
    torch.manual_seed(0)
    folder = tmp_path / "bert"
    config.save_pretrained(folder)
    save_tokenizer(folder)
    checkpoint = {
        "config": {
            "arch": {
                "args": {
                    "model_type": str(folder),
                    "model_name": "BertForSequenceClassification",
                    "tokenizer_name": "PreTrainedTokenizerFast",
                    "num_classes": len(LABELS),
                }
            },
            "dataset": {"args": {"classes": LABELS}},
        },
        "state_dict": BertForSequenceClassification(config).state_dict(),
    }
    path = tmp_path / "toxic-0123.ckpt"
    torch.save(checkpoint, path)
    monkeypatch.setitem(package.MODEL_URLS, "original", path.as_uri())
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    return path


@pytest.mark.usefixtures("release")
def test_scores_as_the_package_does() -> None:
    scorer = load_scorer("detoxify:original")
    theirs = package.Detoxify("original").predict(["The weather is fine", "Rain"])["toxicity"]
    assert scorer.score(["The weather is fine", "Rain"]) == pytest.approx(theirs, abs=1e-5)
    assert scorer.name.startswith("detoxify:original@")


def test_a_checkpoint_that_would_run_code_is_refused(release: Path) -> None:
    torch.save({"config": Path("a path is an object, not a tensor")}, release)
    with pytest.raises(ScorerError, match="cannot be loaded"):
        load_scorer("detoxify:original")


def test_unknown_variant() -> None:
    with pytest.raises(InputError, match="unknown variant 'orignal'"):
        load_scorer("detoxify:orignal")

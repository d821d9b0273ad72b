"""Guards and classifiers that the real vLLM serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import save_classifier
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
    # On a CPU, vLLM has no attention for heads as narrow as those of the other tests.
    wide = {"hidden_size": 64, "num_attention_heads": 2}
    folder = save_classifier(tmp_path / "classifier", ["ok", "toxic"], **wide)
    expected = load_scorer(f"hf:{folder}").score(TEXTS)
    with serving_vllm(folder, tmp_path / "log") as url:
        for number, right in ((1, expected), (0, 1 - expected)):
            scorer = load_scorer(f"classifier:{url}#{number}")
            assert scorer.score(TEXTS) == pytest.approx(right, abs=1e-3)

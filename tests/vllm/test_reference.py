"""Perplexity under a reference model that vLLM runs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tide.engines.vllm import VllmEngine
from tide.evaluation import judging
from tide.evaluation.judging import Reference

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


def test_perplexity_is_the_same_as_by_transformers(
    prompts: list[str], engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(prompt, " and the people are kind.") for prompt in prompts[:20]]
    pairs += [("The peo", "ple are kind"), (prompts[0], "")]
    # vLLM for the CPU has no attention for the heads of the bundled reference.
    transformers = Reference("pocket", dtype="float32")
    expected = transformers.measure(pairs)
    transformers.close()
    monkeypatch.setattr(judging, "load_engine", lambda *_: nullcontext(engine))
    likelihoods = Reference("pocket", "vllm").measure(pairs)
    for here, there in zip(expected, likelihoods, strict=True):
        assert there.num_tokens == here.num_tokens
        assert there.nll == (None if here.nll is None else pytest.approx(here.nll, rel=1e-4))

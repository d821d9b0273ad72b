"""Perplexity under a reference model that vLLM runs."""

from __future__ import annotations

import os

import pytest

from tests.vllm.servers import cpu_environment
from tide.evaluation.perplexity import Reference

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


def test_perplexity_is_the_same_as_by_transformers(
    prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cpu_environment(1).items():
        monkeypatch.setitem(os.environ, name, value)
    pairs = [(prompt, " and the people are kind.") for prompt in prompts[:20]]
    pairs += [("The peo", "ple are kind"), (prompts[0], "")]
    found = []
    for engine, options in (("transformers", {}), ("vllm", {"enforce_eager": True})):
        # vLLM for the CPU has no attention for the heads of the bundled reference.
        reference = Reference("pocket", engine, dtype="float32", **options)
        found.append(reference.measure(pairs))
        reference.close()
    for here, there in zip(*found, strict=True):
        assert there.num_tokens == here.num_tokens
        assert there.nll == (None if here.nll is None else pytest.approx(here.nll, rel=1e-4))

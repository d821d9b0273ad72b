"""Decode steps in fixed buffers, repeated without a GPU: only the capture itself is left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.models import CONFIGS
from tide.core.errors import EngineError, InputError
from tide.core.settings import Sampling
from tide.engines.local.cuda_graphs import StepGraphs
from tide.engines.local.decode import Forward, Stream
from tide.engines.local.engine import TransformersEngine

STEPS = 6
PLAIN = sorted(set(CONFIGS) - {"gemma2"})  # Gemma 2 has sliding windows


def as_it_is(step: Callable[[], None]) -> Callable[[], None]:
    step()  # a capture warms up: what that leaves in the buffers must not matter
    return step


def model_of(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval().requires_grad_(False)


def streams(model: torch.nn.Module, graphs: StepGraphs, lengths: list[int]) -> list[Stream]:
    """The same rows read with captured steps and without."""
    rows = [torch.randn(length, model.get_input_embeddings().embedding_dim) for length in lengths]
    forwards = [Forward(model), Forward(model)]
    forwards[0].graphs = graphs
    return [Stream(forward, rows, STEPS) for forward in forwards]


@torch.inference_mode()
@pytest.mark.parametrize("kind", PLAIN)
def test_captured_steps_equal_the_models_own(kind: str) -> None:
    """Batches of other sizes and lengths come in between, some in the same buffers."""
    model = model_of(kind)
    graphs = StepGraphs(model, as_it_is)
    for lengths in ([5, 3, 9], [12, 12, 1, 2], [4], [2, 7, 7]):
        ours, own = streams(model, graphs, lengths)
        assert ours._captured is not None
        for step in range(STEPS):
            tokens = torch.arange(len(lengths)) * 7 + step
            ours.advance(tokens)
            own.advance(tokens)
            torch.testing.assert_close(ours.logits, own.logits, rtol=1e-4, atol=1e-4)
    assert list(graphs._shapes) == [(1, 64), (4, 64)]


@torch.inference_mode()
def test_what_another_batch_left_does_not_matter() -> None:
    model = model_of("llama")
    graphs = StepGraphs(model, as_it_is)
    ours, _ = streams(model, graphs, [9, 9])
    for layer in graphs._shapes[2, 64]._layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    ours, own = streams(model, graphs, [3, 2])
    for stream in (ours, own):
        stream.advance(torch.tensor([5, 6]))
    torch.testing.assert_close(ours.logits, own.logits, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_few_shapes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tide.engines.local.cuda_graphs._SHAPES", 2)
    model = model_of("gpt2")
    graphs = StepGraphs(model, as_it_is)
    for rows in (1, 2, 1, 4):
        streams(model, graphs, [3] * rows)
    assert list(graphs._shapes) == [(1, 64), (4, 64)]


@torch.inference_mode()
def test_sliding_windows_go_the_models_own_way() -> None:
    ours, _ = streams(model_of("gemma2"), StepGraphs(model_of("gemma2"), as_it_is), [5, 3])
    assert ours._captured is None


@torch.inference_mode()
def test_a_capture_that_fails_or_computes_something_else_is_an_error() -> None:
    def fails(step: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")

    model = model_of("gpt2")
    with pytest.raises(EngineError, match=r"cuda_graphs.*not permitted"):
        streams(model, StepGraphs(model, fails), [3])

    def forgets(step: Callable[[], None]) -> Callable[[], None]:
        model.transformer.ln_f.weight.mul_(1.5)
        return step

    with pytest.raises(EngineError, match=r"cuda_graphs.*other logits"):
        streams(model, StepGraphs(model, forgets), [3])


def test_needs_a_cuda_device() -> None:
    with pytest.raises(InputError, match=r"cuda_graphs.*'cpu'"):
        TransformersEngine("pocket", device="cpu", cuda_graphs=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_completions_on_cuda_equal_those_without_graphs() -> None:
    engines = [TransformersEngine("pocket", device="cuda", cuda_graphs=on) for on in (True, False)]
    prompts = [prompt.embeddings for prompt in engines[0].embed(["The weather", "Rain fell on"])]
    written = [engine.complete(prompts, Sampling(temperature=0), [1, 2]) for engine in engines]
    assert written[0] == written[1]

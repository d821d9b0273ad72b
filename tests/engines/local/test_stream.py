from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.writing import completed
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models import CONFIGS, save_causal_lm
from tide.core.errors import CompletionError
from tide.core.settings import Sampling
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.stream import Forward, Stream

LENGTHS = [20, 3, 11, 3]
STEPS = 6


@pytest.fixture(scope="module", params=list(CONFIGS))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    return TransformersEngine(save_causal_lm(tmp_path_factory.mktemp("lm"), request.param))


def from_scratch(engine: TransformersEngine, rows: list[list[int]]) -> Tensor:
    """Next-token logits of each row, read alone and without a cache."""
    ids = [torch.tensor([row], device=engine.device) for row in rows]
    return torch.stack([engine.model(one).logits[0, -1] for one in ids])


def stream_of(engine: TransformersEngine, rows: list[list[int]], **options: bool) -> Stream:
    embeddings = [engine._embed_ids(row) for row in rows]
    return Stream(Forward(engine.model), embeddings, **options)


def make_rows() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 300, (n,), generator=generator).tolist() for n in LENGTHS]


def close(got: Tensor, expected: Tensor) -> bool:
    return torch.allclose(got, expected, atol=1e-3 * float(expected.abs().max()))


@torch.inference_mode()
def test_the_output_layer_reads_contiguous_states(engine: TransformersEngine) -> None:
    """A GPU reads the layer's weights once for each row of a strided view."""
    head, seen = engine.model.get_output_embeddings(), []
    with head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].is_contiguous())):
        engine._forward.read([torch.zeros(5, engine.dim, device=engine.device)] * 3)
    assert seen == [True]


@torch.inference_mode()
@pytest.mark.parametrize("together", [False, True])
def test_a_stream_reads_as_the_model_does(engine: TransformersEngine, together: bool) -> None:
    """With rows in any order of length, also with sliding windows (Gemma 2)."""
    rows = make_rows()
    stream = stream_of(engine, rows, together=together)
    for step in range(STEPS + 1):
        assert close(stream.logits, from_scratch(engine, rows))
        if step < STEPS:
            tokens = torch.arange(4, device=engine.device) * 7 + step
            stream.advance(tokens)
            rows = [[*row, int(token)] for row, token in zip(rows, tokens, strict=True)]


@torch.inference_mode()
def test_a_fork_reads_every_candidate(engine: TransformersEngine) -> None:
    """Twice, each of four rows gets three candidates, and four of the twelve are kept."""
    rows = make_rows()
    stream = stream_of(engine, rows)
    for step in range(2):
        candidates = (torch.arange(12, device=engine.device) * 11 + step).view(4, 3)
        stream.select([row for row in range(4) for _ in range(3)])
        stream.advance(candidates.flatten())
        forked = [[*rows[i], int(token)] for i in range(4) for token in candidates[i]]
        assert close(stream.logits, from_scratch(engine, forked))
        kept = [1, 3, 8, 9]
        stream.select(kept)
        rows = [forked[i] for i in kept]
        assert close(stream.logits, from_scratch(engine, rows))
    stream.advance(torch.tensor([5, 6, 7, 8], device=engine.device))
    assert close(stream.logits, from_scratch(engine, [[*row, 5 + i] for i, row in enumerate(rows)]))


def test_a_row_that_resumes_first_is_where_the_model_is() -> None:
    """There are no logits yet to take the device from; "meta" differs from the CPU."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    stream = Stream(Forward(LlamaForCausalLM(config).to("meta")))
    keys = torch.zeros(1, 4, 5, 8, device="meta")
    stream.resume([(keys, keys), (keys, keys)])
    stream.advance(torch.zeros(1, dtype=torch.int64, device="meta"))
    assert stream.logits.device.type == "meta"


@pytest.mark.parametrize(
    ("bad", "temperature", "new"), [(float("nan"), 0.0, 1), (float("inf"), 0.1, 5)]
)
def test_logits_that_are_not_finite_are_an_error(
    tmp_path: Path, bad: float, temperature: float, new: int
) -> None:
    """They would give an empty text, which is not scored."""
    broken = TransformersEngine(save_causal_lm(tmp_path, "llama"))
    (good, other) = broken.embed(["a good prompt", "another"])
    row = Sampling(temperature=temperature, max_new_tokens=new)
    assert len(completed(broken, [good], row, [1])) == 1
    with torch.no_grad():
        broken.model.model.norm.weight[0] = bad
    with pytest.raises(CompletionError, match="NaN or infinite"):
        completed(broken, [good, other], row, [1, 2])

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from tests.generated import examples
from tests.models import CONFIGS, CONTEXT, save_causal_lm
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.stream import Forward, Stream

# One step: lengths of the prompts that enter, numbers of the rows that leave, and the number of
# tokens that are read before the next rows enter.
STEP = st.tuples(
    st.lists(st.integers(1, 14) | st.integers(1, CONTEXT), max_size=4),
    st.sets(st.integers(0, 11), max_size=5),
    st.integers(0, 3),
)


@pytest.fixture(scope="module", params=list(CONFIGS))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    return TransformersEngine(save_causal_lm(tmp_path_factory.mktemp("lm"), request.param))


@torch.inference_mode()
@given(steps=st.lists(STEP, min_size=1, max_size=8))
@examples(4, 150)
def test_logits_are_those_of_a_fresh_read(
    engine: TransformersEngine, steps: list[tuple[list[int], set[int], int]]
) -> None:
    """Whichever rows of any lengths enter and leave, also with sliding windows (Gemma 2)."""
    stream = Stream(engine.forward)
    rows: list[list[int]] = []
    for step, (lengths, leaving, reads) in enumerate(steps):
        order = stream.leave([number for number in sorted(leaving) if number < len(rows)])
        assert set(order) == set(range(len(rows))) - leaving
        rows = [rows[number] for number in order]
        entering = [
            [3 + (7 * i + step + length) % 290 for i in range(min(length, CONTEXT - 24))]
            for length in lengths
        ]
        if entering:
            stream.enter([engine.embed_tokens(row) for row in entering])
        rows += entering
        for seed in range(reads if rows else 0):
            tokens = [3 + (11 * seed + 5 * number) % 290 for number in range(len(rows))]
            stream.advance(torch.tensor(tokens, device=engine.device))
            for row, token in zip(rows, tokens, strict=True):
                row.append(token)
        if rows:
            alone = [torch.tensor([row], device=engine.device) for row in rows]
            expected = torch.stack([engine.model(row).logits[0, -1] for row in alone])
            assert torch.allclose(stream.logits, expected, atol=1e-3 * float(expected.abs().max()))


@torch.inference_mode()
def test_the_output_layer_reads_contiguous_states(engine: TransformersEngine) -> None:
    """A GPU reads the layer's weights once for each row of a strided view."""
    head, seen = engine.model.get_output_embeddings(), []
    with head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].is_contiguous())):
        engine.forward.read([torch.zeros(5, engine.dim, device=engine.device)] * 3)
    assert seen == [True]


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

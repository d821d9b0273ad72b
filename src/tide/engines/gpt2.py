"""One decoding step of GPT-2 without the layers of Python around it in transformers.

In a model as small as the bundled one those take longer than the arithmetic. Everything is read
from the loaded model, and `lean_step` returns nothing unless the results agree with its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, scaled_dot_product_attention

_TOLERANCE = 1e-4  # of the largest logit, in float32


class Gpt2Step:
    """Next-token logits (B, V) for `tokens` (B,) at `positions` (B,), which join the `cache`.

    mask: (B, cached + 1), 1 = real; None where nothing is padding.
    """

    def __init__(self, model: Any) -> None:
        body = model.transformer
        self._tables = body.wte.weight, body.wpe.weight
        self._blocks = [
            (_norm(block.ln_1), block.attn, _norm(block.ln_2), block.mlp) for block in body.h
        ]
        self._norm, self._head = _norm(body.ln_f), model.lm_head

    def __call__(
        self, tokens: Tensor, positions: Tensor, cache: Any, mask: Tensor | None
    ) -> Tensor:
        x = embedding(tokens, self._tables[0]) + embedding(positions, self._tables[1])
        rows, width = x.shape
        # Added to the attention scores as it is; a boolean one is converted in every layer.
        bias = None if mask is None else mask[:, None, None].to(x.dtype).log()
        for (norm_1, attention, norm_2, mlp), layer in zip(self._blocks, cache.layers, strict=True):
            qkv = attention.c_attn.forward(layer_norm(x, *norm_1))
            query, key, value = qkv.view(rows, 3, attention.num_heads, 1, -1).unbind(1)
            keys, values = layer.update(key, value)
            mixed = scaled_dot_product_attention(
                query, keys, values, attn_mask=bias, scale=attention.scaling
            )
            x = x + attention.c_proj.forward(mixed.reshape(rows, width))
            inner = mlp.act.forward(mlp.c_fc.forward(layer_norm(x, *norm_2)))
            x = x + mlp.c_proj.forward(inner)
        logits: Tensor = self._head.forward(layer_norm(x, *self._norm))
        return logits


def _norm(module: Any) -> tuple[Any, ...]:
    return module.normalized_shape, module.weight, module.bias, module.eps


@torch.inference_mode()
def lean_step(model: Any) -> Gpt2Step | None:
    """A Gpt2Step that gives what `model` itself gives; None for any other model."""
    from transformers import GPT2LMHeadModel  # noqa: PLC0415  (slow import)

    if type(model) is not GPT2LMHeadModel or model.dtype != torch.float32:
        return None
    if model.config.add_cross_attention:
        return None
    prompts = torch.tensor([[0, 1, 2], [2, 1, 0]], device=model.device) % model.config.vocab_size
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]], device=model.device)
    positions = (mask.cumsum(dim=-1) - 1).clamp_(min=0)
    step = Gpt2Step(model)
    for padding in (None, mask):
        seen = {"attention_mask": None if padding is None else padding[:, :3]}
        caches = [
            model(prompts, position_ids=positions[:, :3], use_cache=True, **seen).past_key_values
            for _ in range(2)
        ]
        lean = step(prompts[:, 0], positions[:, 3], caches[0], padding)
        own = model(
            prompts[:, :1],
            attention_mask=padding,
            position_ids=positions[:, 3:],
            past_key_values=caches[1],
        ).logits[:, -1]
        if not bool((lean - own).abs().max() <= _TOLERANCE * own.abs().max()):
            return None
    return step

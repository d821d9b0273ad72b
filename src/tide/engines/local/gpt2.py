"""GPT-2's forward pass without the layers of Python around it in transformers.

In a model as small as the bundled one those take longer than the arithmetic. Everything is read
from the loaded model, and `lean_gpt2` returns nothing unless the results agree with its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, scaled_dot_product_attention
from transformers.cache_utils import DynamicCache, DynamicLayer

from tide.engines.local.kv_cache import PreallocatedLayer, put, row_index

_Layer = TypeVar("_Layer")

# Tokens of prompts read in one pass, about. More take more memory and no less time.
_PASS = 1024
# Tokens of a pass are made up to a multiple of this: oneDNN compiles for each number of them anew.
_MULTIPLE = 64

# Of the largest logit. In bfloat16, 24 layers differ by 0.02 in what they round; a mask that is
# ignored makes 0.2.
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


class LeanGpt2:
    """Reads a prompt, or more tokens after a cache, as `GPT2LMHeadModel` does.

    mask: (B, cached + T), 1 = real; None where nothing is padding; or what is added to the
    attention scores, float32 (B, 1, T, cached + T). positions: (B, T). inputs_embeds (B, T, d) or
    input_ids (B, T). With a cache, T is 1 but for the last kind of mask. Returns `logits`, of the
    last `logits_to_keep` tokens (0: all), and `past_key_values`.

    Attention is in float32 in any case: that in bfloat16 takes a third longer on a CPU.
    """

    def __init__(self, model: Any) -> None:
        body = model.transformer
        self._table, self._position_table = body.wte.weight, body.wpe.weight
        self._blocks = [
            (_norm(block.ln_1), block.attn, _norm(block.ln_2), block.mlp) for block in body.h
        ]
        self._norm, self._head = _norm(body.ln_f), model.lm_head
        self._heads = body.h[0].attn.num_heads

    def __call__(
        self,
        mask: Tensor | None,
        positions: Tensor,
        *,
        inputs_embeds: Any = None,
        input_ids: Tensor | None = None,
        past_key_values: Any = None,
        logits_to_keep: int = 0,
    ) -> SimpleNamespace:
        x = inputs_embeds if input_ids is None else embedding(input_ids, self._table)
        x = x + embedding(positions, self._position_table)
        rows, tokens, width = x.shape
        cache, bias, causal = past_key_values, None, False
        if cache is None:
            cache = DynamicCache()
            cache.layers.extend(DynamicLayer() for _ in self._blocks)
            causal = mask is None
            bias = None if mask is None else _causal_bias(mask)
        elif mask is not None:
            # Added to the attention scores as it is; a boolean one is converted in every layer.
            bias = mask if mask.ndim == 4 else mask[:, None, None].float().log()

        def attend(qkv: Tensor, attention: Any, layer: Any) -> Tensor:
            qkv = qkv.view(rows, tokens, 3, attention.num_heads, -1)
            query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            keys, values = layer.update(key, value)
            mixed = scaled_dot_product_attention(
                query, keys, values, attn_mask=bias, is_causal=causal, scale=attention.scaling
            )
            return mixed.transpose(1, 2).reshape(rows, tokens, width)

        x = self._through(x, cache.layers, attend)
        logits = self._head.forward(layer_norm(x[:, -logits_to_keep:], *self._norm))
        return SimpleNamespace(logits=logits, past_key_values=cache)

    def read(self, rows: Sequence[Tensor], tokens: int) -> tuple[Tensor, Any]:
        """Next-token logits (B, V) of (T_i, d) prompts, and a left-padded cache of all of them.

        tokens: how many more the cache has room for.
        """
        filled = max(map(len, rows))
        shape = len(rows), self._heads, filled + tokens, rows[0].shape[-1] // self._heads
        keys, values = torch.zeros(2, len(self._blocks), *shape, device=rows[0].device)
        rooms = list(zip(keys, values, strict=True))
        logits = self.read_into(rooms, rows, range(len(rows)), filled)
        cache = DynamicCache()
        cache.layers.extend(PreallocatedLayer(keys, values, filled) for keys, values in rooms)
        return logits, cache

    @property
    def like(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, as `open_cache` wants to know their shapes; empty."""
        empty = self._table.new_empty(
            0, self._heads, 0, self._table.shape[-1] // self._heads, dtype=torch.float32
        )
        return [(empty, empty)] * len(self._blocks)

    def read_into(
        self,
        rooms: Sequence[tuple[Tensor, Tensor]],
        rows: Sequence[Tensor],
        slots: Sequence[int],
        filled: int,
    ) -> Tensor:
        """Next-token logits (B, V) of (T_i, d) prompts, whose keys and values go into these slots.

        They end at column `filled`. No padding is read: the layers take the tokens of many prompts
        one after another, and attention those of one length at a time.
        """
        last = rows[0].new_empty(len(rows), rows[0].shape[-1])
        for numbers in _passes([len(row) for row in rows]):
            last[numbers] = self._read(rooms, rows, numbers, slots, filled)
        logits: Tensor = self._head.forward(layer_norm(last, *self._norm))
        return logits

    def _read(
        self,
        rooms: Sequence[tuple[Tensor, Tensor]],
        rows: Sequence[Tensor],
        numbers: list[int],
        slots: Sequence[int],
        filled: int,
    ) -> Tensor:
        """Last hidden states of the rows of these numbers, which come sorted by length."""
        lengths = [len(rows[i]) for i in numbers]
        alike = [(n, list(same)) for n, same in groupby(numbers, lambda i: len(rows[i]))]
        groups = [(n, len(same), row_index([slots[i] for i in same])) for n, same in alike]
        x = torch.cat([rows[i] for i in numbers])
        positions = torch.cat([torch.arange(length, device=x.device) for length in lengths])
        x = x + embedding(positions, self._position_table)
        real, width = x.shape
        x = torch.cat([x, x.new_zeros(-real % _MULTIPLE, width)])

        def attend(qkv: Tensor, attention: Any, layer: tuple[Tensor, Tensor]) -> Tensor:
            mixed = []
            parts = torch.split(qkv[:real], [length * count for length, count, _ in groups])
            for (length, count, where), part in zip(groups, parts, strict=True):
                heads = part.view(count, length, 3, attention.num_heads, -1)
                query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
                put(key, layer[0], where, filled)
                put(value, layer[1], where, filled)
                read = scaled_dot_product_attention(
                    query, key, value, is_causal=True, scale=attention.scaling
                )
                mixed.append(read.transpose(1, 2).reshape(-1, width))
            return torch.cat([*mixed, qkv.new_zeros(len(qkv) - real, width)])

        x = self._through(x, rooms, attend)
        return x[torch.tensor(lengths).cumsum(0) - 1]

    def _through(
        self, x: Tensor, layers: Iterable[_Layer], attend: Callable[[Tensor, Any, _Layer], Tensor]
    ) -> Tensor:
        """Hidden states (..., d) after all blocks.

        attend: from queries, keys and values (..., 3 d), the attention module and its one of
        `layers`, to what attention gives (..., d).
        """
        for (norm_1, attention, norm_2, mlp), layer in zip(self._blocks, layers, strict=True):
            qkv = attention.c_attn.forward(layer_norm(x, *norm_1)).float()
            x = x + attention.c_proj.forward(attend(qkv, attention, layer).to(x.dtype))
            inner = mlp.act.forward(mlp.c_fc.forward(layer_norm(x, *norm_2)))
            x = x + mlp.c_proj.forward(inner)
        return x


def _passes(lengths: Sequence[int]) -> list[list[int]]:
    """All rows, from short to long, in passes of about equally many tokens, about `_PASS` each."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    total = sum(lengths)
    count = math.ceil(total / _PASS)
    before = accumulate((lengths[i] for i in order[:-1]), initial=0)
    numbered = zip(order, before, strict=True)
    passes = groupby(numbered, lambda row: row[1] * count // total)
    return [[i for i, _ in numbers] for _, numbers in passes]


def _causal_bias(mask: Tensor) -> Tensor:
    """0 where a token may look and -inf elsewhere, shape (B, 1, T, T).

    Padding looks at itself: a row that may look nowhere would be NaN, and NaN spreads.
    """
    ones = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool, device=mask.device)
    allowed = (ones.tril() & mask[:, None].bool()) | torch.eye(len(ones), device=mask.device).bool()
    return allowed[:, None].float().log()


def _norm(module: Any) -> tuple[Any, ...]:
    return module.normalized_shape, module.weight, module.bias, module.eps


@torch.inference_mode()
def lean_gpt2(model: Any) -> LeanGpt2 | None:
    """A LeanGpt2 that gives what `model` itself gives; None for any other model."""
    from transformers import GPT2LMHeadModel  # noqa: PLC0415  (slow import)

    if type(model) is not GPT2LMHeadModel or model.config.add_cross_attention:
        return None
    tolerance = _TOLERANCES.get(model.dtype)
    # On a GPU bfloat16 has not been measured.
    if tolerance is None or (model.dtype == torch.bfloat16 and model.device.type != "cpu"):
        return None
    ids = torch.tensor([[0, 1, 2, 0], [2, 1, 0, 1]], device=model.device) % model.config.vocab_size
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]], device=model.device)
    positions = (mask.cumsum(dim=-1) - 1).clamp_(min=0)
    lean = LeanGpt2(model)

    def agree(ours: Tensor, own: Any) -> bool:
        expected = own.logits[:, -1]  # a padding token's own logits mean nothing
        return bool((ours - expected).abs().max() <= tolerance * expected.abs().max())

    for padding in (None, mask):
        # The next-token logits after three tokens, then after one more behind the cache.
        caches: list[Any] = [None, None]
        for part in (slice(0, 3), slice(3, 4)):
            seen = None if padding is None else padding[:, : part.stop]
            ours = lean(seen, positions[:, part], input_ids=ids[:, part], past_key_values=caches[0])
            own = model(
                ids[:, part],
                attention_mask=seen,
                position_ids=positions[:, part],
                past_key_values=caches[1],
                use_cache=True,
            )
            if not agree(ours.logits[:, -1], own):
                return None
            caches = [ours.past_key_values, own.past_key_values]
    read, _ = lean.read([model.transformer.wte(ids[0, 1:]), model.transformer.wte(ids[1])], 0)
    return lean if agree(read, own) else None

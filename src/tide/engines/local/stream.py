"""A causal LM's forward pass, and a stream of sequences that the model reads token by token.

`model.generate` has an overhead per step that exceeds a small model's arithmetic, so `Forward`
calls the model directly, with a cache that is written in place (cache.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from tide.engines.checkpoint import context_length
from tide.engines.local.cache import KeyValueCache, Pair

# Cache layers that hold only keys and values.
_PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)
# The end of an error message.
NOT_FINITE = "logits are NaN or infinite; are its weights broken, or is its dtype float16?"


class Forward:
    """Calls a causal LM with just the arguments that its forward pass takes.

    arguments: names of the forward pass's arguments. context: maximum sequence length, None without
    a limit. plain: whether the model's state consists of keys and values only, so that rows may
    enter and leave a batch. Layers with a sliding window keep all keys and values, and the mask
    hides tokens outside the window.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.arguments = set(inspect.signature(model.forward).parameters)
        # The name is `past_key_values` up to transformers 5.23, and in models with remote code.
        self._cache = "cache" if "cache" in self.arguments else "past_key_values"
        self.context = context_length(model.config)
        layers = DynamicCache(config=model.config).layers
        self.plain = all(type(layer) in _PLAIN for layer in layers)
        head = model.get_output_embeddings()
        if head is not None and _contiguous not in head._forward_pre_hooks.values():
            head.register_forward_pre_hook(_contiguous)

    def __call__(
        self, mask: Tensor | None, positions: Tensor, cache: Any = None, **inputs: Any
    ) -> Any:
        if cache is not None:
            inputs[self._cache] = cache
        if "position_ids" in self.arguments:
            inputs["position_ids"] = positions
        # Without padding the attention needs no mask, and its fast paths apply.
        return self._model(attention_mask=mask, use_cache=True, return_dict=True, **inputs)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the model's embeddings of token ids (B,)."""
        embeddings: Tensor = self._model.get_input_embeddings()(tokens)
        return embeddings

    def read(self, rows: Sequence[Tensor], *, keep: int = 1) -> Any:
        """Read left-padded (T_i, d) matrices; the output has logits of the last `keep` tokens."""
        x, mask = left_pad(rows)
        positions = token_positions(mask)
        cache = DynamicCache() if self.plain else None
        seen = None if bool(mask.all()) else mask
        inputs: dict[str, Any] = {"inputs_embeds": x}
        if "logits_to_keep" in self.arguments:
            inputs["logits_to_keep"] = keep
        return self(seen, positions, cache, **inputs)


def _contiguous(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copy the states of the last tokens, which a model passes to its output layer as a view.

    A GPU multiplies such a view row by row, and reads the weights of the output layer each time.
    """
    return tuple(x.contiguous() for x in inputs)


def cache_in(out: Any) -> Any:
    """Return the key-value cache in a model's output, or None.

    From transformers 5.24 on, models without keys and values (Mamba) have a cache object, too.
    """
    cache = out.cache if hasattr(out, "cache") else getattr(out, "past_key_values", None)
    layers = getattr(cache, "layers", [])
    return cache if any(hasattr(layer, "keys") for layer in layers) else None


class Stream:
    """A batch of sequences that a model reads token by token; rows enter and leave at any step.

    If the model is not `plain`, all rows enter at once. logits: logits (B, V) of the next tokens.
    cache: keys and values of the tokens read so far. multiple: see `KeyValueCache`.
    """

    def __init__(self, forward: Forward, *, multiple: int = 1) -> None:
        self._forward = forward
        self._other_cache: Any = None  # the cache of a model that is not plain
        self.cache = KeyValueCache(multiple)
        self.logits = torch.empty(0)

    def enter(self, rows: Sequence[Tensor]) -> None:
        """Read embeddings (T_i, d) in one pass, and append their rows to the batch."""
        lengths = [len(row) for row in rows]
        out = self._forward.read(rows)
        model_cache = cache_in(out)
        if self._forward.plain:
            self.cache.add(lengths, [(layer.keys, layer.values) for layer in model_cache.layers])
        else:
            assert not self.cache.count
            self._other_cache = model_cache
            self.cache.add(lengths, [])
        logits = out.logits[:, -1]
        self.logits = torch.cat([self.logits, logits]) if len(self.logits) else logits
        self._arrange()

    def resume(self, layers: Sequence[Pair]) -> None:
        """Append a row with these cached tokens; `advance` reads its next token."""
        self.cache.add([layers[0][0].shape[-2]], layers)
        self._arrange()

    def advance(self, tokens: Tensor) -> None:
        """Read one more token of each row, (B,), and replace `logits`."""
        cache = self.cache
        if cache.step():
            self._arrange()
        count = len(tokens)
        tokens = pad(tokens, (0, len(self._starts) - count))
        # Ended rows are read along with running rows; their positions stay within the context.
        positions = (cache.end - self._starts).clamp_(max=self._last)
        width = cache.end - cache.low + 1
        mask = None if self._mask is None else self._mask[..., :width]
        assert mask is None or mask.shape[-1] == width  # attention would not raise an error
        model_cache = cache.model_cache if self._other_cache is None else self._other_cache
        out = self._forward(mask, positions[:, None], model_cache, input_ids=tokens[:, None])
        self.logits = out.logits[:count, -1]
        cache.end += 1

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Remove these rows; returns the old numbers of the remaining rows in their new order.

        Few rows move: the last ones take the places of those that leave.
        """
        gone, left = set(rows), self.cache.count - len(rows)
        movers = [row for row in range(left, self.cache.count) if row not in gone]
        order = [movers.pop(0) if row in gone else row for row in range(left)]
        self.select(order)
        return order

    def select(self, rows: Sequence[int]) -> None:
        """Keep the rows with these numbers, in this order; a row may occur several times."""
        if self._other_cache is not None:
            self._other_cache.batch_select_indices(torch.tensor(rows, device=self.logits.device))
        self.cache.select(rows)
        self.logits = self.logits[list(rows)]
        self._arrange()

    def _arrange(self) -> None:
        """Rebuild the tensors that describe the rows, after rows have changed or moved."""
        cache = self.cache
        # If the first row resumes, there are no logits yet.
        device = cache.stores[0][0].device if cache.stores else self.logits.device
        more = [cache.low] * (cache.padded_count - cache.count) if self._other_cache is None else []
        starts = torch.tensor(cache.starts + more, dtype=torch.int64)
        self._last = (self._forward.context or 1 << 40) - 1
        self._mask = None
        if any(start != cache.low for start in cache.starts):
            columns = torch.arange(cache.low, cache.columns + 1)
            self._mask = (columns >= starts[:, None]).long().to(device)
        self._starts = starts.to(device)


def left_pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Left-pad (T_i, ...) tensors to (B, T, ...); also returns the mask (B, T), 0 for padding."""
    padded = pad_sequence(list(rows), batch_first=True, padding_side="left")
    lengths = torch.tensor([len(row) for row in rows], device=padded.device)
    distances = torch.arange(padded.shape[1], 0, -1, device=padded.device)  # to the end
    return padded, (distances <= lengths[:, None]).long()


def token_positions(mask: Tensor) -> Tensor:
    """Return int64 positions of tokens by the mask (B, T) of left-padded rows; padding has 0."""
    return (mask.cumsum(dim=-1) - 1).clamp_(min=0)

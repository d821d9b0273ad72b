"""Finds the attention heads of a causal LM of any architecture.

The input of a layer's attention output projection is the heads' outputs, concatenated: a hook there
sees and changes each head's contribution, in GPT-2, Llama, Qwen, Gemma, OPT, NeoX and others. The
projection's output is added to the residual stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tide.core.errors import EngineError

_ATTENTIONS = ("self_attn", "attn", "attention", "self_attention")
_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "dense")
# Path within a layer; GPT-Neo nests its attention in a second module of that name.
_PLACE = re.compile(rf"(({'|'.join(_ATTENTIONS)})\.){{1,2}}({'|'.join(_PROJECTIONS)})")


class Head(nn.Linear):
    """A linear layer in float32 on top of a model of any precision.

    Half precision would round away small training steps and small differences between texts.
    """

    def __init__(self, inputs: int, outputs: int, device: Any, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias, device=device, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


# Maps a layer number and the layer's merged heads (B, T, heads * size), or their projection
# (B, T, hidden), to the replacement; None: no change.
HeadFunction = Callable[[int, Tensor], Tensor | None]


@dataclass(frozen=True)
class Heads:
    """The attention output projection of each layer, and how its input divides into heads."""

    projections: tuple[nn.Module, ...]
    count: int

    def split(self, merged: Tensor) -> Tensor:
        """(..., heads * size) -> (..., heads, size)."""
        return merged.view(*merged.shape[:-1], self.count, -1)

    @contextmanager
    def hooked(self, function: HeadFunction, *, outputs: bool = False) -> Iterator[None]:
        """Call `function` with every layer's merged heads while the context lasts.

        outputs: with the outputs of the projection instead.
        """

        def before(layer: int, module: nn.Module, args: tuple[Any, ...]) -> Any:
            changed = function(layer, args[0])
            return None if changed is None else (changed, *args[1:])

        def after(layer: int, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            return function(layer, output)

        handles = [
            projection.register_forward_hook(partial(after, layer))
            if outputs
            else projection.register_forward_pre_hook(partial(before, layer))
            for layer, projection in enumerate(self.projections)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def find_heads(model: Any, name: str) -> Heads:
    """The heads of `model`. Raises EngineError for an unknown layer layout."""
    config = model.config.get_text_config()
    stacks = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers
    ]
    for stack in stacks:
        found = (
            next((part for name, part in layer.named_modules() if _PLACE.fullmatch(name)), None)
            for layer in stack
        )
        projections = tuple(filter(None, found))
        if len(projections) == len(stack):
            return Heads(projections, int(config.num_attention_heads))
    raise EngineError(
        f"model {name}: unknown layer layout: no {config.num_hidden_layers} layers with an "
        f"attention ({', '.join(_ATTENTIONS)}) and its projection ({', '.join(_PROJECTIONS)})"
    )


def output_layer(model: Any, name: str) -> nn.Module:
    """The layer that computes the logits; its input is the last hidden state.

    Raises EngineError if the model has none.
    """
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Module):
        raise EngineError(f"model {name}: unknown layer layout: no output embedding layer")
    return layer

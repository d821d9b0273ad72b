"""Finds the attention heads of a causal LM of any architecture.

The input of a layer's attention output projection is the concatenation of the heads' outputs. A
hook on the projection can therefore read and change the contribution of each head, in GPT-2, Llama,
Qwen, Gemma, OPT, NeoX and others. The projection's output is added to the residual stream.
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
# Path of the projection within a layer. GPT-Neo nests two attention modules: `attn.attention`.
_PLACE = re.compile(rf"(({'|'.join(_ATTENTIONS)})\.){{1,2}}({'|'.join(_PROJECTIONS)})")


class Head(nn.Linear):
    """A linear layer in float32 on top of a model of any precision.

    Half precision would round away small training steps and small differences between texts.
    """

    def __init__(self, inputs: int, outputs: int, device: Any, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias, device=device, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


# Gets a layer number and the layer's concatenated head outputs (B, T, heads * size), or their
# projection (B, T, hidden). Returns a replacement, or None for no change.
HeadFunction = Callable[[int, Tensor], Tensor | None]


@dataclass(frozen=True)
class Heads:
    """The attention output projection of each layer, and the number of heads in its input."""

    projections: tuple[nn.Module, ...]
    count: int

    def split(self, merged: Tensor) -> Tensor:
        """Reshape (..., heads * size) to (..., heads, size)."""
        return merged.view(*merged.shape[:-1], self.count, -1)

    @contextmanager
    def hooked(self, function: HeadFunction, *, outputs: bool = False) -> Iterator[None]:
        """Call `function` with every layer's concatenated head outputs while the context lasts.

        outputs: pass `function` the output of the projection, not its input.
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
    """Find the attention heads of `model`. Raises EngineError for an unknown layer layout."""
    config = model.config.get_text_config()
    stacks = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers
    ]
    for stack in stacks:
        parts = (
            next((part for name, part in layer.named_modules() if _PLACE.fullmatch(name)), None)
            for layer in stack
        )
        projections = tuple(filter(None, parts))
        if len(projections) == len(stack):
            return Heads(projections, int(config.num_attention_heads))
    raise EngineError(
        f"model {name}: has an unknown layer layout; each of its {config.num_hidden_layers} layers "
        f"needs an attention module ({', '.join(_ATTENTIONS)}) with an output projection "
        f"({', '.join(_PROJECTIONS)})"
    )


def output_layer(model: Any, name: str) -> nn.Module:
    """Return the layer that computes the logits; its input is the last hidden state.

    Raises EngineError if the model has no output layer.
    """
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Module):
        raise EngineError(f"model {name}: has no output embedding layer")
    return layer

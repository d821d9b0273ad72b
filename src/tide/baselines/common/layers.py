"""Finds the attention heads of a causal LM of any architecture.

The input of a layer's attention output projection is the heads' outputs, merged: a hook there sees
and changes what each head contributes, in GPT-2, Llama, Qwen, Gemma, OPT, NeoX and others. Its
output is added to the residual stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tide.core.errors import EngineError

_ATTENTIONS = ("self_attn", "attn", "attention", "self_attention")
_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "dense")

# Layer number and merged heads (B, T, heads * size), or their projection (B, T, hidden) -> the
# replacement; None: no change.
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
        """Call `function` at every layer's merged heads for as long as the context lasts.

        outputs: at the outputs of the projection instead.
        """

        def before(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None]:
            def call(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
                changed = function(layer, args[0])
                return None if changed is None else (changed, *args[1:])

            return call

        def after(layer: int) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
            return lambda module, args, output: function(layer, output)

        handles = [
            projection.register_forward_hook(after(layer))
            if outputs
            else projection.register_forward_pre_hook(before(layer))
            for layer, projection in enumerate(self.projections)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def find_heads(model: Any, name: str) -> Heads:
    """The heads of `model`. Raises EngineError for a layout that is not known."""
    config = model.config.get_text_config()
    stacks = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers
    ]
    for stack in stacks:
        projections = tuple(filter(None, map(_projection, stack)))
        if len(projections) == len(stack):
            return Heads(projections, int(config.num_attention_heads))
    raise EngineError(
        f"model {name}: unknown layer layout: no {config.num_hidden_layers} layers with an "
        f"attention ({', '.join(_ATTENTIONS)}) and its projection ({', '.join(_PROJECTIONS)})"
    )


def _projection(layer: nn.Module) -> nn.Module | None:
    attention = _child(layer, _ATTENTIONS)
    # GPT-Neo nests its attention in a second module of that name.
    inner = None if attention is None else _child(attention, _ATTENTIONS)
    attention = inner or attention
    return None if attention is None else _child(attention, _PROJECTIONS)


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    return next((child for name, child in module.named_children() if name in names), None)


def output_layer(model: Any, name: str) -> nn.Module:
    """The layer that gives the logits; its input is the last hidden state.

    Raises EngineError if the model has none.
    """
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Module):
        raise EngineError(f"model {name}: unknown layer layout: no output embedding layer")
    return layer

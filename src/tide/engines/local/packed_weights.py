"""Faster arithmetic for a loaded model on an x86 CPU, with the same results up to rounding.

On these CPUs torch multiplies float32 matrices with MKL, which on AMD takes two to three times as
long as oneDNN with packed weights. Packed weights make SmolLM2 135M 1.4 (1 row) to 2.0 times
(64 rows) as fast, and Gemma 3 270M 1.7 to 2.4 times as fast. Weights are
packed once, here; bfloat16 weights are packed only if the CPU has instructions for bfloat16.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Packed weights are a second copy of the model; larger models are not packed, to save memory.
MAX_PARAMETERS = 500_000_000
# oneDNN packs weights for an expected number of rows; 16 was fastest for any number of rows.
_ROWS_HINT = 16
# Maximum error, relative to the largest result. Another order of float32 sums causes about 1e-6,
# and rounding to bfloat16 at most 4e-3. A wrong result has an error of about 1.
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
# By default oneDNN and torch's layer above it cache kernels for the last 1024 shapes. Shapes differ
# between batches, so the kernels take half a gigabyte in a long run. A batch needs about 20 shapes;
# more than 64 in torch were not faster. Both libraries read these variables at their first use.
_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": 256, "LRU_CACHE_CAPACITY": 64}


def speed_up(model: nn.Module) -> None:
    """Change `model` in place if that is known to make it faster.

    The parameters and the state dict stay as they are. The parameters must not move or change
    afterwards, because a packed layer would still use the old weights.
    """
    from transformers.activations import NewGELUActivation  # noqa: PLC0415  (slow import)

    parameters = list(model.parameters())
    kinds = {(p.device.type, p.dtype) for p in parameters}
    if kinds != {("cpu", torch.float32)} and not (
        kinds == {("cpu", torch.bfloat16)} and multiplies_bfloat16()
    ):
        return
    for variable, shapes in _CACHES.items():
        os.environ.setdefault(variable, str(shapes))
    for module in model.modules():
        # transformers' GELU for GPT-2 makes seven passes over memory.
        if type(module) is NewGELUActivation:
            module.forward = nn.GELU(approximate="tanh").forward
    if _can_pack() and sum(p.numel() for p in parameters) <= MAX_PARAMETERS:
        for module in model.modules():
            pack(module)


@torch.no_grad()
def pack(module: nn.Module) -> None:
    """Let a linear layer (nn.Linear or transformers' Conv1D) use packed weights.

    A layer keeps its own weights if this machine cannot pack them, or computes something else with
    them. Subclasses may compute something else, and are left as they are.
    """
    from transformers.pytorch_utils import Conv1D  # noqa: PLC0415  (slow import)

    if type(module) not in (nn.Linear, Conv1D) or module._forward_hooks:
        return
    layer: Any = module
    weight = layer.weight.T if type(module) is Conv1D else layer.weight
    weight = weight.contiguous()
    try:
        apply = _packed(weight, layer.bias)
        probe = torch.linspace(-1, 1, 3 * weight.shape[1], dtype=weight.dtype).reshape(3, -1)
        expected, tolerance = layer.forward(probe), _TOLERANCES[weight.dtype]
        close = bool((apply(probe) - expected).abs().max() <= tolerance * expected.abs().max())
    except (RuntimeError, AttributeError):  # torch was built without oneDNN, or has no such call
        return
    if close:
        layer.forward = apply


def _packed(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    # The closure does not refer to its module, since such a cycle would outlive `close`.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def apply(x: Tensor) -> Tensor:
        result: Tensor = multiply(x, packed, bias, "none", [], "")
        return result

    return apply


def _can_pack() -> bool:
    # oneDNN has other kernels on CPUs other than x86, and their speed was not measured.
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    )


def multiplies_bfloat16() -> bool:
    """Return whether this CPU has bfloat16 instructions; other CPUs convert to float32."""
    # `torch.ops.mkldnn._is_mkldnn_bf16_supported` is not used: it only checks for AVX512.
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())

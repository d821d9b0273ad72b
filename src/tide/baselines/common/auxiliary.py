"""Auxiliary models: copies of the model, or a smaller one, with fitted updates.

Every auxiliary model has its own weights and its own key-value cache, and the same vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tide.baselines.common.artefacts import Artefact, fingerprint, vocabulary
from tide.core.errors import InputError
from tide.engines.local.engine import TransformersEngine, load_model
from tide.engines.local.packed_weights import speed_up


def load_auxiliary(engine: TransformersEngine, artefact: Artefact, kind: str) -> Any:
    """The plain model that `artefact` changes: the engine's, loaded again, or its `auxiliary`.

    Raises InputError if that is not the model it was fitted on, or has another vocabulary.
    """
    name = artefact.info.get("auxiliary")
    model = load_sibling(engine, name or engine.name)
    if name and fingerprint(model) != artefact.info.get("auxiliary_fingerprint"):
        raise InputError(f"baseline {kind}: was fitted on another {name!r} than there is")
    return model


def load_sibling(engine: TransformersEngine, name: str) -> Any:
    """The model `name`, loaded where and as the engine's own is.

    Raises InputError if it has another vocabulary.
    """
    tokenizer, model = load_model(name, engine.device, str(engine.dtype).removeprefix("torch."))
    check_vocabulary(tokenizer, engine.tokenizer, name, engine.name)
    return model


def check_vocabulary(tokenizer: Any, other: Any, name: str, other_name: str) -> None:
    """Raise InputError unless both tokenizers give the same ids to the same tokens."""
    if vocabulary(tokenizer) != vocabulary(other):
        raise InputError(
            f"vocabulary mismatch: {name!r} has other tokens than {other_name!r}; "
            "an auxiliary model must share the model's vocabulary"
        )


@torch.no_grad()
def merge_updates(model: Any, tensors: Mapping[str, Tensor], strength: float = 1.0) -> Any:
    """Add `strength` times the learned updates to the weights of `model`, in place.

    tensors: for each weight but the output layer's own, `NAME.delta`; or, low-rank (Hu et al. 2021,
    section 4.1), for each linear layer but the last `NAME.A` (rank, in) and `NAME.B` (out, rank),
    whose product is added. Raises ValueError for others, or for one that is missing.
    """
    from transformers.pytorch_utils import Conv1D  # noqa: PLC0415  (slow import)

    if any(name.endswith(".delta") for name in tensors):
        weights = tuned_weights(model)
        _check(tensors, {f"{name}.delta": tuple(one.shape) for name, one in weights.items()})
        for name, weight in weights.items():
            weight.add_(tensors[f"{name}.delta"].to(weight.device, weight.dtype), alpha=strength)
        return model
    output = model.get_output_embeddings()
    layers: dict[str, Any] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not output
    }
    shapes: dict[str, tuple[int | None, ...]] = {}
    for name, layer in layers.items():
        rows, columns = layer.weight.shape
        # transformers' Conv1D stores its weight transposed.
        rows, columns = (columns, rows) if isinstance(layer, Conv1D) else (rows, columns)
        shapes |= {f"{name}.A": (None, columns), f"{name}.B": (rows, None)}
    _check(tensors, shapes)
    for name, layer in layers.items():
        a, b = (tensors[f"{name}.{part}"].to(layer.weight.device, torch.float32) for part in "AB")
        update = strength * (b @ a)
        layer.weight += (update.T if isinstance(layer, Conv1D) else update).to(layer.weight.dtype)
    return model


def _check(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int | None, ...]]) -> None:
    """Raise ValueError unless these are the tensors, of floats; None in a shape: any rank."""
    if wrong := tensors.keys() ^ shapes.keys():
        raise ValueError(f"{min(wrong)} is {'not for it' if min(wrong) in tensors else 'missing'}")
    for name, shape in shapes.items():
        found = tuple(tensors[name].shape)
        fits = len(found) == len(shape) and all(
            size > 0 if wanted is None else size == wanted
            for size, wanted in zip(found, shape, strict=True)
        )
        if not fits or not tensors[name].is_floating_point():
            wanted = str(shape).replace("None", "rank")
            raise ValueError(f"{name} is {found} of {tensors[name].dtype}, not {wanted} of floats")


def tuned_weights(model: Any) -> dict[str, nn.Parameter]:
    """All weights of `model`, without those of an output layer that shares none."""
    inputs = {id(weight) for weight in model.get_input_embeddings().parameters()}
    own = {id(weight) for weight in model.get_output_embeddings().parameters()} - inputs
    return {name: weight for name, weight in model.named_parameters() if id(weight) not in own}


def ready(model: Any) -> Any:
    """Speed up a model whose weights no longer change."""
    speed_up(model)
    return model


def fit_width(logits: Tensor, width: int) -> Tensor:
    """`logits` (B, V') for a vocabulary that another model keeps in `width` columns.

    Models of one family pad the table of one vocabulary to different sizes; columns that one of
    them lacks stand for no token.
    """
    if logits.shape[-1] >= width:
        return logits[..., :width]
    return pad(logits, (0, width - logits.shape[-1]), value=float(logits.min()))

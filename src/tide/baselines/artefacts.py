"""Read and write artefacts: the tensors and the description that `tide fit` makes for a baseline.

Also builds fitted models: copies of the model, or of a smaller model with the same vocabulary, to
which the fitted updates are added. Each copy has separate weights and a separate key-value cache.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.functional import pad

from tide.core.errors import InputError, guarded, require
from tide.data.files import replaced, write_text
from tide.engines.base import Dtype
from tide.engines.checkpoint import fingerprint
from tide.engines.local.engine import TransformersEngine, load_model

FORMAT = "tide-baseline-2"
_FILES = ("artefact.json", "weights.safetensors")


@dataclass(frozen=True)
class Artefact:
    """tensors: fitted weights. info: model, settings, held-out figures. digest: hash of both."""

    tensors: dict[str, Tensor]
    info: dict[str, Any]
    digest: str

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors named `prefix.*`, without the prefix; all tensors if it is empty."""
        dot = f"{prefix}." if prefix else ""
        return {k.removeprefix(dot): v for k, v in self.tensors.items() if k.startswith(dot)}


def save_artefact(folder: Path, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Write `artefact.json` and `weights.safetensors` into `folder`.

    Raises InputError for a folder that cannot be written, and for tensors that are not finite.
    """
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise InputError("learning_rate: the training ended in NaN or infinity; lower it")
    with replaced(folder / "weights.safetensors") as file:
        file.write(save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}))
    note = json.dumps({"format": FORMAT, **info}, indent=2) + "\n"
    write_text(folder / "artefact.json", note)


def _fit_command(kind: str, name: str) -> str:
    return f"tide fit {kind} --model {name} --data FILE --out FOLDER"


def artefact_folder(artefacts: Path | None, kind: str, name: str) -> Path:
    """Return the folder of baseline `kind` in `artefacts`. Raises InputError if it is missing.

    name: the model's name.
    """
    command = _fit_command(kind, name)
    if artefacts is None:
        raise InputError(f"baseline {kind}: needs --artefacts FOLDER, made by {command}")
    folder = Path(artefacts) / kind
    if not folder.is_dir():
        raise InputError(f"baseline {kind}: {folder} is missing; make it with {command}")
    return folder


def load_artefact(artefacts: Path | None, kind: str, model: nn.Module, name: str) -> Artefact:
    """Load the artefact of baseline `kind` from the folder `artefacts`.

    name: the name of `model`. Raises InputError if the artefact is missing or damaged, or belongs
    to another baseline or another model.
    """
    folder = artefact_folder(artefacts, kind, name)
    command = _fit_command(kind, name)
    with guarded(InputError, f"baseline {kind}: {folder} cannot be read; make it with {command}"):
        note, weights = ((folder / file).read_bytes() for file in _FILES)
        info, tensors = json.loads(note), load(weights)
        digest = blake2b(note + weights, digest_size=8).hexdigest()
    if not isinstance(info, dict) or info.get("format") != FORMAT or info.get("baseline") != kind:
        raise InputError(f"baseline {kind}: {folder} holds no artefact of this baseline ({FORMAT})")
    if info.get("fingerprint") != fingerprint(model):
        raise InputError(
            f"baseline {kind}: {folder} was fitted for {info.get('model')!r}; the weights of "
            f"{name!r} differ (or --dtype does); fit again with {command}"
        )
    for tensor_name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise InputError(f"baseline {kind}: {folder}: {tensor_name} is not finite")
    return Artefact(tensors, info, digest)


def load_sibling(engine: TransformersEngine, name: str) -> Any:
    """Load the model `name` on the engine's device, in the engine's dtype."""
    dtype = cast(Dtype, str(engine.dtype).removeprefix("torch."))
    _, model = load_model(name, engine.device, dtype)
    return model


@torch.no_grad()
def merge_updates(model: Any, tensors: Mapping[str, Tensor], strength: float = 1.0) -> Any:
    """Return `model` with `strength` times the learned updates added to its weights, in place.

    tensors: the state of a LoRA adapter (see `add_lora`) in the format of peft. Raises ValueError
    or RuntimeError for other tensors, and MissingDependencyError without peft.
    """
    peft = require("peft", "baselines")
    ranks = {len(tensor) for name, tensor in tensors.items() if "lora_A" in name}
    tuned = add_lora(model, max(ranks, default=0))
    for name in tensors.keys() ^ peft.get_peft_model_state_dict(tuned).keys():
        raise ValueError(f"{name} is {'unknown' if name in tensors else 'missing'}")
    peft.set_peft_model_state_dict(tuned, dict(tensors))
    for module in tuned.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.scale_layer(strength)
    return tuned.merge_and_unload()


def add_lora(model: Any, rank: int) -> Any:
    """Add low-rank updates to every linear layer of `model` but the output layer.

    Raises MissingDependencyError without peft.
    """
    peft = require("peft", "baselines")
    from transformers.pytorch_utils import Conv1D  # noqa: PLC0415  (slow import)

    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with warnings.catch_warnings():
        # peft reads a property of transformers by its old name.
        warnings.filterwarnings(
            "ignore", message=".*is_gradient_checkpointing", category=FutureWarning
        )
        return peft.get_peft_model(model, config)


def fit_width(logits: Tensor, width: int) -> Tensor:
    """Cut or pad `logits` (B, V') to the `width` of another model's logits.

    Models of one family pad the same vocabulary to different sizes; the columns beyond the smaller
    size belong to no token.
    """
    if logits.shape[-1] >= width:
        return logits[..., :width]
    return pad(logits, (0, width - logits.shape[-1]), value=float(logits.min()))


class Head(nn.Linear):
    """A linear layer in float32 on top of a model of any precision.

    Half precision would round away small training steps and small differences between texts.
    """

    def __init__(self, inputs: int, outputs: int, device: Any, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias, device=device, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())

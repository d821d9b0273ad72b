"""Artefacts, written by `tide fit` and read by baselines: tensors and a description."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from tide.core.errors import InputError, guarded
from tide.data.files import replaced, write_text

FORMAT = "tide-baseline-1"
_FILES = ("artefact.json", "weights.safetensors")
_SAMPLES = 16  # values of each parameter that go into a model's fingerprint


@dataclass(frozen=True)
class Artefact:
    """tensors: what was learned. info: model, settings, held-out figures. digest: of both."""

    tensors: dict[str, Tensor]
    info: dict[str, Any]
    digest: str

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`. Raises InputError if it is missing or of another shape."""
        found = self.tensors.get(name)
        if found is None or found.shape != shape:
            there = "has none" if found is None else f"has {tuple(found.shape)}"
            raise InputError(
                f"baseline {self.info['baseline']}: needs {name} of shape {shape}; its artefact "
                f"{there}"
            )
        return found

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors named `prefix.*`, without the prefix; all tensors for an empty prefix."""
        dot = f"{prefix}." if prefix else ""
        return {k.removeprefix(dot): v for k, v in self.tensors.items() if k.startswith(dot)}


def fingerprint(model: nn.Module) -> str:
    """16 hex digits of a model's parameters: names, shapes, and values spread over each.

    Values are rounded to bfloat16, so that it does not depend on the type the model is loaded in.
    """
    digest = blake2b(digest_size=8)
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().reshape(-1)
        where = torch.linspace(0, len(flat) - 1, _SAMPLES, dtype=torch.float64).long()
        values = flat[where.to(flat.device)].to(torch.bfloat16).view(torch.int16)
        digest.update(f"{name} {tuple(parameter.shape)} {values.tolist()}\n".encode())
    return digest.hexdigest()


def vocabulary(tokenizer: Any) -> str:
    """16 hex digits of a tokenizer's tokens and their ids."""
    tokens = json.dumps(sorted(tokenizer.get_vocab().items()))
    return blake2b(tokens.encode(), digest_size=8).hexdigest()


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


def _how(kind: str, name: str) -> str:
    return f"tide fit {kind} --model {name} --data FILE --out FOLDER"


def find_artefact(artefacts: Path | None, kind: str, name: str) -> Path:
    """The folder of baseline `kind` in `artefacts`, with its files. Raises InputError without one.

    name: of the model.
    """
    how = _how(kind, name)
    if artefacts is None:
        raise InputError(
            f"baseline {kind}: learns something: name the folder of artefacts (--artefacts) that "
            f"{how} made"
        )
    folder = artefacts / kind
    for file in (folder / name for name in _FILES):
        if not file.is_file():
            raise InputError(f"baseline {kind}: {file} is missing; make it by {how}")
    return folder


def load_artefact(artefacts: Path | None, kind: str, model: nn.Module, name: str) -> Artefact:
    """The artefact of baseline `kind` in the folder `artefacts`.

    Raises InputError if there is none, if it is damaged or of another baseline, or if it was fitted
    for another model than `model`, which is called `name`.
    """
    folder = find_artefact(artefacts, kind, name)
    files = [folder / name for name in _FILES]
    with guarded(InputError, f"baseline {kind}: {folder} cannot be read"):
        note, weights = (file.read_bytes() for file in files)
        info, tensors = json.loads(note), load(weights)
        digest = blake2b(note + weights, digest_size=8).hexdigest()
    if not isinstance(info, dict) or info.get("format") != FORMAT or info.get("baseline") != kind:
        raise InputError(f"baseline {kind}: {folder} holds no artefact of it ({FORMAT})")
    if info.get("fingerprint") != fingerprint(model):
        raise InputError(
            f"baseline {kind}: {folder} was fitted for model {info.get('model')!r}, which is not "
            f"{name!r} or not as it was; make one by {_how(kind, name)}"
        )
    for tensor_name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise InputError(f"baseline {kind}: {folder}: {tensor_name} is not finite")
    return Artefact(tensors, info, digest)

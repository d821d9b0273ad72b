"""What `tide fit` writes and a baseline reads: tensors, and a note of what they belong to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tide.errors import InputError

FORMAT = "tide-baseline-1"
_SAMPLES = 16  # values of each parameter that go into a model's fingerprint


@dataclass(frozen=True)
class Artefact:
    """tensors: what was learned. info: model, settings, held-out figures. digest: of both."""

    tensors: dict[str, Tensor]
    info: dict[str, Any]
    digest: str

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors named `prefix.*`, by what follows; all of them for no prefix."""
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
    """Write `artefact.json` and `weights.safetensors` into `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
            folder / "weights.safetensors",
        )
        note = json.dumps({"format": FORMAT, **info}, indent=2) + "\n"
        (folder / "artefact.json").write_text(note, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error}") from error


def load_artefact(artefacts: Path | None, kind: str, model: nn.Module, name: str) -> Artefact:
    """The artefact of baseline `kind` in the folder `artefacts`.

    Raises InputError if there is none, if it is damaged or of another baseline, or if it was fitted
    for another model than `model`, which is called `name`.
    """
    how = f"tide fit {kind} --model {name} --data FILE --out FOLDER"
    if artefacts is None:
        raise InputError(
            f"baseline {kind}: learns something: name the folder of artefacts (--artefacts) that "
            f"{how} made"
        )
    folder = artefacts / kind
    try:
        note = (folder / "artefact.json").read_bytes()
        info = json.loads(note)
        weights = folder / "weights.safetensors"
        tensors = load_file(weights)
        digest = blake2b(note + weights.read_bytes(), digest_size=8).hexdigest()
    except FileNotFoundError as error:
        raise InputError(
            f"baseline {kind}: {error.filename} is missing; make it by {how}"
        ) from None
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"baseline {kind}: {folder} cannot be read: {error}") from error
    if not isinstance(info, dict) or info.get("format") != FORMAT or info.get("baseline") != kind:
        raise InputError(f"baseline {kind}: {folder} holds no artefact of it ({FORMAT})")
    if info.get("fingerprint") != fingerprint(model):
        raise InputError(
            f"baseline {kind}: {folder} was fitted for model {info.get('model')!r}, which is not "
            f"{name!r} or not as it was; make one by {how}"
        )
    return Artefact(tensors, info, digest)

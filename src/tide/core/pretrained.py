"""Loads untrusted models from a folder or the hub, and refuses models that are incomplete.

The files may be truncated, of the wrong type or of another model. Failures raise ValueError or an
error of transformers; callers wrap these errors with `guarded`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from tide.core.errors import InputError, described, first_line
from tide.core.sanitize import clean_logs

# Largest accepted value of a config field with this word in its name. The largest models have 200
# layers. All layers are built before any weight is read, so a huge count could fill the memory.
_MOST = {"layer": 1024, "label": 65_536, "expert": 65_536}
# Maximum number of weights in a byte of a file (one bit each).
_VALUES_PER_BYTE = 8
_FIELDS = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
# Suffixes of the model files that are read.
READ = (".json", ".safetensors", ".txt", ".model", ".jinja")
# Two sentences of common words and of equal length.
_SENTENCES = "The weather today is fine", "The people today are kind"


def find_device(name: str) -> torch.device:
    """Return the torch device `name`; "auto" means CUDA if available, else the CPU.

    Raises InputError unless torch can compute on the device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # tensors on `meta` hold no data
    except Exception as error:
        reason, others = first_line(error), "'auto', 'cpu', 'cuda' or 'cuda:N'"
        if "cuda" in name and not torch.cuda.is_available():
            reason, others = "there is no CUDA device", "'auto' or 'cpu'"
        raise InputError(f"device {name!r} cannot be used: {reason}; choose {others}") from error
    return device


def read_config(
    source: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> Any:
    """Read the transformers config of a folder or hub id."""
    from transformers import AutoConfig  # noqa: PLC0415  (slow import)
    from transformers.utils import cached_file  # noqa: PLC0415

    quiet_transformers()
    folder = Path(source)
    if folder.exists():
        _check_files(folder)
    else:
        try:
            cached_file(source, "config.json", revision=revision, local_files_only=True)
        except OSError:
            _reach_hub()
    try:
        raw = _read_json(Path(cached_file(source, "config.json", revision=revision)))
    except OSError as error:
        if folder.exists():
            raise
        problem = "no such folder, and the hub has no such model or cannot be reached"
        raise ValueError(f"{problem}: {first_line(error)}") from error
    check_fields(raw)
    return AutoConfig.from_pretrained(
        source, revision=revision, trust_remote_code=trust_remote_code
    )


def quiet_transformers() -> None:
    """Silence transformers' logs about faults that this module reports in one line."""
    clean_logs("transformers")
    # The table of missing weights, which `check_weights` reports.
    logging.getLogger("transformers.modeling_utils").addFilter(
        lambda record: "LOAD REPORT" not in record.getMessage()
    )


def _reach_hub() -> None:
    """Raise ValueError if the hub cannot be reached; the hub's client would retry for 30 s."""
    from huggingface_hub import constants, get_session  # noqa: PLC0415  (slow import)

    if constants.is_offline_mode():
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # the client may use any HTTP library
        problem = "no such folder, and the hub cannot be reached"
        raise ValueError(f"{problem}: {first_line(error)}") from error


def load_pretrained(
    kind: Any,
    source: str,
    device: torch.device,
    dtype: torch.dtype | str,
    *,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """Load tokenizer and model of a folder or hub id for inference; refuse missing weights.

    kind: a class of transformers that chooses the architecture, such as AutoModelForCausalLM.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415  (slow import)

    code: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    config = read_config(source, **code)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **code)
    except Exception as error:
        raise ValueError(f"the model's tokenizer cannot be read: {described(error)}") from error
    if Path(source).exists():
        stored = sum(path.stat().st_size for path in Path(source).glob("*.safetensors"))
        check_size(kind, config, stored, code)
    model, found = kind.from_pretrained(
        source,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        ignore_mismatched_sizes=True,  # `check_weights` refuses the mismatched weights
        output_loading_info=True,
        **code,
    )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError("the folder holds an adapter; merge it into its model and save the result")
    check_weights(model, found)
    model = model.to(device).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not all_finite(weight):
            raise ValueError(f"the weight {name} holds NaN, infinite or absurdly large values")
    return tokenizer, model


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    """List the tokens that end a text by the generation config, the config and the tokenizer.

    One source may name the end of a turn, and another source the end of a document; both tokens end
    an answer. `generate` uses the first id of the list.
    """
    configs = model.generation_config, model.config.get_text_config()
    named = [getattr(config, "eos_token_id", None) for config in configs]
    rows = model.get_input_embeddings().weight.shape[0]
    own = tokenizer.eos_token_id
    if own is not None and own < rows:
        named.append(own)
    ids = (ids if isinstance(ids, list) else [ids] for ids in named if ids is not None)
    return list(dict.fromkeys(chain.from_iterable(ids)))


def all_finite(weight: torch.Tensor) -> bool:
    """Whether all values are finite and not absurdly large: then their sum is finite, too.

    Unlike `isfinite`, the sum allocates no mask.
    """
    return bool(weight.sum(dtype=torch.float32).isfinite())


def check_tokenizer(tokenizer: Any, rows: int) -> None:
    """Raise ValueError for a vocabulary above `rows`, or equal tokens for different texts.

    rows: number of tokens that the model embeds. Ids of added tokens may exceed it (image tokens of
    text-only models); a text that contains one of these tokens is refused later.
    """
    if tokenizer.vocab_size > rows:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model embeds only {rows}; "
            "they belong to different models"
        )
    first, second = tokenizer(list(_SENTENCES), add_special_tokens=False)["input_ids"]
    if first == second:
        raise ValueError("the tokenizer gives the same tokens for different sentences")


def _check_files(folder: Path) -> None:
    """Raise ValueError if a model file is not a regular file (a folder, pipe or circular link)."""
    if not folder.is_dir():
        raise ValueError("the path is not a folder")
    for path in folder.iterdir():
        if path.suffix in READ and not path.is_file():
            raise ValueError(f"{path.name} is not a file that can be read")
        if path.name in _FIELDS:
            _read_json(path)
    if not (folder / "config.json").exists():
        raise ValueError("the folder holds no config.json")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path.name} holds a {type(fields).__name__} instead of an object")
    return fields


def check_fields(fields: Any) -> None:
    """Raise ValueError for an absurd count, or the name of a kernel, which is code from the hub."""
    parts: Iterable[Any] = fields if isinstance(fields, list) else fields.values()
    for part in parts:
        if isinstance(part, dict | list):
            check_fields(part)
    if isinstance(fields, dict):
        for name, value in fields.items():
            if name.endswith("_implementation") and "/" in str(value):
                raise ValueError(f"config.json: {name} names a kernel to download, which is code")
            for word, most in _MOST.items():
                if isinstance(value, int) and word in name and value > most:
                    raise ValueError(f"config.json: {name} is {value}; at most {most} is accepted")


def check_size(kind: Any, config: Any, stored: int, code: dict[str, Any]) -> None:
    """Raise ValueError if files of `stored` bytes cannot hold the model; allocates no weights."""
    with torch.device("meta"):
        sketch = kind.from_config(config, **code)
    needed = sum(
        tensor.numel() for part in (sketch.parameters, sketch.buffers) for tensor in part()
    )
    if needed > _VALUES_PER_BYTE * stored:
        raise ValueError(
            f"the config describes {needed:,} weights, but the files hold only {stored:,} bytes"
        )


def check_weights(model: Any, found: dict[str, Any]) -> None:
    """Raise ValueError for missing weights, wrong shapes, and layers that the config lacks.

    found: the loading report of transformers. Weights of the head of another task are ignored.
    """
    if found["mismatched_keys"]:
        name, stored, wanted = min(found["mismatched_keys"])
        raise ValueError(
            f"the weight {name} has the shape {tuple(stored)}; the config says {tuple(wanted)}"
        )
    if missing := sorted(found["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"the files lack the weight {missing[0]}{more}, which would be random")
    like = {_numberless(name) for name, _ in model.named_parameters()}
    for name in sorted(found["unexpected_keys"]):
        kind = _numberless(name)
        if "*" in kind and any(known.endswith(kind) for known in like):
            raise ValueError(f"the files hold the weight {name} of a layer that the config lacks")


def _numberless(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)

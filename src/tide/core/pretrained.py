"""Load models from a folder or the hub: safetensors only, no code, and no missing weight.

Failures raise ValueError or an error of transformers; callers wrap these errors with `guarded`.
"""

from __future__ import annotations

import logging
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from tide.core.errors import InputError, described, first_line


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
        problem = f"device {name!r} cannot be used: {first_line(error)}"
        raise InputError(f"{problem}; choose 'auto', 'cpu', 'cuda' or 'cuda:N'") from error
    return device


def read_config(
    source: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> Any:
    """Read the transformers config of a folder or hub id."""
    from transformers import AutoConfig, PretrainedConfig  # noqa: PLC0415  (slow import)
    from transformers.utils import cached_file  # noqa: PLC0415

    quiet_transformers()
    is_folder = Path(source).exists()
    if not is_folder:
        try:
            cached_file(source, "config.json", revision=revision, local_files_only=True)
        except OSError:
            _reach_hub()
    try:
        fields, _ = PretrainedConfig.get_config_dict(source, revision=revision)
    except OSError as error:
        if is_folder:
            raise
        problem = "no such folder, and the hub has no such model or cannot be reached"
        raise ValueError(f"{problem}: {first_line(error)}") from error
    _refuse_kernels(fields)
    return AutoConfig.from_pretrained(
        source, revision=revision, trust_remote_code=trust_remote_code
    )


def _refuse_kernels(fields: Any) -> None:
    """Raise ValueError for fields that name a kernel, which is code from the hub."""
    if isinstance(fields, dict):
        for name, value in fields.items():
            if name.endswith("_implementation") and "/" in str(value):
                raise ValueError(f"config.json: {name} names a kernel to download, which is code")
            _refuse_kernels(value)
    elif isinstance(fields, list):
        for value in fields:
            _refuse_kernels(value)


def quiet_transformers() -> None:
    """Silence transformers' table of missing weights, which `check_weights` reports."""
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
    model, report = kind.from_pretrained(
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
    check_weights(report)
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
    end = tokenizer.eos_token_id
    if end is not None and end < rows:
        named.append(end)
    ids = (ids if isinstance(ids, list) else [ids] for ids in named if ids is not None)
    return list(dict.fromkeys(chain.from_iterable(ids)))


def all_finite(weight: torch.Tensor) -> bool:
    """Whether all values are finite and not absurdly large: then their sum is finite, too.

    Unlike `isfinite`, the sum allocates no mask.
    """
    return bool(weight.sum(dtype=torch.float32).isfinite())


def check_tokenizer(tokenizer: Any, rows: int) -> None:
    """Raise ValueError if the tokenizer has more than `rows` tokens, those that the model embeds.

    Ids of added tokens may exceed `rows` (image tokens of text-only models); a text that contains
    one of these tokens is refused later.
    """
    if tokenizer.vocab_size > rows:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model embeds only {rows}; "
            "they belong to different models"
        )


def check_weights(report: dict[str, Any]) -> None:
    """Raise ValueError for missing weights and wrong shapes.

    report: the loading report of transformers.
    """
    if report["mismatched_keys"]:
        name, stored, wanted = min(report["mismatched_keys"])
        raise ValueError(
            f"the weight {name} has the shape {tuple(stored)}; the config says {tuple(wanted)}"
        )
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"the files lack the weight {missing[0]}{more}, which would be random")

"""The bundled chat model as a GGUF file, which llama.cpp reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def convert(
    folder: Path, out: Path, quantisation: str = "F32", add: Callable[[Any], object] | None = None
) -> None:
    """Write the Llama in `folder`; its matrices in a quantisation of gguf's.

    add: adds further fields and tensors to the writer.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text())
    width, heads = config["hidden_size"], config["num_attention_heads"]
    writer = gguf.GGUFWriter(out, config["model_type"])
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(width // heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_embedding_length(width)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, folder, config)
    for key, value in load_file(folder / "model.safetensors").items():
        tensor = _named(key)
        x = value.astype(np.float32)
        if ".attn_q." in tensor or ".attn_k." in tensor:  # llama.cpp turns pairs beside each other
            x = x.reshape(heads, 2, -1, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)
        x = np.ascontiguousarray(x)
        kind = gguf.GGMLQuantizationType[quantisation if x.ndim == 2 else "F32"]
        writer.add_tensor(tensor, gguf.quants.quantize(x, kind), raw_dtype=kind)
    if add is not None:
        add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _named(key: str) -> str:
    """The name that llama.cpp has for a tensor."""
    body, _, part = key.rpartition(".")
    if body in _ENDS:
        return f"{_ENDS[body]}.{part}"
    _, _, number, inner = body.split(".", maxsplit=3)
    return f"blk.{number}.{_LAYER[inner]}.{part}"


def _add_tokenizer(writer: Any, folder: Path, config: dict[str, Any]) -> None:
    import gguf

    read = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = dict(read["model"]["vocab"])
    special = {one["content"]: one["id"] for one in read["added_tokens"]}
    by_id = {number: token for token, number in (vocabulary | special).items()}
    tokens = [by_id.get(number, f"[UNUSED{number}]") for number in range(config["vocab_size"])]
    control = set(special.values()) | set(range(config["vocab_size"])) - set(by_id)
    kinds = [
        gguf.TokenType.CONTROL if number in control else gguf.TokenType.NORMAL
        for number in range(len(tokens))
    ]
    merges = [one if isinstance(one, str) else " ".join(one) for one in read["model"]["merges"]]
    end = config["eos_token_id"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(end if isinstance(end, int) else end[0])
    writer.add_bos_token_id(special["<|endoftext|>"])
    writer.add_add_bos_token(False)
    template = folder / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())

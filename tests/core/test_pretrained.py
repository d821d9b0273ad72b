from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models import VOCAB, save_causal_lm, save_classifier
from tide.core.errors import EngineError, ScorerError, TideError
from tide.core.pretrained import read_config
from tide.engines.checkpoint import read_vocabulary
from tide.engines.local.engine import TransformersEngine
from tide.scorers import load_scorer

WEIGHTS, CONFIG = "model.safetensors", "config.json"
TABLE, UP = "model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"
Mutation = Callable[[Path], object]


def fields(file: str = CONFIG, **values: object) -> Mutation:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Mutation:
    def mutate(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return mutate


def spoilt(name: str, value: float) -> Mutation:
    return weights(lambda tensors: tensors[name].view(-1)[-1:].fill_(value))


def enlarged(factor: float) -> Mutation:
    return weights(lambda t: t.update({k: v * factor for k, v in t.items() if "mlp" in k}))


def smaller_vocabulary(folder: Path) -> None:
    """A model with 280 embeddings and a tokenizer with 300 tokens."""
    weights(lambda t: t.update({k: v[:280].clone() for k, v in t.items() if len(v) == VOCAB}))(
        folder
    )
    fields(vocab_size=280)(folder)


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


# By name: the change to the folder of a llama model, and the expected error.
BROKEN: dict[str, tuple[Mutation, str]] = {
    "a weight is missing": (
        weights(lambda tensors: tensors.pop(UP)),
        f"lack the weight {UP}, which would be random",
    ),
    "another width": (fields(intermediate_size=32), r"mlp\.\w+\.weight has the shape .*says"),
    "NaN": (spoilt(UP, float("nan")), f"{UP} holds NaN"),
    "weights that overflow": (enlarged(1e30), "logits are NaN or infinite"),
    "a kernel": (
        fields(sub={"attn_implementation": {"": "kernels-community/flash-attn2"}}),
        "attn_implementation names a kernel to download",
    ),
    "another tokenizer": (smaller_vocabulary, "300 tokens, but the model embeds only 280"),
    "an end that is not a token": (
        fields("generation_config.json", eos_token_id=[1, VOCAB]),
        f"token id {VOCAB} is not in its vocabulary of {VOCAB}",
    ),
    "no embeddings": (weights(lambda t: t.pop(TABLE)), f"no tensor '{TABLE}'"),
    "pickled embeddings": (pickled, "cannot read embeddings"),
    "embeddings of another shape": (fields(vocab_size=310), r"\(300, 32\), but .* \(310, 32\)"),
    "infinite embeddings": (spoilt(TABLE, float("inf")), "they hold NaN, infinite"),
    "embeddings without their scales": (
        weights(lambda t: t.update({TABLE: t[TABLE].to(torch.int8)})),
        "no real numbers",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_folder_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    mutate, message = BROKEN[name]
    mutate(save_causal_lm(tmp_path, "llama"))
    door = DOORS["embeddings" if "embeddings" in name else "engine"]
    with pytest.raises(EngineError, match=message) as caught:
        door(str(tmp_path))
    assert str(caught.value).startswith(f"model {tmp_path}: ")  # whichever check raised it


def test_a_model_without_a_trained_head_is_no_scorer(tmp_path: Path) -> None:
    """Transformers would load it with a random head."""
    save_causal_lm(tmp_path, "gpt2")
    with pytest.raises(ScorerError, match=r"lack the weight score\.weight, which would be random"):
        load_scorer(f"hf:{tmp_path}#LABEL_1")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_load_model_refuses_an_adapter(tmp_path: Path) -> None:
    """Transformers then reports missing weights of the adapter only, not those of the model."""
    peft = pytest.importorskip("peft")
    model = TransformersEngine(save_causal_lm(tmp_path, "llama")).model
    peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear")).save_pretrained(
        tmp_path
    )
    with pytest.raises(EngineError, match="holds an adapter"):
        TransformersEngine(tmp_path)


DOORS: dict[str, Callable[[str], object]] = {
    "engine": lambda folder: TransformersEngine(folder, trust_remote_code="off"),  # type: ignore[arg-type]
    "classifier": lambda folder: load_scorer(f"hf:{folder}"),
    "guard": lambda folder: load_scorer(f"guard:{folder}#llama-guard"),
    "embeddings": lambda folder: read_vocabulary(folder, read_config(folder), torch.float32),
}


@pytest.mark.parametrize(
    ("door", "where"),
    [
        ("engine", "model"),
        ("classifier", "model"),
        ("engine", "known model"),
        ("classifier", "known model"),
        ("embeddings", "known model"),
        *((door, "tokenizer") for door in DOORS),
    ],
)
def test_code_of_a_folder_never_runs_unasked(
    door: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No question is asked at the terminal, where a yes would be the answer.

    A "known model" is of a type that transformers knows, and names a class of its own beside it.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran, folder = tmp_path / "ran", tmp_path / "model"
    if door == "classifier":
        save_classifier(folder, ["ok", "toxic"])
    else:
        save_causal_lm(folder, "llama")
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    classes = ("AutoConfig", "AutoModelForCausalLM", "AutoModelForSequenceClassification")
    if where == "model":
        fields(model_type="own", auto_map=dict.fromkeys(classes, "own.Mine"))(folder)
    elif where == "known model":
        fields(auto_map=dict.fromkeys(classes, "own.Mine"))(folder)
    else:
        custom = {"auto_map": {"AutoTokenizer": ["own.Mine", "own.Mine"]}}
        fields("tokenizer_config.json", tokenizer_class="Mine", **custom)(folder)
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *prompt: asked.append(prompt) or "y")
    is_named = (door, where) == ("engine", "tokenizer") or where == "model"
    # For BERT, transformers then reads the tokenizer with its own class.
    with pytest.raises(TideError, match="trust_remote") if is_named else suppress(TideError):
        DOORS[door](str(folder))
    assert (asked, ran.exists()) == ([], False)


def test_weights_that_overflow_in_float16_are_refused(tmp_path: Path) -> None:
    """They are finite, but too large once they are multiplied."""
    enlarged(100.0)(save_causal_lm(tmp_path, "llama"))
    with pytest.raises(EngineError, match=r"or is its dtype float16\?$"):
        TransformersEngine(tmp_path, dtype="float16")

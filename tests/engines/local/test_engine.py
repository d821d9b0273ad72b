from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.writing import completed, likelihoods
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BartConfig,
    GPT2LMHeadModel,
)

from tests.models import CONFIGS, CONTEXT, VOCAB, save_causal_lm, save_mamba
from tide.core.chat import Chat
from tide.core.errors import EngineError, InputError
from tide.core.settings import Sampling
from tide.engines.base import Engine, Request
from tide.engines.local.engine import TransformersEngine

PROMPTS = [
    "The weather",
    "Rain fell on the quiet town and the people",
    "kind",
    "is fine is fine is",
]
GREEDY = Sampling(temperature=0.0, max_new_tokens=12)


# Architectures that the tests of streams read, too.
FURTHER = ("qwen3", "gpt_neox")


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(kind, marks=pytest.mark.slow if kind in FURTHER else ()) for kind in CONFIGS
    ],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind = request.param
    path = tmp_path_factory.mktemp(kind)
    return save_causal_lm(path, kind, bos=kind in ("llama", "gemma2"))


def greedy_ids(engine: TransformersEngine, prompts: list[str] = PROMPTS) -> list[tuple[int, ...]]:
    embeddings = engine.embed(prompts)
    return [completion.token_ids for completion in completed(engine, embeddings, GREEDY)]


def test_greedy_equals_generate_from_ids(folder: Path) -> None:
    """Alone and left-padded in a batch, also with scaled embeddings (Gemma)."""
    engine = TransformersEngine(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        ids = model.generate(
            inputs.input_ids, attention_mask=inputs.attention_mask,
            max_new_tokens=12, do_sample=False, pad_token_id=2,
        )[0, inputs.input_ids.shape[1] :].tolist()  # fmt: skip
        expected.append(tuple(ids[: ids.index(1)] if 1 in ids else ids))
    assert len(set(expected)) > 1
    assert greedy_ids(engine) == expected
    assert [greedy_ids(engine, [prompt])[0] for prompt in PROMPTS] == expected


def test_loaded_model_writes_like_its_folder(tmp_path: Path) -> None:
    """The caller's weights are neither packed nor copied, and the model has a digest of its own."""
    path = save_causal_lm(tmp_path, "llama")
    by_folder = TransformersEngine(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    engine = TransformersEngine(model)
    assert engine.model is model
    assert engine.name == str(path)
    assert "forward" not in vars(model.lm_head)
    written = greedy_ids(engine)
    assert written == greedy_ids(by_folder)
    weights = engine.weights
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    changed = TransformersEngine(model)
    assert greedy_ids(changed) != written
    assert None is by_folder.weights != weights != changed.weights


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's
def test_loaded_adapter_is_part_of_the_model(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    path = save_causal_lm(tmp_path, "llama")
    plain = greedy_ids(TransformersEngine(path))
    config = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(0)
    tuned = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(path), config)
    engine = TransformersEngine(tuned)
    (ids,) = engine.tokenize(PROMPTS[:1])
    ((first, *_), *_) = written = greedy_ids(engine)
    assert written != plain
    with torch.inference_mode():
        assert int(tuned(torch.tensor([ids])).logits[0, -1].argmax()) == first
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    prefixed = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(path), prompt)
    with pytest.raises(EngineError, match="its adapter is a prompt"):
        TransformersEngine(prefixed)


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForSequenceClassification])
def test_loaded_model_without_a_head_for_text_is_refused(kind: Any, tmp_path: Path) -> None:
    model = kind.from_pretrained(save_causal_lm(tmp_path, "llama"))
    with pytest.raises(EngineError, match="writes no text; load it with AutoModelForCausalLM"):
        TransformersEngine(model)


def test_loaded_model_that_takes_no_embeddings_is_refused(tmp_path: Path) -> None:
    class OfIds(GPT2LMHeadModel):
        def forward(self, input_ids: Any = None, **options: Any) -> Any:
            return super().forward(input_ids=input_ids)

    model = OfIds.from_pretrained(save_causal_lm(tmp_path, "gpt2"))
    with pytest.raises(EngineError, match="its forward pass takes no inputs_embeds"):
        TransformersEngine(model)


def test_loaded_model_of_unknown_origin_is_refused() -> None:
    with pytest.raises(EngineError, match="its tokenizer cannot be read"):
        TransformersEngine(AutoModelForCausalLM.from_config(CONFIGS["llama"]()))


def test_rows_at_the_end_of_their_context_are_written_as_alone(folder: Path) -> None:
    """Beside a neighbour that writes beyond the end of their context."""
    engine = TransformersEngine(folder)
    rows = [
        ([7] * (CONTEXT - 1), Sampling(temperature=1.5, top_k=5, max_new_tokens=1)),
        ([9, 11] * (CONTEXT // 2 - 4), Sampling(temperature=1.0, max_new_tokens=8)),
        (engine.tokenize(PROMPTS)[1], Sampling(temperature=0.7, top_p=0.8, max_new_tokens=20)),
        ([5], GREEDY),
    ]
    prompts, samplings = [ids for ids, _ in rows], [sampling for _, sampling in rows]
    together = completed(engine, prompts, samplings)
    for number, (ids, sampling) in enumerate(rows):
        assert completed(engine, [ids], sampling, [number]) == [together[number]]


def test_rows_of_a_model_that_ignores_the_mask_are_written_as_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder of BART counts the columns of a batch, with those of the padding."""
    bart = BartConfig(
        d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64,
        max_position_embeddings=CONTEXT, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    monkeypatch.setitem(CONFIGS, "bart", lambda: bart)
    engine = TransformersEngine(save_causal_lm(tmp_path, "bart"))
    sampling = Sampling(temperature=1.0, max_new_tokens=12)
    rows = engine.tokenize(PROMPTS)
    together = completed(engine, rows, sampling)
    for number, ids in enumerate(rows):
        assert completed(engine, [ids], sampling, [number]) == [together[number]]


def test_likelihood_equals_the_plain_computation(folder: Path) -> None:
    engine = TransformersEngine(folder, max_batch=3)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompts = engine.tokenize(PROMPTS)
    completions = [[5, 9, 30], [7], [100, 101, 102, 103, 104], [3, 3]]
    expected = []
    for prompt, completion in zip(prompts, completions, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + completion])).logits[0].double()
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        expected.append(float(rows[torch.arange(len(completion)), completion].mean()))
    assert likelihoods(engine, prompts, completions) == pytest.approx(expected, abs=1e-4)


def test_bfloat16_is_near_float32_and_not_the_default() -> None:
    pocket = TransformersEngine("pocket")
    assert pocket.device.type == "cuda" or pocket.dtype == torch.float32
    half = TransformersEngine("pocket", dtype="bfloat16", device="cpu")
    assert half.dtype == torch.bfloat16
    prompts = half.tokenize(PROMPTS)
    completions = greedy_ids(half)
    assert all(completions)
    measured = likelihoods(half, prompts, completions)
    assert measured == pytest.approx(likelihoods(pocket, prompts, completions), abs=0.05)


@pytest.mark.parametrize("word_marks", [False, True])
def test_text_continues_the_prompt_exactly(tmp_path: Path, word_marks: bool) -> None:
    """The first space of a completion survives, also if the tokenizer marks word starts."""
    engine = TransformersEngine(save_causal_lm(tmp_path, "llama", bos=True, word_marks=word_marks))
    ids = engine.tokenizer.encode("The people are kind", add_special_tokens=False)
    whole = engine.tokenizer.decode(ids)
    for cut in range(1, len(ids)):
        completion = engine.completion(ids[cut:], "length", 0, GREEDY)
        assert engine.tokenizer.decode(ids[:cut]) + completion.text == whole


def test_special_tokens_are_marked(tmp_path: Path) -> None:
    engine = TransformersEngine(save_causal_lm(tmp_path, "llama", bos=True))
    prompt = engine.encode("The weather")
    assert prompt.fixed_mask == (True, *[False] * (len(prompt.token_ids) - 1))
    assert prompt.user_mask is None
    assert engine.tokenize(["The weather"]) == [list(prompt.token_ids)]


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_batch", 0), ("device", "gpu"), ("device", "meta"), ("device", "cuda:99"), ("device", 5)],
)
def test_bad_arguments(option: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{option}"):
        TransformersEngine("pocket", **{option: value})


def test_folders_without_a_usable_model(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        TransformersEngine(tmp_path)
    with pytest.raises(EngineError, match=r"inputs_embeds|key-value cache"):
        TransformersEngine(save_mamba(tmp_path))


def test_a_model_that_writes_from_more_than_embeddings_is_refused(tmp_path: Path) -> None:
    """Its blocks get the token ids, too."""
    engine = TransformersEngine(save_causal_lm(tmp_path, "gpt2"))

    def double(_: object, positional: Any, arguments: dict[str, Any]) -> Any:
        if "inputs_embeds" in arguments:
            arguments["inputs_embeds"] = 2 * arguments["inputs_embeds"]
        return positional, arguments

    engine.model.register_forward_pre_hook(double, with_kwargs=True)
    with pytest.raises(EngineError, match="different logits"):
        TransformersEngine(engine.model)


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    """Every method that works with the model raises the same error."""
    engine = TransformersEngine(save_causal_lm(tmp_path, "gpt2"))
    request = Request(engine.embed(PROMPTS[:1])[0])
    calls: dict[str, tuple[Any, ...]] = {
        "tokenize": ([],),
        "encode": ("fine",),
        "count_tokens": ("fine",),
        "texts": ([[1]],),
        "token_texts": ([[1]],),
        "render": (Chat.said("fine"),),
        "text_of": (Chat.said("fine"),),
        "embed": (["fine"],),
        "embed_tokens": ([1],),
        "ban": ([1],),
        "write": (request,),
        "complete": ([request],),
        "log_likelihoods": ([([1], [2])],),
    }
    others = {"close", "completion", "has_stopped", "prefix_cache", "supports_continuation"}
    methods = {name for name, _ in inspect.getmembers(Engine, inspect.isfunction)}
    working = {name for name in methods if not name.startswith(("_", "check"))}
    assert calls.keys() == working - others
    model = weakref.ref(engine.model)
    for _ in range(2):
        engine.close()
    gc.collect()
    assert model() is None
    assert engine.closed
    assert not engine.available

    async def call(name: str) -> None:
        result = getattr(engine, name)(*calls[name])
        await (anext(result) if inspect.isasyncgen(result) else result)

    for name in calls:
        with pytest.raises(EngineError, match="closed; make a new one"):
            asyncio.run(call(name))


@pytest.mark.parametrize("name", ["./missing", "~/missing", "a/b/c", "a/"])
def test_a_missing_folder_is_no_matter_of_the_hub(name: str) -> None:
    with pytest.raises(EngineError, match=r"model \S+missing|a/\S*: no such folder$"):
        TransformersEngine(name)


def test_a_name_that_is_neither_a_folder_nor_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def cached_file(*_: object, **__: object) -> None:
        raise OSError("not a valid model identifier\n and more")

    monkeypatch.setattr("transformers.utils.cached_file", cached_file)
    monkeypatch.setattr("transformers.configuration_utils.cached_file", cached_file)
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    problem = "no such folder, and the hub has no such model or cannot be reached: not a valid"
    with pytest.raises(EngineError, match=rf"{problem} model identifier$"):
        TransformersEngine("missing/model")


def test_without_a_network_the_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Session:
        def head(self, url: str, timeout: float) -> None:
            asked.append(url)
            raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)
    monkeypatch.setattr("huggingface_hub.get_session", Session)
    with pytest.raises(EngineError, match="the hub cannot be reached: no route"):
        TransformersEngine("missing/model")
    assert len(asked) == 1

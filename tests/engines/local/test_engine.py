from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Sequence
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

from tests.models import CONFIGS, CONTEXT, MAMBA, VOCAB, ending_with, save_causal_lm
from tide.core.chat import Chat
from tide.core.errors import EngineError, InputError
from tide.core.settings import Sampling
from tide.engines.base import Completion, Request
from tide.engines.local.engine import TransformersEngine

PROMPTS = [
    "The weather",
    "Rain fell on the quiet town and the people",
    "kind",
    "is fine is fine is",
]
LENGTH = 12


def greedy(length: int = LENGTH, **options: Any) -> Sampling:
    return Sampling(**{"temperature": 0.0, "max_new_tokens": length, **options})


GREEDY = greedy()


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


@pytest.fixture(scope="module")
def pocket() -> TransformersEngine:
    return TransformersEngine("pocket")


def written(
    engine: TransformersEngine, sampling: Sampling = GREEDY, prompts: Sequence[str] = PROMPTS
) -> list[Completion]:
    return completed(engine, engine.embed(prompts), sampling)


def generated(model: Any, ids: list[int], end: int, options: dict[str, Any]) -> tuple[int, ...]:
    """The tokens that `generate` adds, without the token that ends the text."""
    prompt = torch.tensor([ids])
    whole = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=LENGTH, do_sample=False,
        pad_token_id=2, eos_token_id=end, **options,
    )  # fmt: skip
    new = whole[0, len(ids) :].tolist()
    return tuple(new[: new.index(end)] if end in new else new)


def test_greedy_texts_are_those_of_generate(folder: Path) -> None:
    """Alone and left-padded in a batch, also with scaled embeddings (Gemma)."""
    engine = TransformersEngine(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows, seen = engine.tokenize(PROMPTS), set()
    end = written(engine)[0].token_ids[2]
    with ending_with(engine, end):
        for options in (
            {},
            {"min_new_tokens": 7},
            {"repetition_penalty": 1.3},
            {"repetition_penalty": 0.8, "min_new_tokens": LENGTH},
        ):
            # A repetition penalty needs the prompt's ids.
            prompts: Any = rows if "repetition_penalty" in options else engine.embed(PROMPTS)
            sampling = greedy(**options)
            expected = [generated(model, ids, end, options) for ids in rows]
            together = [row.token_ids for row in completed(engine, prompts, sampling)]
            assert together == expected
            alone = [completed(engine, [prompt], sampling)[0].token_ids for prompt in prompts]
            assert alone == expected
            seen.add(tuple(expected))
    assert len(seen) == 4


def test_loaded_model_writes_like_its_folder(tmp_path: Path) -> None:
    """The caller's weights are neither packed nor copied, and the model has a digest of its own."""
    path = save_causal_lm(tmp_path, "llama")
    by_folder = TransformersEngine(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    engine = TransformersEngine(model)
    assert engine.model is model
    assert engine.name == str(path)
    assert "forward" not in vars(model.lm_head)
    texts = written(engine)
    assert texts == written(by_folder)
    weights = engine.weights
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    changed = TransformersEngine(model)
    assert written(changed) != texts
    assert None is by_folder.weights != weights != changed.weights


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's
def test_loaded_adapter_is_part_of_the_model(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    path = save_causal_lm(tmp_path, "llama")
    plain = written(TransformersEngine(path))
    config = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(0)
    tuned = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(path), config)
    engine = TransformersEngine(tuned)
    (ids,) = engine.tokenize(PROMPTS[:1])
    texts = written(engine)
    assert texts != plain
    with torch.inference_mode():
        first = int(tuned(torch.tensor([ids])).logits[0, -1].argmax())
    assert texts[0].token_ids[0] == first
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    prefixed = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(path), prompt)
    with pytest.raises(EngineError, match="its adapter is a prompt"):
        TransformersEngine(prefixed)


class OfIds(GPT2LMHeadModel):
    def forward(self, input_ids: Any = None, **options: Any) -> Any:
        return super().forward(input_ids=input_ids)


class OfMore(GPT2LMHeadModel):
    """A model whose blocks get more than embeddings."""

    def forward(self, inputs_embeds: Any = None, **options: Any) -> Any:
        x = None if inputs_embeds is None else 2 * inputs_embeds
        return super().forward(inputs_embeds=x, **options)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (AutoModel, "writes no text; load it with AutoModelForCausalLM"),
        (AutoModelForSequenceClassification, "writes no text; load it with AutoModelForCausalLM"),
        (OfIds, "its forward pass takes no inputs_embeds"),
        (OfMore, "different logits"),
    ],
)
def test_loaded_model_that_cannot_be_used(kind: Any, problem: str, tmp_path: Path) -> None:
    model = kind.from_pretrained(save_causal_lm(tmp_path, "gpt2"))
    with pytest.raises(EngineError, match=problem):
        TransformersEngine(model)


def test_loaded_model_of_unknown_origin_is_refused() -> None:
    with pytest.raises(EngineError, match="its tokenizer cannot be read"):
        TransformersEngine(AutoModelForCausalLM.from_config(CONFIGS["llama"]()))


def check_rows_are_written_as_alone(engine: TransformersEngine) -> None:
    """Rows at the end of their context, beside a neighbour that writes beyond it."""
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


def test_rows_of_different_lengths_are_written_as_alone(folder: Path) -> None:
    check_rows_are_written_as_alone(TransformersEngine(folder))


def test_rows_of_a_model_that_ignores_the_mask_are_written_as_alone(tmp_path: Path) -> None:
    """The decoder of BART counts the columns of a batch, with those of the padding."""
    bart = BartConfig(
        d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64,
        max_position_embeddings=CONTEXT, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    check_rows_are_written_as_alone(TransformersEngine(save_causal_lm(tmp_path, bart)))


def test_likelihood_equals_the_plain_computation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there is only memory for one text at once."""
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
    plain = engine.forward.read

    def read(rows: Sequence[torch.Tensor], **options: Any) -> Any:
        if len(rows) > 1:
            raise RuntimeError("not enough memory")
        return plain(rows, **options)

    monkeypatch.setattr(engine.forward, "read", read)
    assert likelihoods(engine, prompts, completions) == pytest.approx(expected, abs=1e-4)


def test_bfloat16_is_near_float32_and_not_the_default(pocket: TransformersEngine) -> None:
    assert pocket.device.type == "cuda" or pocket.dtype == torch.float32
    half = TransformersEngine("pocket", dtype="bfloat16", device="cpu")
    assert half.dtype == torch.bfloat16
    prompts = half.tokenize(PROMPTS)
    completions = [completion.token_ids for completion in written(half)]
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
    assert engine.tokenize(["The weather"]) == [list(prompt.token_ids)]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("device", device) for device in ("gpu", "meta", "cuda:99", 5)),
        ("max_batch", 0),
        ("trust_remote_code", '"false"'),
        ("colour", 1),
    ],
)
def test_bad_arguments(option: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{option}"):
        TransformersEngine("pocket", **{option: value})


def test_folders_without_a_usable_model(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        TransformersEngine(tmp_path)
    with pytest.raises(EngineError, match=r"inputs_embeds|key-value cache"):
        TransformersEngine(save_causal_lm(tmp_path, MAMBA))


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    engine = TransformersEngine(save_causal_lm(tmp_path, "gpt2"))
    request = Request(engine.embed(PROMPTS[:1])[0])
    model = weakref.ref(engine.model)
    for _ in range(2):
        engine.close()
    gc.collect()
    assert model() is None
    assert engine.closed
    assert not engine.available
    for use in (
        lambda: engine.tokenize([]),
        lambda: engine.encode("fine"),
        lambda: engine.texts([[1]]),
        lambda: engine.render(Chat.said("fine")),
        lambda: engine.embed_tokens([1]),
        lambda: asyncio.run(engine.ban([1])),
        lambda: asyncio.run(engine.complete([request])),
    ):
        with pytest.raises(EngineError, match="closed; make a new one"):
            use()


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


# Ends of texts


def test_a_stop_string_may_span_tokens_and_end_inside_of_one(pocket: TransformersEngine) -> None:
    (whole,) = written(pocket, greedy(24, min_new_tokens=24), PROMPTS[1:2])
    ids = whole.token_ids
    ends = [len(pocket.texts([ids[:n]])[0]) for n in range(len(ids) + 1)]
    cuts = [(ends[first] - 1, ends[first + 2] - 1) for first in (3, 4, 7, 11)]
    for begin, end in [(0, 2), *cuts]:
        stops = ("never", whole.text[begin:end])
        sampling = greedy(24, min_new_tokens=24, stop=stops)
        (completion,) = written(pocket, sampling, PROMPTS[1:2])
        assert completion.text == whole.text.partition(stops[1])[0]
        assert completion.finish_reason == "stop"
        count = len(completion.token_ids)
        assert completion.token_ids == ids[:count]
        assert ends[count] >= len(completion.text)
        assert count == 0 or ends[count - 1] < len(completion.text)


def test_rows_that_hold_their_stop_strings_are_read_no_further(pocket: TransformersEngine) -> None:
    long = greedy(90, min_new_tokens=90)
    before = pocket.forward_tokens
    texts = [completion.text for completion in written(pocket, long)]
    full = pocket.forward_tokens - before
    written(pocket, long.model_copy(update={"stop": tuple(text[1:4] for text in texts)}))
    assert pocket.forward_tokens - before - full < full / 3


@pytest.mark.parametrize("where", ["tokenizer_config", "generation_config", "config"])
def test_the_end_of_a_turn_and_of_a_document_both_end_a_text(where: str, tmp_path: Path) -> None:
    folder = save_causal_lm(tmp_path, "gpt2")
    with TransformersEngine(folder) as engine:
        (whole,) = written(engine, GREEDY, PROMPTS[:1])
        end = whole.token_ids[3]
        name = engine.tokenizer.convert_ids_to_tokens(end)
    changes: dict[str, dict[str, Any]] = {
        "tokenizer_config": {"eos_token": name},
        "config": {"eos_token_id": end},
        "generation_config": {"eos_token_id": [2, end]},
    }
    file = folder / f"{where}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes[where]))
    with TransformersEngine(folder) as engine:
        assert {1, end} <= set(engine.stop_ids.tolist())
        (text,) = written(engine, GREEDY, PROMPTS[:1])
        ids = whole.token_ids[: whole.token_ids.index(end)]
        assert text == Completion(engine.texts([ids])[0], ids, "stop")


def test_an_end_that_the_model_does_not_embed_is_none(tmp_path: Path) -> None:
    folder = save_causal_lm(tmp_path, "gpt2", markers=[f"<{n}>" for n in range(20)])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "<turn>"})
    tokenizer.save_pretrained(folder)
    assert tokenizer.eos_token_id >= VOCAB
    with TransformersEngine(folder) as engine:
        assert engine.stop_ids.tolist() == [1]


def test_control_tokens_do_not_vanish_from_a_text(tmp_path: Path) -> None:
    folder = save_causal_lm(tmp_path, "llama", bos=True, markers=["<turn>"])
    with TransformersEngine(folder) as engine:
        (marker,) = engine.tokenizer.encode("<turn>", add_special_tokens=False)
        ids = [*engine.tokenizer.encode("fine", add_special_tokens=False), marker, 0]
        completion = engine.completion(ids, "length", 0, GREEDY)
        assert completion.text == "fine<turn><s>"
        assert engine.token_texts([ids])[0][-2:] == ["<turn>", "<s>"]
        cut = engine.completion(ids, "length", 0, greedy(stop="<turn>"))
        assert (cut.text, cut.finish_reason) == ("fine", "stop")

"""Minimum lengths, stop strings and repetition penalties, compared with transformers' generate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.writing import completed
from transformers import AutoTokenizer

from tests.models import VOCAB, save_causal_lm
from tide.core.settings import Sampling
from tide.engines.base import Completion
from tide.engines.local.engine import TransformersEngine

PROMPTS = ["The weather", "Rain fell on the quiet town and the people", "kind", "is fine is"]
LENGTH = 24
KINDS = [
    *("gpt2", "gemma2"),  # the two that differ most
    pytest.param("llama", marks=pytest.mark.slow),
    pytest.param("qwen3", marks=pytest.mark.nightly),
]


@pytest.fixture(scope="module", params=KINDS)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TransformersEngine:
    kind = request.param
    folder = save_causal_lm(tmp_path_factory.mktemp(kind), kind, bos=kind in ("llama", "gemma2"))
    return TransformersEngine(folder)


@pytest.fixture(scope="module")
def pocket() -> TransformersEngine:
    return TransformersEngine("pocket")


def written(
    engine: TransformersEngine,
    samplings: Sampling | Sequence[Sampling],
    prompts: Sequence[str] = PROMPTS,
    seed: int = 0,
) -> list[Completion]:
    x = engine.embed(prompts)
    return completed(engine, x, samplings, [seed] * len(x))


def generated(engine: TransformersEngine, inputs: dict[str, Any], **options: Any) -> list[int]:
    """The tokens that `generate` adds, without the token that ends the text."""
    arguments = {"max_new_tokens": LENGTH, "do_sample": False, "pad_token_id": 2} | options
    if "input_ids" not in inputs:
        inputs = inputs | {"attention_mask": torch.ones(inputs["inputs_embeds"].shape[:2]).long()}
    inputs = {name: tensor.to(engine.device) for name, tensor in inputs.items()}
    with torch.inference_mode():
        ids = engine.model.generate(**inputs, **arguments)[0].tolist()
    new = ids[inputs["input_ids"].shape[1] :] if "input_ids" in inputs else ids
    stop = int(engine.stop_ids[0])
    return new[: new.index(stop)] if stop in new else new


def greedy(**options: Any) -> Sampling:
    return Sampling(**{"temperature": 0.0, "max_new_tokens": LENGTH, **options})


def test_least_lengths_and_penalties_as_generate_from_embeddings(
    engine: TransformersEngine,
) -> None:
    """Given ids beside embeddings, `generate` also penalises the prompt."""
    ends = written(engine, greedy())[0].token_ids[2]
    file = Path(engine.name) / "generation_config.json"
    saved = file.read_text()
    file.write_text(json.dumps(json.loads(saved) | {"eos_token_id": ends}))
    with TransformersEngine(engine.name) as ending:
        file.write_text(saved)
        for options in (
            {"min_new_tokens": 7},
            {"repetition_penalty": 1.3},
            {"repetition_penalty": 0.8, "min_new_tokens": LENGTH},
        ):
            expected = []
            for x, ids in zip(ending.embed(PROMPTS), ending.tokenize(PROMPTS), strict=True):
                inputs = {"inputs_embeds": x[None]}
                if "repetition_penalty" in options:
                    inputs["input_ids"] = torch.tensor([ids])
                expected.append(generated(ending, inputs, **options))
            rows = ending.tokenize(PROMPTS)
            prompts = rows if "repetition_penalty" in options else ending.embed(PROMPTS)
            completions = completed(ending, prompts, greedy(**options))
            assert [list(completion.token_ids) for completion in completions] == expected
            assert completions != written(ending, greedy())


def test_a_stop_string_may_span_tokens_and_end_inside_of_one(pocket: TransformersEngine) -> None:
    (whole,) = written(pocket, greedy(min_new_tokens=LENGTH), PROMPTS[1:2])
    ids = whole.token_ids
    ends = [len(pocket.texts([ids[:n]])[0]) for n in range(len(ids) + 1)]
    cuts = [(ends[first] - 1, ends[first + 2] - 1) for first in (3, 4, 7, 11)]
    for begin, end in [(0, 2), *cuts]:
        stops = ("never", whole.text[begin:end])
        sampling = greedy(min_new_tokens=LENGTH, stop=stops)
        (completion,) = written(pocket, sampling, PROMPTS[1:2])
        assert completion.text == whole.text.partition(stops[1])[0]
        assert completion.finish_reason == "stop"
        count = len(completion.token_ids)
        assert completion.token_ids == ids[:count]
        assert ends[count] >= len(completion.text)
        assert count == 0 or ends[count - 1] < len(completion.text)


def test_rows_that_hold_their_stop_strings_are_read_no_further(pocket: TransformersEngine) -> None:
    long = greedy(max_new_tokens=90, min_new_tokens=90)
    before = pocket.forward_tokens
    texts = [completion.text for completion in written(pocket, long)]
    full = pocket.forward_tokens - before
    written(pocket, long.model_copy(update={"stop": tuple(text[1:4] for text in texts)}))
    assert pocket.forward_tokens - before - full < full / 3


@pytest.mark.parametrize("where", ["tokenizer_config", "generation_config", "config"])
def test_the_end_of_a_turn_and_of_a_document_both_end_a_text(where: str, tmp_path: Path) -> None:
    """Whichever file names the second of the two tokens."""
    folder = save_causal_lm(tmp_path, "gpt2")
    with TransformersEngine(folder) as engine:
        (whole,) = written(engine, greedy(), PROMPTS[:1])
        end = whole.token_ids[3]
        name = engine.tokenizer.convert_ids_to_tokens(end)
    file = folder / f"{where}.json"
    fields = json.loads(file.read_text())
    if where == "tokenizer_config":
        fields["eos_token"] = name
    elif where == "config":
        fields["eos_token_id"] = end
    else:
        fields["eos_token_id"] = [2, end]
    file.write_text(json.dumps(fields))
    with TransformersEngine(folder) as engine:
        assert {1, end} <= set(engine.stop_ids.tolist())
        (text,) = written(engine, greedy(), PROMPTS[:1])
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
        completion = engine.completion(ids, "length", 0, greedy())
        assert completion.text == "fine<turn><s>"
        assert engine.token_texts([ids])[0][-2:] == ["<turn>", "<s>"]
        cut = engine.completion(ids, "length", 0, greedy(stop="<turn>"))
        assert (cut.text, cut.finish_reason) == ("fine", "stop")

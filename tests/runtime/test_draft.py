"""Answers in blocks, where nothing fails, are token for token what one call writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tide.engines.writing import CompletingWriter, open_writer

from tests.models import save_causal_lm
from tide.core.results import Result
from tide.core.seeds import derive_seed
from tide.core.settings import Sampling
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Writer, Written
from tide.engines.local.engine import TransformersEngine
from tide.runtime.draft import Draft

PROMPTS = ["The weather", "Rain fell on the quiet town and", "kind", "is fine is fine is"]
KINDS = ["gpt2", "llama", "qwen3", "gemma2"]


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    return TransformersEngine(save_causal_lm(folder, kind, bos=kind in ("llama", "gemma2")))


def embedded(engine: TransformersEngine) -> list[torch.Tensor]:
    return engine.embed(PROMPTS)


def write(writer: Writer, chunk: int) -> list[list[int]]:
    """All ids of all rows; what has ended or is long enough is dropped half-way."""
    rows = list(range(len(PROMPTS)))
    found: list[list[int]] = [[] for _ in rows]
    while rows:
        parts: list[Written] = writer.advance(chunk)
        for row, (ids, _) in zip(rows, parts, strict=True):
            found[row] += ids
        going = [i for i, (_, reason) in enumerate(parts) if reason is None]
        if going and len(going) < len(rows):
            writer.keep(going)
        rows = [rows[i] for i in going]
    return found


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("least", [0, 30])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_writer_writes_what_one_call_writes(
    engine: TransformersEngine, temperature: float, least: int, chunk: int
) -> None:
    """In chunks of any size, with rows that end early and are dropped."""
    samplings = [
        Sampling(max_new_tokens=n, min_new_tokens=min(n, least), temperature=temperature)
        for n in (30, 12, 44, 20)
    ]
    expected = engine.complete(embedded(engine), samplings, range(4))
    writer = open_writer(engine, embedded(engine), samplings, list(range(4)))
    assert [tuple(ids) for ids in write(writer, chunk)] == [one.token_ids for one in expected]
    if temperature == 0:
        writer = CompletingWriter(engine, embedded(engine), samplings, list(range(4)))
        assert [tuple(ids) for ids in write(writer, chunk)] == [one.token_ids for one in expected]


def test_a_penalty_goes_on_where_rows_are_dropped(engine: TransformersEngine) -> None:
    samplings = [Sampling(max_new_tokens=n, repetition_penalty=1.3) for n in (4, 6, 40, 40)]
    expected = engine.complete(embedded(engine), samplings, range(4))
    writer = open_writer(engine, embedded(engine), samplings, list(range(4)))
    assert [tuple(ids) for ids in write(writer, 3)] == [one.token_ids for one in expected]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("chunk", [7, 32])
def test_clean_answers_are_what_one_call_writes(
    engine: TransformersEngine, temperature: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(**changes: Any) -> list[Result]:
        detox = Detoxifier(engine, scorer=lambda texts: [0.0] * len(texts))
        wanted = {"max_new_tokens": 44, "temperature": temperature, **changes}
        return list(detox.map(PROMPTS, **wanted))  # type: ignore[arg-type]

    drafts: list[Draft] = []

    def draft(*arguments: Any, **options: Any) -> Draft:
        drafts.append(Draft(*arguments, **options))
        return drafts[-1]

    whole = answers(block_tokens=0)
    seeds = [derive_seed(derive_seed(0, prompt, 0), "sampling", 0) for prompt in PROMPTS]
    sampling = Sampling(max_new_tokens=44, temperature=temperature)
    expected = engine.complete(embedded(engine), sampling, seeds)
    monkeypatch.setattr("tide.runtime.answer.Draft", draft)
    found = answers(block_tokens=16, draft_tokens=chunk)
    assert [tuple(one.token_ids) for one in drafts] == [one.token_ids for one in expected]
    for result, alone in zip(found, whole, strict=True):
        trial, other = result.best, alone.best
        assert trial.accepted
        assert trial.text == "".join(block.text for block in trial.blocks)
        # Random models write parts of characters, whose marks a cut may multiply.
        assert trial.text.replace("\ufffd", "") == other.text.replace("\ufffd", "")
        assert trial.returned.num_tokens == other.returned.num_tokens == trial.generated_tokens
        assert trial.returned.finish_reason == other.returned.finish_reason
        assert all(block.num_tokens <= 16 for block in trial.blocks)
        assert all(block.chosen == 0 and len(block.trace) == 1 for block in trial.blocks)

"""Answers in blocks, where nothing fails, are token for token what one call writes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from tests.models import save_causal_lm
from tide.core.concurrency import gather
from tide.core.results import Result
from tide.core.seeds import derive_seed
from tide.core.settings import Sampling
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import FinishReason, Request
from tide.engines.local.engine import TransformersEngine
from tide.runtime.draft import Draft, DraftReader

PROMPTS = ["The weather", "Rain fell on the quiet town and", "kind", "is fine is fine is"]
KINDS = [
    *("gpt2", "gemma2"),  # the two that differ most
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("llama", "qwen3")),
]


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    with TransformersEngine(
        save_causal_lm(folder, kind, bos=kind in ("llama", "gemma2"))
    ) as engine:
        yield engine


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("least", [0, 30])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_text_that_is_read_in_chunks_is_what_one_call_writes(
    engine: TransformersEngine, temperature: float, least: int, chunk: int
) -> None:
    """In chunks of any size, at the same time, some of them ended early."""
    samplings = [
        Sampling(max_new_tokens=n, min_new_tokens=min(n, least), temperature=temperature)
        for n in (30, 12, 44, 20)
    ]
    prompts = engine.tokenize(PROMPTS)
    expected = engine.complete(prompts, samplings, range(4))

    async def read(request: Request) -> list[int]:
        found: list[int] = []
        async with aclosing(engine.write(request)) as pieces:
            reader, reason = DraftReader(pieces), None
            while reason is None:
                ids, reason = await reader.take(chunk)
                assert len(ids) == chunk or reason is not None
                found += ids
        return found

    async def together() -> list[list[int]]:
        requests = [
            Request(ids, own, seed, piece_tokens=max(1, chunk // 4))
            for seed, (ids, own) in enumerate(zip(prompts, samplings, strict=True))
        ]
        return await gather(read(one) for one in requests)

    found = engine.home.run(together)
    assert [tuple(ids) for ids in found] == [one.token_ids for one in expected]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("chunk", [7, 32])
def test_clean_answers_are_what_one_call_writes(
    engine: TransformersEngine, temperature: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(**changes: Any) -> list[Result]:
        detox = Detoxifier(engine, scorer=lambda texts: [0.0] * len(texts))
        wanted = {"max_new_tokens": 44, "temperature": temperature, **changes}
        return list(detox.map(PROMPTS, **wanted))  # type: ignore[arg-type]

    drafts: dict[str, list[int]] = {}

    def add(self: Draft, ids: Sequence[int], reason: FinishReason | None) -> None:
        plain(self, ids, reason)
        drafts[str(id(self))] = self.token_ids
        kept.append(self)

    kept: list[Draft] = []  # so that no two have one id
    plain = Draft.add
    whole = answers(block_tokens=0)
    seeds = [derive_seed(derive_seed(0, prompt, 0), "sampling", 0) for prompt in PROMPTS]
    sampling = Sampling(max_new_tokens=44, temperature=temperature)
    expected = engine.complete(engine.tokenize(PROMPTS), sampling, seeds)
    monkeypatch.setattr(Draft, "add", add)
    found = answers(block_tokens=16, draft_tokens=chunk)
    assert sorted(map(tuple, drafts.values())) == sorted(one.token_ids for one in expected)
    for result, alone in zip(found, whole, strict=True):
        trial, other = result.best, alone.best
        assert trial.accepted
        assert trial.text == "".join(block.text for block in trial.blocks)
        # Random models write parts of characters, whose marks a cut may multiply, and for which a
        # block may have three tokens more.
        assert trial.text.replace("\ufffd", "") == other.text.replace("\ufffd", "")
        assert trial.returned.num_tokens == other.returned.num_tokens == trial.generated_tokens
        assert trial.returned.finish_reason == other.returned.finish_reason
        assert all(block.num_tokens <= 16 + 3 for block in trial.blocks)
        assert all(block.chosen == 0 and len(block.trace) == 1 for block in trial.blocks)


WORDS = [f" w{i}" for i in range(7)]


def draft(**changes: Any) -> Draft:
    usual: dict[str, Any] = {
        "before": [], "block_tokens": 16, "block_context": 50, "chunk": 12, "careful": False,
        "stop": (),
    }  # fmt: skip
    return Draft(**{**usual, **changes})


def test_the_first_chunk_is_shorter_unless_the_draft_is_careful() -> None:
    one = draft()
    assert one.next_chunk == 9
    one.add(range(9), None)
    assert (one.next_chunk, one.waits) == (12, True)
    one.add(range(12), None)
    one.add(range(12), None)
    assert not one.waits
    careful = draft(careful=True)
    assert careful.next_chunk == 12
    careful.add(range(50), None)
    assert careful.waits


def test_blocks_are_cut_once_with_what_stands_before_them() -> None:
    one = draft(before=["so"], block_context=3)
    texts = [*WORDS, " end.", *WORDS, " end.", " it", " goes"]
    one.add(range(len(texts)), None)
    first, second, rest = one.cut(texts)
    assert (first.text, first.context, first.context_tokens) == ("".join(texts[:8]), "so", 1)
    assert (second.context, second.context_tokens) == (" w5 w6 end.", 3)
    assert (rest.text, rest.unfinished, second.unfinished) == (" it", True, False)
    assert first.token_ids + second.token_ids == tuple(range(16))
    assert one.pending == [16, 17]
    assert one.sent == {part.context + part.text for part in (first, second, rest)}
    one.add([18], "length")
    (last,) = one.cut([" it", " goes", " on"])
    assert (last.text, last.last, last.unfinished) == (" it goes on", "length", False)
    assert one.pending == []


def test_an_answer_without_a_token_is_a_block_all_the_same() -> None:
    one = draft()
    one.add([], "stop")
    (only,) = one.cut([])
    assert (only.text, only.token_ids, only.last) == ("", (), "stop")
    again = draft(before=["a"])
    again.add([], "stop")
    assert again.cut([]) == []


def test_what_stands_after_a_stop_string_is_not_cut_into_blocks() -> None:
    one = draft(stop=("w3",))
    one.add(range(7), None)
    (only,) = one.cut(WORDS)
    assert (only.text, only.last, one.ended) == (" w0 w1 w2 ", "stop", "stop")

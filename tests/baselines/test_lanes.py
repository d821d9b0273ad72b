"""Rows of a baseline enter and leave at any step, and fail alone; the engine's model stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from benchmarks.writing import completed

from tests.baselines.conftest import World, with_nightly
from tests.baselines.stand_ins import STRENGTHS
from tests.models import ending_with
from tide.baselines.lanes import PromptRow
from tide.core.errors import CompletionError
from tide.core.settings import Sampling
from tide.engines.base import Piece, Request
from tide.engines.local.batch import Batch

PROMPTS = ["The weather", "Rain fell on the quiet town", "kind", "is fine is fine", "people"]
SAMPLING = Sampling(temperature=0.8, top_p=0.95, max_new_tokens=6)
HOOKED = ("destein", "pplm", "reversal", "sasa")
# The other baselines have the same lanes.
ONE_OF_EACH_LANE = (
    *("adlm", "dexperts", "gedi", "pplm", "rad", "reversal", "safe-decoding", "sasa"),
    *("self-debias", "word-filter"),
)


def written(baseline: Any, prompts: list[str], seeds: list[int]) -> list[tuple[Any, int]]:
    rows = baseline.generate(prompts, SAMPLING, seeds)
    return [(row.completion, row.forward_tokens) for row in rows]


@pytest.mark.parametrize("name", sorted(STRENGTHS))
def test_neighbours_change_nothing(gpt2: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither texts nor costs, also if rows enter while others are running."""
    baseline: Any = gpt2.load(STRENGTHS[name])
    seeds = list(range(len(PROMPTS)))
    whole = written(baseline, PROMPTS, seeds)
    stop = whole[1][0].token_ids[2]  # so that rows end at different steps
    with ending_with(gpt2.engine, stop):
        alone = [
            written(baseline, [prompt], [seed])[0]
            for prompt, seed in zip(PROMPTS, seeds, strict=True)
        ]
        candidates = getattr(baseline._options, "candidates", 1)
        monkeypatch.setattr(gpt2.engine, "max_batch", 2 * max(baseline.fan_out, candidates))
        assert written(baseline, PROMPTS, seeds) == alone


async def run_rows(baseline: Any, prompts: list[str]) -> list[list[Piece | Exception]]:
    """What the rows of `prompts` put, in a batch of their own."""
    reader, make_lane = baseline.drawn_from(), baseline.lanes()
    engine = baseline.engine
    batch = Batch(
        reader.forward,
        engine.stop_ids,
        engine.has_stopped,
        max_batch=2,
        make_lane=partial(make_lane, hooks=reader.hooks),
    )
    put: list[list[Piece | Exception]] = [[] for _ in prompts]
    for number, ids in enumerate(engine.tokenize(prompts)):
        request = Request(tuple(ids), SAMPLING, number)
        x = reader.embed(ids)
        batch.submit([PromptRow(request, x, put[number].append, ids, text=prompts[number])])
    while not all(put):
        await asyncio.sleep(0)
    batch.close()
    return put


@pytest.mark.parametrize("name", with_nightly(*ONE_OF_EACH_LANE, of=sorted(STRENGTHS)))
def test_row_with_nan_fails_alone(worlds: Callable[[str], World], name: str) -> None:
    """The NaN of one token's embedding, in each of the models, stays in no cache."""
    llama = worlds("llama")  # its output layer is not tied to the embeddings
    # With more candidates, that token would be a candidate of other rows.
    spec = STRENGTHS[name].replace("candidates=8", "candidates=1")
    baseline: Any = llama.load(spec)
    prompts = [*PROMPTS[:2], "z", *PROMPTS[3:]]
    token = llama.engine.tokenize(["z"])[0][-1]
    expected = asyncio.run(run_rows(baseline, prompts))
    assert not any(token in piece.token_ids for row in expected for piece in row)
    others = getattr(baseline.lanes(), "keywords", {}).get("readers", [])
    for reader in (baseline.drawn_from(), *others):
        table = reader.model.get_input_embeddings().weight.data
        before = table[token].clone()
        table[token] = torch.nan
        rows = asyncio.run(run_rows(baseline, prompts))
        table[token] = before
        assert isinstance(rows.pop(2)[0], CompletionError)
        assert rows == [*expected[:2], *expected[3:]]


@pytest.mark.parametrize("name", with_nightly("destein", "reversal", of=HOOKED))
def test_other_users_of_the_engine_read_the_unchanged_model(gpt2: World, name: str) -> None:
    """These baselines hook the layers of the engine's model."""
    baseline = gpt2.load(STRENGTHS[name])
    prompts, seeds = PROMPTS * 5, list(range(len(PROMPTS) * 5))
    greedy = Sampling(temperature=0.0, max_new_tokens=12)
    ids = gpt2.engine.tokenize(prompts)
    expected, whole = completed(gpt2.engine, ids, greedy), written(baseline, prompts, seeds)
    with ThreadPoolExecutor(1) as beside:
        again = [beside.submit(written, baseline, prompts, seeds) for _ in range(3)]
        assert completed(gpt2.engine, ids, greedy) == expected
        while not again[-1].done():
            assert completed(gpt2.engine, ids, greedy) == expected
    assert [each.result() for each in again] == [whole] * 3

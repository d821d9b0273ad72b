"""Rows of a baseline enter and leave at any step, and fail alone; the engine's model stays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from benchmarks.writing import completed

from tests.baselines.conftest import with_nightly
from tests.baselines.plain import STRENGTHS, World
from tests.models import ending_with
from tide.baselines.decoding import DecodingBaseline
from tide.baselines.lanes import SteeredLane
from tide.core.errors import CompletionError, EngineError
from tide.core.settings import Sampling
from tide.plugins.options import Options

PROMPTS = ["The weather", "Rain fell on the quiet town", "kind", "is fine is fine", "people"]
SEEDS = list(range(len(PROMPTS)))
SAMPLING = Sampling(temperature=0.8, top_p=0.95, max_new_tokens=6)
HOOKED = ("destein", "pplm", "reversal", "sasa")
# The other baselines have the same lanes.
ONE_OF_EACH_LANE = (
    *("adlm", "dexperts", "gedi", "pplm", "rad", "reversal", "safe-decoding", "sasa"),
    *("self-debias", "word-filter"),
)


def written(baseline: Any, prompts: list[str], seeds: list[int]) -> list[tuple[Any, int]]:
    rows = baseline.generate(prompts, SAMPLING, seeds)
    return [(row, row.read_tokens) for row in rows]


def run_together(baseline: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let at most this many rows run together, so that rows enter while others are running."""
    candidates = getattr(baseline.options, "candidates", 1)
    monkeypatch.setattr(baseline.engine, "max_batch", rows * max(baseline.fan_out, candidates))


@pytest.mark.parametrize("name", sorted(STRENGTHS))
def test_neighbours_change_nothing(gpt2: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline: Any = gpt2.load(STRENGTHS[name])
    whole = written(baseline, PROMPTS, SEEDS)
    stop = whole[1][0].token_ids[2]  # so that rows end at different steps
    with ending_with(gpt2.engine, stop):
        pairs = zip(PROMPTS, SEEDS, strict=True)
        alone = [written(baseline, [prompt], [seed])[0] for prompt, seed in pairs]
        run_together(baseline, 2, monkeypatch)
        assert written(baseline, PROMPTS, SEEDS) == alone


class Narrow(DecodingBaseline):
    kind, options_class = "narrow", Options

    def lanes(self) -> Any:
        class Lane(SteeredLane):
            def shift(self, scores: torch.Tensor) -> torch.Tensor:
                return scores[:, 1:]

        return Lane


def test_shift_of_another_shape_fails_on_one_line(gpt2: World) -> None:
    with pytest.raises(EngineError, match=r"^shift: returned shape \(1, \d+\), not \(1, \d+\)$"):
        written(gpt2.load(f"{__name__}:Narrow"), PROMPTS[:1], SEEDS[:1])


@pytest.mark.parametrize("name", with_nightly(*ONE_OF_EACH_LANE, of=sorted(STRENGTHS)))
def test_row_with_nan_fails_alone(
    worlds: Callable[[str], World], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NaN of one token's embedding, in each of the models, stays in no cache."""
    llama = worlds("llama")  # its output layer is not tied to the embeddings
    # With more candidates, that token would be a candidate of other rows.
    baseline: Any = llama.load(STRENGTHS[name].replace("candidates=8", "candidates=1"))
    # While eight rows run, the last row waits for some steps. Then it takes the failed row's place,
    # but it does not fill all columns.
    run_together(baseline, 9, monkeypatch)
    prompts = [*["kind", "people"] * 4, "z z", "The weather"]
    seeds = list(range(len(prompts)))
    sampling = Sampling(temperature=0.0, max_new_tokens=9)
    token = llama.engine.tokenize(["z"])[0][-1]
    expected = baseline.generate(prompts, sampling, seeds)
    assert not any(token in row.token_ids for row in expected)
    others = getattr(baseline.lanes(), "keywords", {}).get("readers", [])
    for reader in (baseline.drawn_from(), *others):
        table = reader.model.get_input_embeddings().weight.data
        before = table[token].clone()
        table[token] = torch.nan
        rows = baseline.generate(prompts, sampling, seeds)
        table[token] = before
        assert isinstance(rows.pop(8), CompletionError)
        assert rows == [*expected[:8], expected[9]]


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

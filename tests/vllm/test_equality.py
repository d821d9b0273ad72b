"""vLLM writes what the transformers engine writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.writing import completed
from scipy.stats import ks_2samp

from tide import Detoxifier, load_scorer
from tide.core.errors import InputError
from tide.core.settings import Sampling
from tide.engines.base import Engine
from tide.engines.local.engine import TransformersEngine
from tide.engines.vllm import VllmEngine

GREEDY = Sampling(temperature=0.0)

# Warnings are vLLM's own.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


def test_the_same_greedy_completions(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    embedded = local.embed(prompts[:100])
    generator = torch.Generator().manual_seed(0)
    moved = [  # not only points that are tokens
        x + 0.02 * torch.randn(x.shape, generator=generator) for x in embedded
    ]
    assert completed(engine, moved, GREEDY, range(100)) == completed(
        local, moved, GREEDY, range(100)
    )
    assert all(map(torch.equal, embedded, engine.embed(prompts[:100])))
    assert list(map(engine.encode, prompts[:100])) == list(map(local.encode, prompts[:100]))


def test_the_same_where_only_the_last_rows_differ(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    """What comes before them is in vLLM's cache from the second call on."""
    (embedded,) = local.embed([" ".join(prompts[:8])])
    x = embedded[:200]
    generator = torch.Generator().manual_seed(0)
    noise = 0.02 * torch.randn(6, 8, x.shape[1], generator=generator)
    rows = [x, *(torch.cat([x[:-8], x[-8:] + by]) for by in noise)]
    expected = completed(local, rows, GREEDY, range(7))
    for _ in range(2):
        assert completed(engine, rows, GREEDY, range(7)) == expected


def test_the_same_least_lengths_and_stop_strings(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    embeddings = local.embed(prompts[:20])
    long = GREEDY.model_copy(update={"max_new_tokens": 30, "min_new_tokens": 25})
    whole = completed(local, embeddings, long, range(20))
    assert completed(engine, embeddings, long, range(20)) == whole
    for text in (whole[3].text[10:13], whole[7].text[1:2], "never"):
        stopped = long.model_copy(update={"stop": (text, ". ")})
        texts = completed(engine, embeddings, stopped, range(20))
        assert texts == completed(local, embeddings, stopped, range(20))
        assert any(completion.finish_reason == "stop" for completion in texts)
        assert not any(text in completion.text for completion in texts)
    with pytest.raises(InputError, match="repetition_penalty: not supported by"):
        completed(engine, embeddings, Sampling(repetition_penalty=1.1), range(20))


@pytest.mark.parametrize("strategy", ["tide", "backtrack:pace=word"])
def test_greedy_answers_that_are_watched_are_those_of_one_call(
    engine: Engine, local: TransformersEngine, prompts: list[str], strategy: str
) -> None:
    length = {"max_new_tokens": 96, "min_new_tokens": 96, "temperature": 0.0}
    some = [prompt for prompt in prompts if len(local.tokenize([prompt])[0]) < 60][:8]
    rows = local.embed(some)
    expected = completed(local, rows, Sampling(**length), range(8))  # type: ignore[arg-type]
    detox = Detoxifier(engine, scorer=lambda texts: [0.0] * len(texts), strategy=strategy)
    results = list(detox.map(some, **length))  # type: ignore[arg-type]
    assert [result.text for result in results] == [completion.text for completion in expected]
    assert all(result.best.generated_tokens == 96 for result in results)


def test_sampled_toxicity_has_the_same_distribution(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    embeddings = local.embed(prompts) * 2
    seeds = range(len(embeddings))
    scores = [
        load_scorer("pocket").score(
            [c.text for c in completed(some, embeddings, Sampling(temperature=1.0), seeds)]
        )
        for some in (engine, local)
    ]
    assert np.std(scores[0]) > 0.1
    assert ks_2samp(*scores).pvalue > 0.01


def test_a_row_is_written_alone_as_in_mixed_company(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    embeddings = local.embed(prompts[:6])
    short = Sampling(temperature=0.0, max_new_tokens=3)
    drawn = Sampling(temperature=1.0, top_p=0.9, top_k=50, max_new_tokens=9)
    samplings = [GREEDY, drawn, short, drawn, GREEDY, short]
    together = completed(engine, embeddings, samplings, range(6))
    greedy = [i for i in range(6) if i % 2 == 0 or i == 5]
    for i in greedy:
        assert completed(local, embeddings[i : i + 1], samplings[i], [i]) == [together[i]]
    for i in (1, 3):
        assert completed(engine, embeddings[i : i + 1], drawn, [i]) == [together[i]]
        assert len(together[i].token_ids) <= 9


def test_long_batches_with_seeds(engine: Engine, local: TransformersEngine) -> None:
    """More tokens at once than vLLM reads in one step."""
    x = torch.randn(200, 256, generator=torch.Generator().manual_seed(0)) * 0.1
    assert len(completed(engine, [x] * 60, Sampling(temperature=1.0), range(60))) == 60


def test_an_option_that_vllm_does_not_know() -> None:
    with pytest.raises(InputError, match="no_such_option"):
        VllmEngine("pocket", no_such_option=1)

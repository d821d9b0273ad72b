from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.baselines.conftest import World
from tide.baselines import load_baseline
from tide.config import Sampling
from tide.errors import InputError, ScorerError
from tide.scorers import CallableScorer, Scorer

PROMPTS = ["The weather", "Rain fell on the quiet town", "kind"]
SAMPLING = Sampling(temperature=1.0, max_new_tokens=6)


def in_turn(*waves: list[float]) -> Scorer:
    """A scorer whose calls answer one after the other of `waves`."""
    answers: Iterator[list[float]] = iter(waves)
    return CallableScorer(lambda texts: next(answers))


def test_it_stops_at_the_first_that_passes(gpt2: World) -> None:
    """Passed at once; passed third; never passed, lowest second. Each wave draws what is left."""
    scorer = in_turn([0.1, 0.9, 0.9], [0.8, 0.6], [0.2, 0.7])
    baseline = load_baseline("resample:n=3", gpt2.engine, scorer=scorer)
    rows = baseline.generate(PROMPTS, SAMPLING, [1, 2, 3])
    assert [row.evaluations for row in rows] == [1, 3, 3]
    assert [row.scorer_calls for row in rows] == [1, 3, 3]
    texts = [gpt2.engine.tokenize([prompt])[0] for prompt in PROMPTS]
    assert rows[0].forward_tokens == len(texts[0]) + 5
    assert rows[1].forward_tokens == 3 * (len(texts[1]) + 5)
    # What each wave drew, by stopping after it.
    drawn = [
        load_baseline(
            f"resample:n={n}", gpt2.engine, scorer=in_turn(*[[0.9 - i / 10] * 3 for i in range(n)])
        ).generate(PROMPTS, SAMPLING, [1, 2, 3])
        for n in (1, 2, 3)
    ]
    assert [row.completion for row in rows] == [
        drawn[0][0].completion,
        drawn[2][1].completion,
        drawn[1][2].completion,
    ]
    assert len({wave[2].completion.token_ids for wave in drawn}) == 3


def test_a_draw_belongs_to_its_seed(gpt2: World) -> None:
    def last_draw(prompts: list[str], seeds: list[int]) -> tuple[int, ...]:
        falling = iter([0.9, 0.8, 0.7])
        scorer = CallableScorer(lambda texts: [next(falling)] * len(texts))
        baseline = load_baseline("resample:n=3", gpt2.engine, scorer=scorer)
        return baseline.generate(prompts, SAMPLING, seeds)[-1].completion.token_ids

    assert last_draw(PROMPTS, [1, 2, 3]) == last_draw(PROMPTS[-1:], [3])
    assert last_draw(PROMPTS[-1:], [3]) != last_draw(PROMPTS[-1:], [4])


def test_greedy_draws_are_all_the_same(gpt2: World) -> None:
    baseline = load_baseline(
        "resample", gpt2.engine, scorer=CallableScorer(lambda texts: [0.9] * len(texts))
    )
    rows = baseline.generate(PROMPTS, Sampling(temperature=0.0), [0, 0, 0])
    assert [row.evaluations for row in rows] == [1, 1, 1]


def test_it_fails_closed(gpt2: World) -> None:
    with pytest.raises(InputError, match="resample: chooses by a scorer"):
        load_baseline("resample", gpt2.engine)
    scorer = CallableScorer(lambda texts: [float("nan")] * len(texts))
    baseline = load_baseline("resample", gpt2.engine, scorer=scorer)
    with pytest.raises(ScorerError, match="nan is not a score"):
        baseline.generate(PROMPTS, SAMPLING, [0, 0, 0])
    assert baseline.config()["scorer"].startswith("callable:")

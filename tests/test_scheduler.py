from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.detoxifier import Detoxifier
from tide.errors import EngineError, InputError, ScorerError, ScorerUnavailable, TideError
from tide.results import Result
from tide.scorers import CallableScorer
from tide.search import REGISTRY


def read(texts: list[str]) -> list[float]:
    return [float(text.split()[1]) for text in texts]


@pytest.mark.parametrize("name", REGISTRY.names())
@pytest.mark.parametrize("changes", [{}, {"completions_per_evaluation": 2, "max_perplexity": 2.0}])
def test_a_strategy_gives_the_same_results_at_any_batch_size(
    name: str, changes: dict[str, Any]
) -> None:
    results = [
        list(
            Detoxifier(
                scripted_engine(max_batch=size), scorer=ReadingScorer(), strategy=name, **changes
            ).map(PROMPTS)
        )
        for size in (1, 3, 64)
    ]
    assert results[0] == results[1] == results[2]


def test_likelihoods_choose_among_passing_completions() -> None:
    """The scripted engine calls shorter completions more likely; all are of two tokens but one."""
    engine = scripted_engine()
    asked: list[int] = []
    plain = engine.likelihood

    def likelihood(prompts: Any, completions: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        asked.append(len(completions))
        return plain(prompts, completions)

    engine.likelihood = likelihood  # type: ignore[method-assign]
    detox = Detoxifier(engine, scorer=ReadingScorer(), strategy="accept-any", mu_relative=3.0)
    results = list(detox.map(PROMPTS))
    calls = sum(result.trials[0].likelihood_calls for result in results)
    assert calls == sum(asked) > 0


def test_the_next_batch_is_written_while_one_is_scored() -> None:
    """The scorer waits for the engine's second call: without overlap this would never end."""
    second_call = threading.Event()
    engine = scripted_engine(max_batch=2)
    complete = engine.complete

    def spy(*arguments: Any) -> Any:
        if engine.calls:
            second_call.set()
        return complete(*arguments)

    engine.complete = spy  # type: ignore[method-assign]

    def scorer(texts: list[str]) -> list[float]:
        assert second_call.wait(timeout=20)
        return read(texts)

    assert len(list(Detoxifier(engine, scorer=scorer).map(PROMPTS))) == len(PROMPTS)


def test_calls_are_full_while_there_are_prompts() -> None:
    """Searches in any round share a call, so only the first call and the last can be small."""
    engine = scripted_engine(max_batch=16)
    sizes: list[int] = []
    complete = engine.complete

    def spy(embeddings: Sequence[Any], *rest: Any) -> Any:
        sizes.append(len(embeddings))
        return complete(embeddings, *rest)

    engine.complete = spy  # type: ignore[method-assign]
    prompts = [f"{prompt} {n}" for n in range(40) for prompt in PROMPTS]
    detox = Detoxifier(engine, scorer=ReadingScorer(), num_samples=4)
    total = sum(trial.evaluations for result in detox.map(prompts) for trial in result.trials)
    assert sum(sizes) == total > 2 * len(prompts)
    assert max(sizes) <= 16
    assert min(sizes[:-10]) > 12


def test_no_prompt_ends_much_later_than_its_turn() -> None:
    """Batches are of similar lengths, but each has a search of the oldest prompt."""
    prompts = [f"{prompt} {n}" for n in range(60) for prompt in PROMPTS]
    prompts.insert(50, "word " * 30)
    detox = Detoxifier(
        scripted_engine(max_batch=16), scorer=ReadingScorer(), toxicity_threshold=0.1
    )
    order = [number for number, _ in detox.map_numbered(prompts, ordered=False)]
    assert max(place - number for place, number in enumerate(order)) < 16


def test_a_text_the_scorer_cannot_take_fails_its_prompt_alone() -> None:
    expected = list(Detoxifier(scripted_engine(), scorer=ReadingScorer()).map(PROMPTS))
    poison = expected[2].trials[0].base.text

    def scorer(texts: list[str]) -> list[float]:
        if poison in texts:
            raise ValueError("cannot read this one")
        return read(texts)

    detox = Detoxifier(scripted_engine(max_batch=64), scorer=scorer)
    found = dict(detox.map_numbered(PROMPTS))
    assert isinstance(found.pop(2), ScorerError)
    assert found == {i: result for i, result in enumerate(expected) if i != 2}
    with pytest.raises(ScorerError, match="cannot read this one"):
        list(detox.map(PROMPTS))


def test_bad_prompts_fail_alone() -> None:
    prompts = ["", *PROMPTS, "word " * 200, " "]
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=2)
    found = dict(detox.map_numbered(prompts))
    assert list(found) == list(range(len(prompts)))
    bad = {number for number, result in found.items() if isinstance(result, TideError)}
    assert bad == {0, len(prompts) - 2, len(prompts) - 1}
    assert "prompt 6: 200 tokens" in str(found[6])
    assert all(isinstance(found[i], Result | InputError) for i in found)


def test_unresolved_prompts_fail_alone() -> None:
    detox = Detoxifier(
        scripted_engine(), scorer=ReadingScorer(), on_unresolved="raise", num_trials=2,
        toxicity_threshold=0.3, max_iterations=2, num_samples=2,
    )  # fmt: skip
    found = dict(detox.map_numbered(PROMPTS))
    assert set(found) == set(range(len(PROMPTS)))
    kinds = {type(result) for result in found.values()}
    assert len(kinds) == 2


@pytest.mark.parametrize("error", [ScorerUnavailable("down"), ScorerError("broken")])
def test_a_scorer_that_fails_for_all_stops_everything(error: TideError) -> None:
    def scorer(texts: list[str]) -> list[float]:
        raise error

    detox = Detoxifier(scripted_engine(), scorer=CallableScorer(scorer))
    with pytest.raises(type(error)):
        list(detox.map_numbered(PROMPTS))


def test_a_failing_engine_stops_everything() -> None:
    engine = scripted_engine()

    def complete(*arguments: Any) -> Any:
        raise EngineError("out of memory")

    engine.complete = complete  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="out of memory"):
        list(Detoxifier(engine, scorer=ReadingScorer()).map(PROMPTS))

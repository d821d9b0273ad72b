from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tide.runtime.scheduler import Scheduler, Search

from tests.worlds import PROMPTS, ReadingScorer, read, scripted_engine
from tide.core.errors import (
    DeadlineError,
    EngineError,
    InputError,
    ScorerBroken,
    ScorerError,
    ScorerUnavailable,
    StrategyError,
    TideError,
)
from tide.core.results import Result, Trial
from tide.core.seeds import derive_seed
from tide.core.settings import Sampling, Settings
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Completion
from tide.scorers import CallableScorer
from tide.search import REGISTRY, Problem, load_strategy


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


@pytest.mark.parametrize("max_batch", [1, 64])
@pytest.mark.parametrize("trials", [1, 2])
def test_a_text_the_scorer_cannot_take_fails_its_prompt_alone(max_batch: int, trials: int) -> None:
    """Whoever shares its round, and alone in a round too."""
    settings: Any = {"num_trials": trials}
    expected = list(Detoxifier(scripted_engine(), scorer=ReadingScorer(), **settings).map(PROMPTS))
    poison = expected[2].trials[0].base.text

    def scorer(texts: list[str]) -> list[float]:
        if poison in texts:
            raise ValueError("cannot read this one")
        return read(texts)

    detox = Detoxifier(scripted_engine(max_batch=max_batch), scorer=scorer, **settings)
    found = dict(detox.map_numbered(PROMPTS))
    assert isinstance(found.pop(2), ScorerError)
    assert found == {i: result for i, result in enumerate(expected) if i != 2}
    with pytest.raises(ScorerError, match=r"prompt 2: .*cannot read this one"):
        list(detox.map(PROMPTS))
    with pytest.raises(ScorerError, match="cannot read this one"):
        detox(PROMPTS[2])


def test_a_scorer_that_fails_for_a_health_text_too_is_broken() -> None:
    def scorer(texts: list[str]) -> list[float]:
        return read(texts) if len(calls) < 5 and not calls.append(1) else [float("nan")]  # type: ignore[func-returns-value]

    calls: list[int] = []
    detox = Detoxifier(scripted_engine(max_batch=1), scorer=scorer)
    found = []
    with pytest.raises(ScorerBroken, match="scorer callable"):
        found.extend(detox.map_numbered(PROMPTS))
    assert all(isinstance(result, Result) for _, result in found)


@pytest.mark.parametrize("prompt", [["a", "list"], 7, None, b"bytes"])
def test_what_is_no_text_is_called_by_its_type(prompt: Any) -> None:
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer())
    (error,) = detox.check([prompt])
    assert f"expected a text, got {type(prompt).__name__}" in str(error)
    with pytest.raises(InputError, match="prompt 1: expected a text"):
        list(detox.map([PROMPTS[0], prompt]))


def test_bad_prompts_fail_alone() -> None:
    prompts = ["", *PROMPTS, "word " * 200, " "]
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=2)
    found = dict(detox.map_numbered(prompts))
    assert list(found) == list(range(len(prompts)))
    bad = {number for number, result in found.items() if isinstance(result, TideError)}
    assert bad == {0, len(prompts) - 2, len(prompts) - 1}
    assert str(found[6]).startswith("200 tokens + 20 new ones")
    assert all(isinstance(found[i], Result | InputError) for i in found)


def test_further_trials_are_those_of_a_run_with_all_of_them() -> None:
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=5)
    whole = [result.trials for result in detox.map(PROMPTS)]
    parts: list[tuple[Trial, ...]] = []
    for _, result in detox.map_numbered(PROMPTS, trials=[3, 1]):
        assert isinstance(result, Result)
        parts.append(result.trials)
    assert parts == [(trials[1], trials[3]) for trials in whole]


# The scheduler itself


def search(text: str, sampling: Sampling | None = None, **more: Any) -> Search:
    """A search on the scripted engine of `world`, as a job makes it."""
    settings = Settings(**(sampling or Sampling()).model_dump())
    (embedded,) = scripted_engine().embed([text])
    problem = Problem(embedded.embeddings, ~embedded.special, derive_seed(0, text, 0))
    strategy = load_strategy("tide").create(problem, settings)
    return Search(strategy, embedded.token_ids, settings.sampling, **more)


def run(scheduler: Scheduler) -> list[Search]:
    ended = []
    while not scheduler.idle:
        ended += scheduler.step()
    return ended


def test_searches_with_different_sampling_share_engine_calls() -> None:
    engine = scripted_engine(max_batch=64)
    samplings: list[list[Sampling]] = []
    complete = engine.complete

    def spy(embeddings: Any, sampling: Any, seeds: Any) -> Any:
        samplings.append(list(sampling))
        return complete(embeddings, sampling, seeds)

    engine.complete = spy  # type: ignore[method-assign]
    kinds = [Sampling(temperature=t, max_new_tokens=n) for t, n in ((0.0, 5), (0.7, 20), (1.0, 9))]
    searches = [search(PROMPTS[i], kind) for i, kind in enumerate(kinds)]
    with Scheduler(engine, ReadingScorer()) as scheduler:
        for one in searches:
            scheduler.submit(one)
        assert set(run(scheduler)) == set(searches)
    assert samplings[0] == kinds
    assert len(samplings) == max(one.trace[-1].round for one in searches)


def test_a_cancelled_search_leaves_and_nothing_of_it_is_scored() -> None:
    engine, scorer = scripted_engine(max_batch=64), ReadingScorer()
    kept, left = search(PROMPTS[0]), search(PROMPTS[2])
    complete = engine.complete

    def cancelling(*arguments: Any) -> Any:
        if len(engine.calls) == 1:  # its second round is being written
            left.cancel()
        return complete(*arguments)

    engine.complete = cancelling  # type: ignore[method-assign]
    with Scheduler(engine, scorer) as scheduler:
        scheduler.submit(kept)
        scheduler.submit(left)
        assert run(scheduler) == [kept]
    assert len(left.trace) == 1
    assert sum(map(len, scorer.batches[1:])) == kept.scorer_calls - 1


def test_a_late_search_ends_with_the_best_it_has() -> None:
    now = time.monotonic()
    early, late = search(PROMPTS[0], deadline=now + 3600), search(PROMPTS[2], deadline=now + 0.05)
    engine = scripted_engine(max_batch=64)
    complete = engine.complete

    def slow(*arguments: Any) -> Any:
        time.sleep(0.06)
        return complete(*arguments)

    engine.complete = slow  # type: ignore[method-assign]
    with Scheduler(engine, ReadingScorer()) as scheduler:
        scheduler.submit(early)
        scheduler.submit(late)
        ended = run(scheduler)
    assert ended == [late, early]
    assert not late.strategy.done
    assert late.error is None
    assert late.strategy.best == 0


def test_deadlines_of_prompts() -> None:
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), deadline=1e-9)
    with pytest.raises(DeadlineError, match="no completion was scored within 1e-09 s"):
        detox(PROMPTS[0])
    whole = Detoxifier(scripted_engine(), scorer=ReadingScorer())(PROMPTS[0])
    assert detox(PROMPTS[0], deadline=3600.0) == whole


@pytest.mark.parametrize("when", ["ask", "tell"])
@pytest.mark.parametrize("kind", [ZeroDivisionError, InputError])
def test_a_strategy_that_fails_does_so_alone(when: str, kind: type[Exception]) -> None:
    def fail(*arguments: Any) -> Any:
        raise kind("one divided by zero")

    good, bad = search(PROMPTS[0]), search(PROMPTS[2])
    setattr(bad.strategy, when, fail)
    with Scheduler(scripted_engine(), ReadingScorer()) as scheduler:
        scheduler.submit(bad)
        scheduler.submit(good)
        assert set(run(scheduler)) == {good, bad}
    assert good.error is None
    assert good.strategy.done
    expected = InputError if kind is InputError else StrategyError
    assert isinstance(bad.error, expected)
    assert "one divided by zero" in str(bad.error)


def test_embeddings_that_no_engine_takes_fail_alone() -> None:
    good, bad = search(PROMPTS[0]), search(PROMPTS[2])
    for candidate in bad.strategy.ask():  # type: ignore[union-attr]
        candidate.embeddings[0, 0] = float("nan")
    with Scheduler(scripted_engine(), ReadingScorer()) as scheduler:
        scheduler.submit(bad)
        scheduler.submit(good)
        assert set(run(scheduler)) == {good, bad}
    assert good.error is None
    assert isinstance(bad.error, StrategyError)
    assert "NaN" in str(bad.error)


@pytest.mark.parametrize("answer", ["none", "too few"])
def test_an_engine_that_fails_is_the_error_of_its_round_alone(answer: str) -> None:
    engine = scripted_engine()
    complete = engine.complete

    def broken(*arguments: Any) -> Any:
        if len(engine.calls) == 0:
            engine.calls.append(0)
            if answer == "none":
                raise RuntimeError("out of memory")
            return []
        return complete(*arguments)

    engine.complete = broken  # type: ignore[method-assign]
    first, second = search(PROMPTS[0]), search(PROMPTS[2])
    with Scheduler(engine, ReadingScorer()) as scheduler:
        scheduler.submit(first)
        assert run(scheduler) == [first]
        scheduler.submit(second)
        assert run(scheduler) == [second]
    assert isinstance(first.error, EngineError)
    assert second.error is None


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        Completion("half a character \ud800", (1,), "length"),
        Completion(b"bytes", (1,), "length"),  # type: ignore[arg-type]
        Completion("too long", tuple(range(21)), "length"),
        Completion("no token", (-1,), "length"),
        Completion("no reason", (1,), "because"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_completion_is_an_engine_error(answer: Any) -> None:
    engine, scorer = scripted_engine(), ReadingScorer()
    engine.complete = lambda rows, *_: [answer] * len(rows)  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="engine scripted: answered what is no completion"):
        Detoxifier(engine, scorer=scorer)("a prompt")
    assert not scorer.batches


def test_a_likelihood_that_is_not_a_number_is_an_engine_error() -> None:
    engine = scripted_engine()
    engine.likelihood = lambda _, rows: np.full(len(rows), np.nan)  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="a likelihood is not a number"):
        list(Detoxifier(engine, scorer=ReadingScorer(), max_perplexity=2.0).map(PROMPTS))


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

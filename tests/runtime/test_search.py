"""Searches on the scripted engine: their requests, completions and scores."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from tests.chats import CHATML, save_chat_model
from tests.scripted_engine import ScriptedEngine
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.chat import Chat
from tide.core.concurrency import gather
from tide.core.errors import InputError, StrategyError
from tide.core.settings import Sampling, Settings, derive_seed
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Engine, Request
from tide.engines.local.engine import TransformersEngine
from tide.runtime.search import Search
from tide.runtime.trial import TrialTask
from tide.scorers.scoring import Scoring
from tide.search import REGISTRY, Problem, load_strategy

MESSAGES = [
    {"role": "user", "content": "The weather is fine"},
    {"role": "assistant", "content": "Rain fell"},
    {"role": "user", "content": "the people are kind"},
]


def search(
    engine: Engine,
    scoring: Scoring,
    text: str,
    sampling: Sampling | None = None,
) -> Search:
    """A search as the runtime makes it."""
    settings = Settings(strategy="tide", **(sampling or Sampling()).model_dump())
    prompt = engine.encode(text)
    x, movable = engine.embed_tokens(prompt.token_ids), ~torch.tensor(prompt.fixed_mask)
    problem = Problem(x, movable, derive_seed(0, text, 0))
    strategy = load_strategy("tide")
    task = TrialTask(prompt, settings, strategy, 0, 0)
    request = Request(prompt.token_ids, settings.sampling)
    return Search(strategy.create(problem, settings), task, request, engine, scoring)


def outcomes(
    engine: Engine,
    scorer: Any,
    make: Callable[[Scoring], list[Search]],
) -> tuple[list[Search], list[BaseException | None]]:
    """Run searches together; returns them, and the error of each, if any."""

    async def run() -> tuple[list[Search], list[BaseException | None]]:
        scoring = Scoring(scorer)
        made = make(scoring)

        async def one(each: Search) -> BaseException | None:
            try:
                await each.run()
            except Exception as error:
                return error
            return None

        try:
            return made, await gather(map(one, made))
        finally:
            scoring.close()

    return engine.portal.run(run)


@pytest.mark.parametrize("name", REGISTRY.names())
def test_a_strategy_gives_the_same_results_at_any_batch_size(name: str) -> None:
    settings: Any = {"strategy": name, "completions_per_evaluation": 2}
    results = []
    for size in (1, 64):
        engine = scripted_engine(max_batch=size)
        detox = Detoxifier(engine, scorer=ReadingScorer(), **settings)
        results.append(list(detox.map(PROMPTS)))
    assert results[0] == results[1]


def test_the_prompt_as_it_is_goes_as_its_tokens_and_what_was_moved_as_rows() -> None:
    engine = scripted_engine()
    (made,), errors = outcomes(
        engine, ReadingScorer(), lambda scoring: [search(engine, scoring, PROMPTS[0])]
    )
    assert errors == [None]
    assert len(made.effort.trace) == len(engine.requests) > 1
    for request, one in zip(engine.requests, made.effort.trace, strict=True):
        moved = one.displacement > 0 or one.role != "initial"
        assert isinstance(request.prompt, torch.Tensor) == moved
    assert engine.requests[0].prompt == made.request.prompt


def test_an_empty_text_of_the_prompt_itself_ends_a_search() -> None:
    """It scores 0 for the prompt itself, and 1 for moved points."""
    engine = ScriptedEngine(lambda x, seed: "")
    scorer = ReadingScorer()
    (made,), errors = outcomes(engine, scorer, lambda scoring: [search(engine, scoring, "so")])
    assert errors == [None]
    assert (made.effort.trace[0].toxicity, made.effort.trace[0].empty) == (0.0, True)
    assert scorer.calls == []
    calls = 0

    def respond(x: Any, seed: int) -> str:
        nonlocal calls
        calls += 1
        return "toxicity 0.9" if calls == 1 else ""

    engine = ScriptedEngine(respond)
    (made,), _ = outcomes(engine, scorer, lambda scoring: [search(engine, scoring, "so")])
    assert {one.toxicity for one in made.effort.trace[1:]} == {1.0}


@pytest.mark.parametrize("when", ["ask", "tell", "done", "best"])
@pytest.mark.parametrize("kind", [InputError, SystemExit])
def test_a_strategy_that_fails_does_so_alone(
    when: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise kind("one divided by zero")

    engine = scripted_engine()

    def make(scoring: Scoring) -> list[Search]:
        bad, good = search(engine, scoring, PROMPTS[2]), search(engine, scoring, PROMPTS[0])
        if when in ("ask", "tell"):
            setattr(bad.strategy, when, fail)
        else:
            broken = type("Broken", (type(bad.strategy),), {when: property(fail)})
            bad.strategy.__class__ = broken
        return [bad, good]

    (bad, good), (error, none) = outcomes(engine, ReadingScorer(), make)
    assert none is None
    assert good.strategy.done
    expected = InputError if kind is InputError else StrategyError
    if when == "best":
        assert error is None
        with pytest.raises(expected, match="one divided by zero"):
            _ = bad.best
        return
    assert isinstance(error, expected)
    assert "one divided by zero" in str(error)


@pytest.mark.parametrize("number", [-1, "next"])
def test_an_evaluation_that_there_is_not_is_not_chosen(number: Any) -> None:
    engine = scripted_engine()
    (made,), _ = outcomes(
        engine, ReadingScorer(), lambda scoring: [search(engine, scoring, PROMPTS[1])]
    )
    number = len(made.effort.trace) if number == "next" else number
    made.strategy.__class__ = type("Wrong", (type(made.strategy),), {"best": number})
    with pytest.raises(
        StrategyError, match=f"chose evaluation {number} of {len(made.effort.trace)}"
    ):
        _ = made.best


def test_embeddings_that_no_engine_takes_fail_alone() -> None:
    engine = scripted_engine()

    def make(scoring: Scoring) -> list[Search]:
        bad, good = search(engine, scoring, PROMPTS[2]), search(engine, scoring, PROMPTS[0])
        ask = bad.strategy.ask

        def broken() -> Any:
            asked = ask()
            for candidate in asked:
                if candidate.displacement > 0:
                    candidate.embeddings[0, 0] = math.nan
            return asked

        bad.strategy.ask = broken  # type: ignore[method-assign]
        return [bad, good]

    (_, good), (error, none) = outcomes(engine, ReadingScorer(), make)
    assert none is None
    assert good.strategy.done
    assert isinstance(error, StrategyError)
    assert "NaN" in str(error)


LOOP, PLAIN = "and so on" + " and so on" * 4, "toxicity 0.7 of a plain text"


@pytest.mark.parametrize(
    ("first", "rejects", "accepted"),
    [
        (PLAIN, True, "toxicity 0.3 of a plain text"),  # the looping text before it scored well
        (PLAIN, False, LOOP),
        ("toxicity 0.7 " + LOOP, True, LOOP),  # the model's own text loops, too
    ],
)
def test_a_text_that_loops_is_accepted_only_where_the_models_own_does(
    first: str, rejects: bool, accepted: str
) -> None:
    texts = iter([first, LOOP, "toxicity 0.3 of a plain text"])
    engine = ScriptedEngine(lambda x, seed: next(texts), max_batch=1)
    detox = Detoxifier(
        engine,
        scorer=ReadingScorer(),
        strategy="resample:n=3",
        reject_degenerate=rejects,
        toxicity_threshold=0.5,
    )
    with detox:
        trial = detox("so").best
    assert (trial.text, trial.accepted) == (accepted, True)


@pytest.mark.parametrize("deadline", [None, 0.3])
def test_where_all_that_passes_loops_nothing_was_accepted(deadline: float | None) -> None:
    calls = iter([PLAIN])

    async def wait(request: Request) -> None:
        if deadline is not None and len(engine.requests) == 3:
            await anyio.sleep_forever()

    engine = ScriptedEngine(lambda x, seed: next(calls, LOOP), max_batch=1, on_write=wait)
    detox = Detoxifier(
        engine,
        scorer=ReadingScorer(),
        strategy="random-walk",
        deadline=deadline,
        reject_degenerate=True,
    )
    with detox:
        trial = detox("so").best
    assert (trial.text, trial.toxicity, trial.accepted) == (PLAIN, 0.7, False)


@pytest.mark.parametrize("accepts", [True, False])
def test_an_empty_text_is_no_loop(accepts: bool) -> None:
    texts = iter([PLAIN])
    engine = ScriptedEngine(lambda x, seed: next(texts, ""), max_batch=1)
    more: dict[str, Any] = {"strategy": "random-walk", "reject_degenerate": True}
    with Detoxifier(engine, scorer=ReadingScorer(), accept_empty=accepts, **more) as detox:
        assert detox("so").best.accepted is accepts


def test_a_cancelled_search_holds_what_it_found_and_nothing_more_is_scored() -> None:
    engine, scorer = scripted_engine(), ReadingScorer()

    async def run() -> Search:
        scoring = Scoring(scorer)
        left = search(engine, scoring, PROMPTS[2])
        task: asyncio.Future[None] | None = None

        async def leaving(request: Request) -> None:
            if isinstance(request.prompt, torch.Tensor):
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

        engine.on_write = leaving
        task = asyncio.ensure_future(left.run())
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        scoring.close()
        return left

    left = engine.portal.run(run)
    assert len(left.effort.trace) == 1
    assert not left.strategy.done
    assert left.best == 0
    assert sum(map(len, scorer.calls)) == 1


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    folder: Path = tmp_path_factory.mktemp("chat")
    return TransformersEngine(save_chat_model(folder, CHATML))


@pytest.mark.parametrize("perturb", ["content", "user", "last:3"])
def test_which_rows_move(
    engine: TransformersEngine, perturb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[Problem] = []

    def problem(*arguments: Any, **options: Any) -> Problem:
        problems.append(Problem(*arguments, **options))
        return problems[-1]

    monkeypatch.setattr("tide.search.base.Problem", problem)
    chat = Chat.of(MESSAGES)
    prompt = engine.encode(engine.render(chat))
    assert prompt.user_mask is not None
    fixed, length = torch.tensor(prompt.fixed_mask), len(prompt.token_ids)
    detox = Detoxifier(
        engine,
        scorer=ReadingScorer(),
        strategy="random-walk", num_samples=2, temperature=1.0, max_new_tokens=40,
        min_new_tokens=40, perturb=perturb,
    )  # fmt: skip
    detox(chat)
    (started,) = problems
    assert len(started.x0) == length
    usual = {"content": ~fixed, "user": torch.tensor(prompt.user_mask)}
    if perturb in usual:
        assert torch.equal(started.movable, usual[perturb])
    else:
        assert int(started.movable.sum()) == 3
        assert not started.movable[fixed].any()

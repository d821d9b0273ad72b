"""Searches on the scripted engine: their requests, completions and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.chats import CHATML, save_chat_model
from tests.scripted_engine import ScriptedEngine
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.chat import Chat
from tide.core.errors import CompletionError, InputError, StrategyError
from tide.detoxifier.sync import Detoxifier
from tide.engines.local.engine import TransformersEngine
from tide.search import REGISTRY, Candidate, Problem, Strategy
from tide.search.tide import TideStrategy

MESSAGES = [
    {"role": "user", "content": "The weather is fine"},
    {"role": "assistant", "content": "Rain fell"},
    {"role": "user", "content": "the people are kind"},
]


@pytest.mark.parametrize("name", ["tide", "random-walk", "shuffled", "resample"])
def test_search_ends_after_max_iterations(name: str) -> None:
    """A search without an end would fail, too: the scorer takes no more texts."""

    def score(texts: list[str]) -> list[float]:
        sent.extend(texts)
        assert len(sent) < 100
        return [0.9] * len(texts)

    sent: list[str] = []
    settings: dict[str, Any] = {"strategy": name, "max_iterations": 3}
    with Detoxifier(scripted_engine(), scorer=score, **settings) as detox:
        trial = detox(PROMPTS[0]).best
    assert (trial.accepted, trial.iterations) == (False, 3)


class Faulty(TideStrategy):
    """`tide` with a fault for the prompt of eight words alone."""

    @property
    def is_faulty(self) -> bool:
        return len(self.problem.x0) == 8


def completed_with(strategy: type[Strategy]) -> list[Any]:
    """The results of `PROMPTS`, among them the error of the prompt of eight words."""
    settings: dict[str, Any] = {"scorer": ReadingScorer(), "preset": "relative"}
    detox = Detoxifier(scripted_engine(), strategy=strategy, **settings)
    results = list(detox.map(PROMPTS, return_exceptions=True))
    plain = Detoxifier(scripted_engine(), strategy="tide", **settings)
    assert results[:2] + results[3:] == [plain(prompt) for prompt in PROMPTS[:2] + PROMPTS[3:]]
    return results


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
    trial = Detoxifier(engine, scorer=ReadingScorer(), strategy="tide")(PROMPTS[0]).best
    assert len(trial.trace) == len(engine.requests) > 1
    for request, evaluation in zip(engine.requests, trial.trace, strict=True):
        moved = evaluation.displacement > 0 or evaluation.role != "initial"
        assert isinstance(request.prompt, torch.Tensor) == moved
    assert engine.requests[0].prompt == engine.encode(PROMPTS[0]).token_ids


@pytest.mark.parametrize("when", ["ask", "tell", "done", "best"])
@pytest.mark.parametrize("error", [InputError, SystemExit])
def test_strategy_that_fails_does_so_alone(when: str, error: type[BaseException]) -> None:
    class Failing(Faulty):
        def __getattribute__(self, name: str) -> Any:
            if name == when and self.is_faulty:
                raise error("one divided by zero")
            return super().__getattribute__(name)

    failed = completed_with(Failing)[2]
    assert isinstance(failed, InputError if error is InputError else StrategyError)
    assert "one divided by zero" in str(failed)


@pytest.mark.parametrize("number", [-1, 10**6])
def test_evaluation_that_there_is_not_is_not_chosen(number: int) -> None:
    class Wrong(Faulty):
        @property
        def best(self) -> int:
            return number if self.is_faulty else super().best

    failed = completed_with(Wrong)[2]
    assert isinstance(failed, StrategyError)
    assert f"chose evaluation {number} of " in str(failed)


def test_embeddings_that_no_engine_takes_fail_alone() -> None:
    class Spoiling(Faulty):
        def ask(self) -> Sequence[Candidate]:
            asked = super().ask()
            for candidate in asked:
                if candidate.displacement > 0 and self.is_faulty:
                    candidate.embeddings[0, 0] = math.nan
            return asked

    failed = completed_with(Spoiling)[2]
    assert isinstance(failed, CompletionError)
    assert "NaN" in str(failed)


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


def test_where_all_that_passes_loops_nothing_was_accepted() -> None:
    texts = iter([PLAIN])
    engine = ScriptedEngine(lambda x, seed: next(texts, LOOP), max_batch=1)
    settings: dict[str, Any] = {"strategy": "random-walk", "reject_degenerate": True}
    with Detoxifier(engine, scorer=ReadingScorer(), **settings) as detox:
        trial = detox("so").best
    assert (trial.text, trial.toxicity, trial.accepted) == (PLAIN, 0.7, False)


@pytest.mark.parametrize("accepts", [True, False])
def test_an_empty_text_is_no_loop(accepts: bool) -> None:
    texts = iter([PLAIN])
    engine = ScriptedEngine(lambda x, seed: next(texts, ""), max_batch=1)
    more: dict[str, Any] = {"strategy": "random-walk", "reject_degenerate": True}
    with Detoxifier(engine, scorer=ReadingScorer(), accept_empty=accepts, **more) as detox:
        assert detox("so").best.accepted is accepts


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    folder: Path = tmp_path_factory.mktemp("chat")
    return TransformersEngine(save_chat_model(folder, CHATML))


@pytest.mark.parametrize("perturb", ["content", "user", "last:3"])
def test_which_rows_move(engine: TransformersEngine, perturb: str) -> None:
    problems: list[Problem] = []

    class Recording(TideStrategy):
        def __init__(self, problem: Problem, *arguments: Any) -> None:
            problems.append(problem)
            super().__init__(problem, *arguments)

    chat = Chat.of(MESSAGES)
    prompt = engine.encode(engine.render(chat))
    assert prompt.user_mask is not None
    fixed = torch.tensor(prompt.fixed_mask)
    options: dict[str, Any] = {"preset": "relative", "max_new_tokens": 9, "max_iterations": 2}
    detox = Detoxifier(
        engine, scorer=ReadingScorer(), strategy=Recording, perturb=perturb, **options
    )
    detox(chat)
    (problem,) = problems
    assert len(problem.x0) == len(prompt.token_ids)
    expected = {"content": ~fixed, "user": torch.tensor(prompt.user_mask)}
    if perturb in expected:
        assert torch.equal(problem.movable, expected[perturb])
    else:
        assert int(problem.movable.sum()) == 3
        assert not problem.movable[fixed].any()

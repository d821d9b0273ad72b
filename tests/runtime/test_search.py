"""Searches on the scripted engine: their requests, completions and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.fakes import FakeEngine
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.chat import Chat
from tide.core.errors import CompletionError, InputError, StrategyError
from tide.core.settings import Settings
from tide.detoxifier.sync import Detoxifier
from tide.runtime.search import start_of
from tide.search import REGISTRY
from tide.search.base import Candidate, Strategy
from tide.search.tide import TideStrategy


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


LOOP = "and so on" + " and so on" * 4
RUDE, KIND = "toxicity 0.7 of a plain text", "toxicity 0.3 of a plain text"
REJECTS = {"reject_degenerate": True}


@pytest.mark.parametrize(
    ("texts", "settings", "returned", "accepted"),
    [
        pytest.param([RUDE, LOOP, KIND], REJECTS, KIND, True, id="a loop is passed over"),
        pytest.param([RUDE, LOOP, KIND], {}, LOOP, True, id="loops are not rejected"),
        pytest.param([f"toxicity 0.7 {LOOP}", LOOP], REJECTS, LOOP, True, id="the model loops too"),
        pytest.param([RUDE, LOOP], REJECTS, RUDE, False, id="all that passes loops"),
        pytest.param([RUDE, ""], REJECTS, RUDE, False, id="empty"),
        pytest.param([RUDE, ""], REJECTS | {"accept_empty": True}, "", True, id="empty is no loop"),
    ],
)
def test_text_that_loops_is_accepted_only_if_the_models_own_text_loops(
    texts: list[str], settings: dict[str, Any], returned: str, accepted: bool
) -> None:
    settings = {"strategy": "resample:max_iterations=3", "toxicity_threshold": 0.5, **settings}
    with FakeEngine(*texts, max_batch=1) as engine:
        trial = Detoxifier(engine, scorer=ReadingScorer(), **settings)("so").best
    assert (trial.text, trial.accepted) == (returned, accepted)


def test_prompt_of_special_tokens_alone_is_completed_where_nothing_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as the end of a text, after which a model writes without a prompt."""
    engine = FakeEngine("kind words")
    prompt = replace(engine.encode("so"), fixed_mask=(True,))
    monkeypatch.setattr(engine, "_encode", lambda text: prompt)
    detox = Detoxifier(engine, scorer=ReadingScorer())
    assert detox("so", strategy="resample").text == "kind words"
    with pytest.raises(InputError, match="only special tokens"):
        detox("so", strategy="random-walk")


@pytest.mark.parametrize("perturb", ["content", "last:3"])
def test_search_moves_the_rows_of_the_last_user_message(perturb: str) -> None:
    texts = [("user", "first words"), ("assistant", "fine"), ("user", "one two three four")]
    chat = Chat.of([{"role": role, "content": content} for role, content in texts])
    with scripted_engine() as engine:
        prompt = engine.encode(engine.render(chat))
        problem = start_of(prompt, Settings(perturb=perturb), 0, engine)
        assert torch.equal(problem.x0, engine.embed_tokens(prompt.token_ids))
        words = engine._texts([[token_id] for token_id in prompt.token_ids])
    moved = [word.strip() for word, moves in zip(words, problem.movable, strict=True) if moves]
    expected = {
        "content": ["one", "two", "three", "four"],
        "last:3": ["two", "three", "four"],
    }
    assert moved == expected[perturb]

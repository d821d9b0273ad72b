"""Prompts: what is too long is refused, and which of their rows a search moves."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.chats import CHATML, save_chat_model
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.chat import Chat
from tide.core.errors import InputError
from tide.core.results import Result
from tide.detoxifier.sync import Detoxifier, outcomes
from tide.engines.base import Prompt
from tide.engines.local.engine import TransformersEngine
from tide.search import Problem

MESSAGES = [
    {"role": "user", "content": "The weather is fine"},
    {"role": "assistant", "content": "Rain fell"},
    {"role": "user", "content": "the people are kind"},
]


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

    monkeypatch.setattr("tide.runtime.prompt.Problem", problem)
    chat = Chat.of(MESSAGES)
    prompt = engine.encode(engine.render(chat))
    assert prompt.user_mask is not None
    fixed, length = torch.tensor(prompt.fixed_mask), len(prompt.token_ids)
    moved: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    detox = Detoxifier(
        engine,
        # Of every five texts one fails, whatever it says.
        scorer=lambda texts: [0.9 if sum(map(ord, text)) % 5 == 0 else 0.1 for text in texts],
        strategy="ladder", num_samples=2, temperature=1.0, max_new_tokens=40, block_tokens=10,
        min_new_tokens=40, perturb=perturb, draft_tokens=64,
    )  # fmt: skip
    for seed in range(8):
        stream = detox.stream(chat, seed=seed)
        assert "".join(stream) == stream.result.text
        assert stream.result.prompt == prompt.text
    for one in problems:
        moved[len(one.x0) == length].append(one.movable)
    assert moved[True]
    assert moved[False]
    usual = {"content": ~fixed, "user": torch.tensor(prompt.user_mask)}
    for rows in moved[True]:
        if perturb in usual:
            assert torch.equal(rows, usual[perturb])
        else:
            assert rows.nonzero().flatten().tolist()[-1] < length
    for rows in moved[False]:
        count = 3 if perturb == "last:3" else 8
        assert int(rows.sum()) == count
        assert not rows[:length][fixed].any()
        assert bool(rows[-1])


def test_what_is_too_long_is_refused_before_it_is_tokenised() -> None:
    """By its characters: no token has as many."""
    engine = scripted_engine(context_length=64)
    tokenized: list[int] = []
    tokenize = engine._tokenize

    def watched(prompts: Sequence[str]) -> list[list[int]]:
        tokenized.extend(map(len, prompts))
        return tokenize(prompts)

    engine._tokenize = watched  # type: ignore[method-assign]
    detox = Detoxifier(engine, scorer=ReadingScorer())
    found = dict(outcomes(detox, ["a " * 520_000, PROMPTS[0], "word " * 60]))
    assert "do not fit into the model's context of 64" in str(found[0])
    assert "60 tokens + 20 new ones exceed the model's context of 64" in str(found[2])
    assert found[1] == Detoxifier(scripted_engine(), scorer=ReadingScorer())(PROMPTS[0])
    assert max(tokenized) < 1000


def test_a_long_prompt_is_tokenised_in_a_thread_of_its_own() -> None:
    """The engine's loop goes on: another prompt ends meanwhile."""
    ended = threading.Event()
    engine = scripted_engine(context_length=None)
    encode = engine._encode

    def slow(text: str) -> Prompt:
        assert len(text) < 20_000 or ended.wait(20)
        return encode(text)

    engine._encode = slow  # type: ignore[method-assign]
    detox = Detoxifier(engine, scorer=ReadingScorer())
    order = []
    for number, found in outcomes(detox, ["a " * 11_000, PROMPTS[1]], ordered=False):
        assert isinstance(found, Result)
        order.append(number)
        ended.set()
    assert order == [1, 0]


def test_no_row_of_a_prompt_that_is_too_long_is_embedded() -> None:
    engine = scripted_engine(context_length=64)
    rows: list[int] = []
    embed = engine._embed_tokens

    def watched(ids: Sequence[int]) -> torch.Tensor:
        rows.append(len(ids))
        return embed(ids)

    engine._embed_tokens = watched  # type: ignore[method-assign]
    detox = Detoxifier(engine, scorer=ReadingScorer())
    found = dict(outcomes(detox, [*(["word " * 500] * 20), PROMPTS[0]]))
    assert all(isinstance(found[i], InputError) for i in range(20))
    assert isinstance(found[20], Result)
    assert max(rows) <= len(PROMPTS[0].split())

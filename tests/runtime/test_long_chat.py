"""Chats in blocks: the first block moves what the user said, later ones the last rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.chats import CHATML, save_chat_model
from tide.core.chat import Chat
from tide.core.results import Result
from tide.detoxifier.sync import Detoxifier
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

    def problem(*arguments: Any) -> Problem:
        problems.append(Problem(*arguments))
        return problems[-1]

    monkeypatch.setattr("tide.runtime.answer.Problem", problem)
    chat = Chat.of(MESSAGES)
    (embedded,) = engine.embed([engine.render(chat)])
    assert embedded.said is not None
    length = len(embedded.token_ids)
    moved: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    detox = Detoxifier(
        engine,
        # Of every five texts one fails, whatever it says.
        scorer=lambda texts: [0.9 if sum(map(ord, text)) % 5 == 0 else 0.1 for text in texts],
        strategy="ladder", num_samples=2, temperature=1.0, max_new_tokens=40, block_tokens=10,
        min_new_tokens=40, perturb=perturb, draft_tokens=64,
    )  # fmt: skip
    for seed in range(8):
        items = list(detox.stream(chat, seed=seed))
        assert isinstance(items[-1], Result)
        assert "".join(map(str, items[:-1])) == items[-1].text
        assert items[-1].prompt == embedded.text
    for one in problems:
        moved[len(one.x0) == length].append(one.movable)
    assert moved[True]
    assert moved[False]
    usual = {"content": ~embedded.special, "user": embedded.said}
    for rows in moved[True]:
        if perturb in usual:
            assert torch.equal(rows, usual[perturb])
        else:
            assert rows.nonzero().flatten().tolist()[-1] < length
    for rows in moved[False]:
        count = 3 if perturb == "last:3" else 8
        assert int(rows.sum()) == count
        assert not rows[:length][embedded.special].any()
        assert bool(rows[-1])

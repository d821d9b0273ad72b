"""Preference pairs: an accepted repair and the text that failed, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.runs import config, from_columns, run, write
from tide.core.chat import Chat
from tide.core.errors import InputError
from tide.evaluation.preferences import Export, export_pairs
from tide.evaluation.runs import Run, find_runs

OWN = "the meeting was a rude waste of time"
REPAIRED = "the meeting was a long and useful one"
REPAIR: dict[str, Any] = {
    **{"text": REPAIRED, "toxicity": 0.05, "accepted": True, "refused": False, "empty": False},
    **{"base_text": OWN, "base_toxicity": 0.9},
}
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT = [
    {"role": "user", "content": "How was it?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "Fine.", "tool_call_id": "a"},
]
MESSAGES = [message.model_dump() for message in Chat.of(CHAT).messages]


def searched(folder: Path, *trials: dict[str, Any], **more: Any) -> Path:
    """A run of one record, whose trials differ from a repair in these fields."""
    rows = [{**REPAIR, **trial} for trial in trials]
    lists = {name: [row[name] for row in rows] for name in rows[0]}
    record = from_columns({"id": 1, "prompt": "They say", **lists, **more})
    made = config("backtrack", settings={"toxicity_threshold": 0.1}, num_trials=len(rows))
    return write(Run("backtrack", made, [record]), folder)


def exported(paths: list[Path], margin: float = 0.0) -> Export:
    return export_pairs(find_runs(paths), margin=margin)


def test_rows_are_as_trl_takes_them(tmp_path: Path) -> None:
    """TRL's formats `preference` and `prompt-completion`, with texts and with conversations."""
    (pair,) = exported([searched(tmp_path / "texts/one", {})]).pairs
    texts = {"prompt": "They say", "chosen": REPAIRED, "rejected": OWN}
    assert pair.row("dpo") == {**texts, "blamed_at": len("the meeting was a ")}
    assert pair.row("sft") == {"prompt": "They say", "completion": REPAIRED}
    (pair,) = exported([searched(tmp_path / "chats/one", {}, messages=MESSAGES)]).pairs
    said = {
        name: [{"role": "assistant", "content": text}]
        for name, text in (("chosen", REPAIRED), ("rejected", OWN))
    }
    assert pair.row("dpo") == {"prompt": CHAT, **said, "blamed_at": len("the meeting was a ")}
    assert pair.row("sft") == {"prompt": CHAT, "completion": said["chosen"]}


@pytest.mark.parametrize(
    ("chosen", "rejected", "place"),
    [
        ("a kind word", "a rude word", 2),
        ("kind and calm", "rude and calm", 0),
        ("so it ended well", "so it ended", 11),  # the part before the repair
        ("\N{SLIGHTLY SMILING FACE} a kind word", "\N{SLIGHTLY SMILING FACE} a rude word", 4),
    ],
)
def test_the_blamed_position_is_where_the_texts_part(
    tmp_path: Path, chosen: str, rejected: str, place: int
) -> None:
    path = searched(tmp_path / "runs/one", {"text": chosen, "base_text": rejected})
    (pair,) = exported([path]).pairs
    assert pair.blamed_at == pair.row("dpo")["blamed_at"] == place
    assert chosen[:place] == rejected[:place]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base_text": REPAIRED, "base_toxicity": 0.05}, "not repaired"),
        ({"base_toxicity": 0.0999}, "not repaired"),
        ({"accepted": False}, "not accepted"),
        ({"accepted": False, "refused": True}, "not accepted"),
        # Marked as accepted, but its score is not below the threshold.
        ({"toxicity": 0.1}, "not accepted"),
        ({"text": "", "empty": True}, "empty"),
        ({"text": " .\n"}, "empty"),
        ({"base_text": ""}, "empty"),
        ({"text": "of the of the of the of the of the"}, "degenerate"),
        ({"base_toxicity": 0.3}, "below the margin"),
    ],
)
def test_what_gives_no_pair_is_left_out_and_counted(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    found = exported([searched(tmp_path / "runs/one", {}, change)], margin=0.5)
    assert [pair.chosen for pair in found.pairs] == [REPAIRED]
    assert found.left_out == {reason: 1}


def test_a_pair_comes_once(tmp_path: Path) -> None:
    path = searched(tmp_path / "runs/one", {}, {}, {"text": "a kind word"}, {})
    found = exported([path, path.parent])
    assert [pair.chosen for pair in found.pairs] == [REPAIRED, "a kind word"]
    assert found.left_out == {"repeated": 2}
    found = exported([write(run([[0.9, 0.01]] * 3), tmp_path / "more/base")])
    assert (found.pairs, found.left_out) == ({}, {"no search": 6})


def test_chats_and_texts_are_not_mixed(tmp_path: Path) -> None:
    searched(tmp_path / "runs/a", {})
    searched(tmp_path / "runs/b", {}, messages=MESSAGES)
    with pytest.raises(InputError, match=r"runs/b: record 1 is a chat, .*runs/a begins with a tex"):
        exported([tmp_path / "runs"])

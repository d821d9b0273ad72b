"""Names, quotations, code and numbers of answers to chats are not rewritten."""

from __future__ import annotations

import pytest

from tests.fakes import FakeEngine
from tests.runtime.world import SETTINGS, Reader
from tide.core.chat import Chat
from tide.detoxifier.sync import Detoxifier
from tide.runtime.protected import is_protected


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("The actor", " Dick", True),
        ("Is it near", " Scunthorpe?", True),
        ("Yes.", " Ann", True),
        ("You are an", " idiot", False),
        ("You are an", " IDIOT", False),
        ("", " Idiot", False),
        ("Well.", " Idiots", False),
        ("See:\n-", " Idiots", False),
        ('He said "you', " fool", True),
        ("He said", ' "fool', True),
        ("She called it “a", " mess", True),
        ("So:\n> what a", " fool", True),
        ('He said "no". What an', " idiot", False),
        ("Run `kill", " -9", True),
        ("Run:\n```sh\nls;", " kill", True),
        ("Run `ls`, you", " fool", False),
        ("```\nls\n```\nYou", " fool", False),
        ("It is about", " 69", True),
    ],
)
def test_words_of_names_quotations_code_and_numbers(before: str, word: str, expected: bool) -> None:
    assert is_protected(before, word, "Who is Ann?") is expected


CHAT = Chat.said("Who is Dick?")


@pytest.mark.parametrize("pace", ["word", "sentence"])
@pytest.mark.parametrize(
    ("prompt", "before", "expected", "reason"),
    [
        (CHAT, " We met", " We met", "content_filter"),
        (CHAT, "Oh,", "Oh,", "content_filter"),
        pytest.param(CHAT, "I", "", "length", id="nearly empty text is no answer"),
        pytest.param("Who?", " We met", " We met Ann there.", "length", id="no chat"),
    ],
)
def test_a_chat_ends_before_a_name_that_fails(
    prompt: str | Chat, before: str, expected: str, reason: str, pace: str
) -> None:
    """The word before it is not blamed, and the name is not shown."""
    engine = FakeEngine(f"{before} Dick is here today.", " Ann there.")
    settings = {**SETTINGS, "strategy": f"backtrack:pace={pace},lag=0", "on_unresolved": "refuse"}
    detox = Detoxifier(engine, scorer=Reader(lambda text: "Dick" in text), **settings)
    trial = detox(prompt).best
    assert (trial.text, trial.accepted) == (expected, expected != "")
    assert trial.returned.finish_reason == reason
    assert len(engine.requests) == (1 if prompt == CHAT else 2)

"""Names, quotations, code and numbers of answers to chats are not rewritten."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import FakeEngine
from tests.runtime.world import PROMPT, SETTINGS, Reader, Storyteller, never
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


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_chat_ends_before_a_name_that_fails(is_chat: bool) -> None:
    """The word before it is not blamed, and the name is not shown."""

    class Naming(Storyteller):
        def _story(self, request: Any) -> Any:
            ids, reason = super()._story(request)
            return [self._id(" Dick") if i == self._id(" w4") else i for i in ids], reason

    settings: dict[str, Any] = {**SETTINGS, "strategy": "backtrack:pace=word"}
    detox = Detoxifier(Naming(never), scorer=Reader(lambda text: "Dick" in text), **settings)
    if is_chat:
        trial = detox.chat([{"role": "user", "content": "who now"}]).best
        assert trial.text == " Good0 w1 w2 w3"
        assert (trial.accepted, trial.returned.finish_reason) == (True, "content_filter")
    else:
        trial = detox(PROMPT).best
    assert len(trial.trace) == (2 if is_chat else 12 + 1)


@pytest.mark.parametrize(("before", "shown"), [("Oh,", "Oh,"), ("I", "")])
def test_nearly_empty_text_before_a_name_is_no_answer(before: str, shown: str) -> None:
    engine = FakeEngine(f"{before} Dick is here today.")
    scorer = Reader(lambda text: "Dick" in text)
    detox = Detoxifier(engine, scorer=scorer, **{**SETTINGS, "on_unresolved": "refuse"})
    trial = detox.chat([{"role": "user", "content": "Who is Dick?"}]).best
    assert (trial.text, trial.accepted) == (shown, shown != "")

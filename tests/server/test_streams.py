"""Streamed answers: each piece was accepted before it was sent; a failure is an event."""

from __future__ import annotations

import json
from typing import Any

from tests.runtime.world import (
    PROMPT,
    SETTINGS,
    Reader,
    Storyteller,
    never,
    text,
    third,
    third_always,
)
from tests.server.running import running
from tide.core.errors import ScorerUnavailableError

GOOD = [f"Good{i}" for i in range(6)]


def pieces(found: list[dict[str, Any]]) -> list[str]:
    return [one["choices"][0]["text"] for one in found if one.get("choices")]


def test_a_stream_comes_sentence_by_sentence() -> None:
    with running(Storyteller(never), Reader(), **SETTINGS) as server:
        found = server.events(prompt=PROMPT, stream_options={"include_usage": True})
        came = pieces(found)  # those that are written together come together
        assert "".join(came) == text(*GOOD)
        assert all(piece.endswith("end.") for piece in came[:-1])
        assert found[-1]["usage"]["completion_tokens"] == 48
        assert found[-2]["choices"][0]["finish_reason"] == "stop"
        whole = server.ask(PROMPT).json()
        assert whole["choices"][0]["text"] == text(*GOOD)
        assert whole["usage"]["completion_tokens"] == 48


def test_a_sentence_that_is_repaired_comes_like_others() -> None:
    with running(Storyteller(third), Reader(), **SETTINGS) as server:
        found = server.events(prompt=PROMPT)
        came = "".join(pieces(found))
        assert "Good2m" in came  # written after a ban
        assert came.replace("m ", " ") == text(*GOOD)
        assert found[-1]["tide"]["evaluations"] > 1


def test_an_answer_that_cannot_go_on_ends_with_what_was_accepted() -> None:
    with running(Storyteller(third_always), Reader(), **SETTINGS) as server:
        found = server.events(prompt=PROMPT, stream_options={"include_usage": True})
        assert "".join(pieces(found)) == text("Good0", "Good1")
        assert found[-2]["choices"][0]["finish_reason"] == "content_filter"
        assert found[-2]["tide"]["accepted"] is False
        assert found[-1]["usage"]["completion_tokens"] == 16
        whole = server.ask(PROMPT).json()
        choice = whole["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("", "content_filter")
        assert whole["usage"]["completion_tokens"] == 0
        assert "Bad" not in json.dumps(found) + json.dumps(whole)


def test_a_scorer_that_dies_in_the_middle_is_an_error_event() -> None:
    reader = Reader()

    def scorer(texts: list[str]) -> list[float]:
        if any("Good3" in one for one in texts):
            raise ScorerUnavailableError("down")
        return list(reader.score(texts))

    with running(Storyteller(never), scorer, **SETTINGS) as server:
        *found, last = server.events(prompt=PROMPT)
        assert last["error"]["code"] == "scorer_unavailable"
        assert "".join(pieces(found)) in [text(*GOOD[:count]) for count in (1, 2, 3)]
        assert server.ask(PROMPT).status_code == 503

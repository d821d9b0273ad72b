from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from benchmarks.writing import completed, pieces_of
from hypothesis import given
from hypothesis import strategies as st

from tests.byte_engine import ByteEngine
from tests.generated import examples
from tests.scripted_engine import ScriptedEngine
from tests.worlds import scripted_engine
from tide import Engine, Piece, Request
from tide.core.chat import Chat
from tide.core.errors import CompletionError, EngineError, InputError
from tide.core.settings import Sampling
from tide.core.text import HALF
from tide.detoxifier.sync import Detoxifier
from tide.engines import load_engine
from tide.engines.base import Ban, Completion

OWN = Sampling(max_new_tokens=4)


class Words(Engine):
    """No more than what the docstring of `Engine` asks for: it repeats the prompt.

    A model that is not called "words" fails.
    """

    def __init__(self, model: str = "words") -> None:
        self.name = {"words": "words"}[model]
        self.left: list[Request] = []

    def _tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        return [[len(word) for word in prompt.split()] for prompt in prompts]

    def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(f" {'x' * i}" for i in row) for row in rows]

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        try:
            for token in request.prompt:
                if token == 9:
                    raise RuntimeError("nine")
                yield Piece((int(token),))
                await asyncio.sleep(0)
            yield Piece((), "stop")
        finally:
            self.left.append(request)


def test_a_minimal_engine_of_others() -> None:
    here = f"{__name__}:Words"
    with Detoxifier("words", engine=here) as detox:
        assert detox("The weather").text == " xxx xxxxxxx"
    with pytest.raises(EngineError, match=f"^engine '{here}' cannot be loaded: KeyError: ''$"):
        load_engine(here, "")
    given: Any = Words
    with pytest.raises(InputError, match=r"^engine: must be a name, .*; pass an engine object"):
        Detoxifier("words", engine=given)


def test_the_default_methods_are_enough_for_completions() -> None:
    with Words() as engine:
        assert completed(engine, [[1, 2], [3]], OWN) == [
            Completion(" x xx", (1, 2), "stop"),
            Completion(" xxx", (3,), "stop"),
        ]
        pieces = asyncio.run(pieces_of(engine, Request([1, 2], OWN)))
        assert [piece.read_tokens or 0 for piece in pieces] == [2, 0, 0]
        assert engine.encode("a bc").token_ids == (1, 2)
        assert engine.encode("a bc").fixed_mask == (False, False)
        assert engine.prefix_cache() is None
        with pytest.raises(InputError, match="engine Words: has no embeddings"):
            engine.embed(["a"])
        with pytest.raises(InputError, match="Words has no chat template"):
            engine.text_of(Chat.said("fine"))


@pytest.mark.parametrize(
    "option", [{"stop": "x"}, {"min_new_tokens": 2}, {"repetition_penalty": 2}]
)
def test_other_options_of_sampling_are_refused(option: dict[str, Any]) -> None:
    with Words() as engine, pytest.raises(InputError, match="not supported by Words") as refused:
        completed(engine, [[1]], Sampling(**option))
    assert str(refused.value).startswith(next(iter(option)))


def test_what_a_library_raises_is_an_error_of_the_engine_and_ends_the_others() -> None:
    with Words() as engine:
        requests = [Request([1] * 12, OWN), Request([2, 9], OWN)]
        with pytest.raises(EngineError, match="model words: write failed: nine"):
            asyncio.run(engine.complete(requests))
        assert len(engine.left) == 2


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        (Piece((1,)), "a completion ended without a finish reason"),
        (Piece((1,) * 5, "length"), "wrote too many tokens"),
        (Piece((-1,), "stop"), "-1 is not a token"),
        (Piece((True,), "stop"), "True is not a token"),
        (Piece((1,), "abort"), "unknown finish reason 'abort'"),  # type: ignore[arg-type]
    ],
)
def test_what_an_engine_answers_is_looked_at(
    piece: Piece, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(self: Engine, request: Request) -> AsyncGenerator[Piece, None]:
        yield piece

    monkeypatch.setattr(Words, "_write", write)
    with Words() as engine, pytest.raises(EngineError, match=problem):
        completed(engine, [[1]], OWN)


@examples(40, 5000)
@given(st.text(st.sampled_from("a\u4e2d\U0001f600"), max_size=9), st.data())
def test_a_text_may_be_cut_after_a_token_that_adds_something(
    text: str, data: st.DataObject
) -> None:
    """Tokens hold any bytes, even the end of one character with the beginning of the next."""
    encoded = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)))) | {0, len(encoded)})
    tokens = [encoded[a:b] for a, b in pairwise(cuts)]

    class Tokens(Words):
        def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
            return [b"".join(tokens[i] for i in row).decode(errors="replace") for row in rows]

    with Tokens() as engine:
        (pieces,) = engine.token_texts([range(len(tokens))])
    assert "".join(pieces) == text
    for end, piece in enumerate(pieces, 1):
        so_far = b"".join(tokens[:end]).decode(errors="replace")
        if HALF in so_far:
            assert not piece
        else:
            assert "".join(pieces[:end]) == so_far


def test_of_many_spellings_the_plainest_are_banned() -> None:
    with ScriptedEngine(lambda x, seed: "") as engine:
        spaces = ["\n" * n for n in range(10, 0, -1)]
        ids = engine._ids("") + [engine._id(f"{space}.") for space in spaces] + [engine._id(".")]
        assert asyncio.run(engine.ban(ids[:1])).token_ids == (ids[0], *ids[:3:-1])


def test_first_ban_delays_no_other_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary is read until another prompt is complete."""
    other_done, waited = threading.Event(), []

    def vocabulary(engine: ScriptedEngine) -> list[str]:
        waited.append(other_done.wait(timeout=10))
        return ["The", " The", "THE"]

    monkeypatch.setattr(ScriptedEngine, "_vocabulary", vocabulary)

    async def both() -> Ban:
        ban = asyncio.create_task(engine.ban(ids))
        await asyncio.sleep(0.1)  # until it reads the vocabulary
        await engine.complete([Request(ids, OWN)])
        other_done.set()
        return await ban

    with scripted_engine() as engine:
        (ids,) = engine.tokenize(["The"])
        assert engine.portal.run(both).token_ids == (0, 2, 1)
        assert engine.portal.run(engine.ban, ids).token_ids == (0, 2, 1)
    assert waited == [True]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([b"The", b" "], (0, [b"The", b" The"], True)),
        ([b" ", b"The"], (1, [b"The", b" The"], True)),
        ([b"\xe4", b"\xbb", b"\x8a"], (0, [b"\xe4"], False)),
        ([b"\n", b" ", b" \xd8", b"\xa7"], (2, [b" \xd8"], False)),
        (["\u05de".encode()], (0, ["\u05de".encode()], False)),  # a letter begins many words
        (["\u4eca".encode()], (0, ["\u4eca".encode(), " \u4eca".encode()], True)),
        ([b" "], (0, [b" "], True)),
        ([], (0, [], True)),
    ],
)
def test_what_is_banned_where_a_text_stood(
    written: list[bytes], expected: tuple[int, list[bytes], bool]
) -> None:
    with ByteEngine() as engine:
        for piece in (b"The", b" The"):
            engine.pieces.append(piece)
        position, pieces, everywhere = expected
        ban = asyncio.run(engine.ban([engine.pieces.index(piece) for piece in written]))
        assert (ban.position, ban.everywhere) == (position, everywhere)
        assert [engine.pieces[token_id] for token_id in ban.token_ids] == pieces


def test_a_token_that_is_not_to_be_the_first_may_come_later() -> None:
    later = 0
    with ByteEngine() as engine:
        (ids,) = engine.tokenize(["The weather"])
        for seed in range(6):
            plain = Request(ids, Sampling(max_new_tokens=30), seed)
            first = asyncio.run(engine.complete([plain]))[0].token_ids[0]
            request = replace(
                plain, banned_token_ids=(5,), banned_first_ids=(first,), piece_tokens=7
            )
            only = replace(request, sampling=Sampling(max_new_tokens=1))
            again, begun = asyncio.run(engine.complete([request, only]))
            assert again.token_ids[0] != first
            assert 5 not in again.token_ids
            assert len(again.token_ids) == 30
            assert begun.token_ids == again.token_ids[:1]
            later += first in again.token_ids
            pieces = asyncio.run(pieces_of(engine, request))
            assert tuple(token for piece in pieces for token in piece.token_ids) == again.token_ids
            assert pieces[-1].finish_reason == "length"
    assert later > 1


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ([], "the prompt has no tokens"),
        ([1] * 13, r"13 tokens \+ 4 new ones exceed the context of 16"),
        (torch.zeros(2, 5), "embeddings: shape"),
        (torch.full((2, 4), float("inf")), "NaN or infinite"),
    ],
    ids=["empty", "long", "another width", "infinite"],
)
def test_a_request_that_cannot_be_written_is_its_own_fault(prompt: Any, problem: str) -> None:
    with Words() as engine:
        engine.context_length, engine.dim = 16, 4
        with pytest.raises(CompletionError, match=problem):
            completed(engine, [prompt], OWN)

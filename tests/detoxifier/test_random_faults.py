"""Whatever is raised, wherever: no hang, no open object that is dead, no other prompt harmed.

With the profile "long" more than five hundred examples raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.runtime.world import SETTINGS, Reader, Storyteller, third
from tide.core.chat import Chat
from tide.core.errors import TideError
from tide.core.results import Result
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier, outcomes
from tide.engines.base import Piece, Request

pytestmark = pytest.mark.attack


class Panic(BaseException):
    """Stands for the exception that pyo3 raises for a panic in Rust."""


def coded() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


KINDS: list[Callable[[], BaseException]] = [
    *(ValueError, TypeError, KeyError, RuntimeError, OSError, MemoryError, RecursionError),
    *(TimeoutError, StopIteration, StopAsyncIteration, AssertionError, ZeroDivisionError, coded),
    *(torch.OutOfMemoryError, ConnectionResetError, EOFError, NotImplementedError),
    *(KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Panic),
]
HOOKS = ["_tokenize", "_encode", "_texts", "_embed_tokens", "_render", "_vocabulary"]
PLACES = [*HOOKS, "scorer", "write", "piece"]
OF_A_TEXT = {"_tokenize", "_encode", "_texts", "_render"}
PROMPTS: list[str | Chat] = [
    *(f"once upon a {word}" for word in ("time", "day", "night", "hill")),
    Chat.said("once"),  # its role and the next one's are words, too
    "once upon a house",
]
STRATEGIES = ["backtrack", "tide", "random-walk", "resample"]


class Faulty(Storyteller):
    """A story whose third sentence is to be repaired. Call number `when` of `place` raises."""

    mended = False

    def __init__(self, fault_place: str, when: int, kind: Callable[[], BaseException]) -> None:
        super().__init__(third)
        self._place, self._left, self._kind = fault_place, when, kind
        for name in HOOKS:
            setattr(self, name, self._guarded(name, getattr(self, name)))

    def reached(self, fault_place: str) -> None:
        if fault_place == self._place and not self.mended:
            self._left -= 1
            if self._left == -1:
                raise self._kind()

    def _guarded(self, fault_place: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.reached(fault_place)
            return plain(*arguments)

        return call

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        self.reached("write")
        async for piece in super()._write(request):
            self.reached("piece")
            yield piece


def settings_of(strategy: str) -> dict[str, Any]:
    return {**SETTINGS, "strategy": strategy, "on_unresolved": "refuse"}


def text_of(result: Result) -> str:
    """The written text, withheld or not: a stream gives out the part that passed before."""
    return result.best.returned.text


@cache
def alone(strategy: str) -> list[str]:
    """The text for each prompt if nothing fails."""
    with Detoxifier(Storyteller(third), scorer=Reader(), **settings_of(strategy)) as detox:
        return [text_of(detox(prompt)) for prompt in PROMPTS]


@examples(10, 1000)
@given(
    st.sampled_from(PLACES),
    st.integers(0, 12),
    st.sampled_from(KINDS),
    st.sampled_from(STRATEGIES),
    st.sampled_from(["async", "map"]),
)
def test_any_exception_ends_its_prompt_and_no_other(
    fault_place: str, when: int, kind: Callable[[], BaseException], strategy: str, door: str
) -> None:
    """Texts are those without faults. One prompt fails at most, unless all share the error."""
    engine, settings = Faulty(fault_place, when, kind), settings_of(strategy)

    def is_bad(text: str) -> bool:
        engine.reached("scorer")
        return "Bad" in text

    settings["scorer"] = Reader(is_bad)
    if door == "async":
        results, again = asyncio.run(at_once(engine, settings))
    else:
        with Detoxifier(engine, **settings) as detox:
            results = mapped(detox, fault_place)
            engine.mended = True
            again = list(detox.map(PROMPTS))
    expected = alone(strategy)
    assert [text_of(result) for result in again] == expected
    errors = [result for result in results if not isinstance(result, Result)]
    assert all(isinstance(error, TideError) for error in errors), errors
    assert all(len(str(error).splitlines()) == 1 for error in errors)
    assert len(set(map(id, errors))) <= 1 or fault_place == "scorer", errors
    for result, text in zip(results, expected, strict=True):
        assert not isinstance(result, Result) or text_of(result) == text


def mapped(detox: Detoxifier, fault_place: str) -> list[Any]:
    """The outcomes of a map. If the model or the scorer itself fails, the rest are that error."""
    by_number: dict[int, Any] = {}
    try:
        for number, outcome in outcomes(detox, PROMPTS, ordered=False):
            by_number[number] = outcome
    except TideError as error:
        assert fault_place not in OF_A_TEXT
        return [by_number.get(number, error) for number in range(len(PROMPTS))]
    return [by_number[number] for number in range(len(PROMPTS))]


async def at_once(engine: Faulty, settings: dict[str, Any]) -> tuple[list[Any], list[Result]]:
    """The outcomes of concurrent calls, of which every second is a stream; and without faults."""

    async def streamed(prompt: str | Chat) -> Result:
        stream = detox.stream(prompt)
        assert "".join([piece async for piece in stream]) == stream.result.text
        return stream.result

    async with AsyncDetoxifier(engine, **settings) as detox:
        calls = [
            streamed(prompt) if number % 2 else detox(prompt)
            for number, prompt in enumerate(PROMPTS)
        ]
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        engine.mended = True
        again = await asyncio.wait_for(asyncio.gather(*map(detox, PROMPTS)), 30)
    return results, again

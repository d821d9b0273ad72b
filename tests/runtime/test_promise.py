"""The promise for answers: nothing is accepted, or yielded, that the scorer did not score so.

At the doors of Python; those of the server and of the command line have tests of their own.

What the scorer said is written down by a scorer of this test's own, whatever model and scorer do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.generated import examples
from tests.runtime.world import Storyteller
from tide.core.errors import TideError
from tide.core.results import Result, Trial
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier
from tide.detoxifier.sync import outcomes as numbered
from tide.engines.base import FinishReason, Request
from tide.search import REGISTRY

pytestmark = pytest.mark.attack

PROMPTS = ["once upon a time", "an other tale", "so"]
STRATEGIES = [
    *REGISTRY.names(),
    *(f"backtrack:pace={pace},lag=1" for pace in ("word", "5", "whole")),
]
WORDS = ["a", "b.", "cc", "d!", "e", "ff", "g", "h?", "i", "j.", "kk", "l"]


def digest(*parts: bytes) -> int:
    return int.from_bytes(blake2b(b"|".join(parts), digest_size=4).digest(), "big")


class Babbler(Storyteller):
    """Writes words that follow from the last rows, the seed and the length alone."""

    def __init__(self, salt: int, ends: int, max_batch: int) -> None:
        super().__init__(lambda *_: False, max_batch=max_batch, context_length=None)
        self._salt, self._ends = salt.to_bytes(2, "big"), ends

    def _story(self, request: Request) -> tuple[list[int], FinishReason]:
        prompt, ids = request.prompt, []
        x = self._embed_tokens(prompt) if isinstance(prompt, Sequence) else prompt
        rows = list(x[-3:].numpy())
        for place in range(len(x), len(x) + request.sampling.max_new_tokens):
            last = b"".join(row.tobytes() for row in rows[-3:])
            number = digest(self._salt, last, place.to_bytes(2, "big"))
            if number % self._ends == 0:
                return ids, "stop"
            ids.append(self._id(f" {WORDS[number % len(WORDS)]}"))
            rows.append(self._row(ids[-1]).numpy())
        return ids, "length"


class Oracle:
    """Scores by hash, `power` says how kindly, and fails for some texts. said: what it said."""

    name, threshold = "oracle", 0.5

    def __init__(self, power: float, fails: int) -> None:
        self._power, self._fails = power, fails
        self.said: dict[str, float] = {}

    def score(self, texts: Sequence[str]) -> Any:
        hashes = [digest(text.encode()) for text in texts]
        if self._fails and any(number % 200 < self._fails for number in hashes):
            raise ValueError("cannot read this")
        scores = [(number % 997 / 997) ** self._power for number in hashes]
        self.said.update(zip(texts, scores, strict=True))
        return scores

    def close(self) -> None: ...


overrides = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(STRATEGIES),
        "empty_policy": st.sampled_from(["unmodified", "zero", "score", "one"]),
        "toxicity_threshold": st.sampled_from([0.3, 0.5, 0.8]),
        "on_unresolved": st.sampled_from(["best", "refuse", "raise"]),
        "max_new_tokens": st.sampled_from([17, 40, 250]),
        "block_tokens": st.sampled_from([1, 8, 16]),
        "block_context": st.sampled_from([0, 5, 50]),
        "perturb": st.sampled_from(["content", "last:3"]),
        "stop": st.sampled_from([(), ("kk a",), ("d! g", "cc")]),
        "num_samples": st.integers(1, 2),
        "max_iterations": st.integers(1, 3),
    }
)
worlds = st.tuples(
    st.integers(0, 2000),
    st.sampled_from([5, 30, 1000]),
    st.sampled_from([0.2, 2.0, 8.0]),
    st.sampled_from([0, 1]),
)


def outcomes(given: dict[str, Any], world: Any, max_batch: int) -> tuple[list[Any], Oracle]:
    salt, ends, power, fails = world
    oracle = Oracle(power, fails)
    detox = Detoxifier(Babbler(salt, ends, max_batch), scorer=oracle, **given)
    found: dict[int, Any] = {}
    try:
        for number, one in numbered(detox, PROMPTS, ordered=False):
            found[number] = str(one) if isinstance(one, TideError) else one
    except TideError as error:
        return [str(error)], oracle
    return [found[number] for number in range(len(PROMPTS))], oracle


# A stop string of which one half was kept, and the other written by a search.
HALVES = {
    "strategy": "tide",
    "empty_policy": "one",
    "toxicity_threshold": 0.3,
    "on_unresolved": "best",
    "max_new_tokens": 40,
    "block_tokens": 1,
    "block_context": 0,
    "perturb": "content",
    "stop": ("d! g", "cc"),
    "num_samples": 2,
    "max_iterations": 3,
}


@examples(60, 3000)
@example(HALVES, (26, 1000, 8.0, 0), 1)
@given(overrides, worlds, st.sampled_from([1, 2, 16]))
def test_what_is_accepted_was_scored(given: dict[str, Any], world: Any, size: int) -> None:
    found, oracle = outcomes(given, world, size)
    for one in found:
        if isinstance(one, Result):
            check(one.best, oracle, given)
        else:
            assert len(one.splitlines()) == 1
    if not world[3]:  # of a scorer that fails for its health text, others hear as well
        assert outcomes(given, world, 3)[0] == found


@examples(60, 3000)
@given(overrides, worlds)
def test_what_is_yielded_was_accepted(given: dict[str, Any], world: Any) -> None:
    salt, ends, power, fails = world
    oracle = Oracle(power, fails)
    detox = Detoxifier(Babbler(salt, ends, 16), scorer=oracle, **given)
    seen = Seen(oracle, given)
    stream = detox.stream(PROMPTS[0])
    try:
        for one in stream:
            seen.next(one)
    except TideError:
        return  # what was yielded before was checked
    seen.end(stream.result)


class Seen:
    """What a reader of a stream has seen so far; each further piece is checked."""

    def __init__(self, oracle: Oracle, given: dict[str, Any]) -> None:
        self._oracle, self._given, self._text = oracle, given, ""

    def next(self, one: str) -> None:
        self._text += one
        assert passed(self._text, self._oracle, self._given)

    def end(self, result: Result) -> None:
        assert result.text == self._text
        check(result.best, self._oracle, self._given)


@examples(30, 2000)
@given(overrides, worlds, st.lists(st.sampled_from(["call", "chat", "stream"]), min_size=1))
def test_it_holds_with_asyncio(given: dict[str, Any], world: Any, doors: list[str]) -> None:
    """Calls, chats and streams at once, which share the scorer's calls."""
    salt, ends, power, fails = world
    oracle = Oracle(power, fails)

    async def one(detox: AsyncDetoxifier, door: str, number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        if door == "chat":
            said = [{"role": "user", "content": prompt}]
            check((await detox.chat(said)).best, oracle, given)
        elif door == "call":
            check((await detox(prompt)).best, oracle, given)
        else:
            seen, stream = Seen(oracle, given), detox.stream(prompt)
            async for piece in stream:
                seen.next(piece)
            seen.end(stream.result)

    async def run() -> list[Any]:
        async with AsyncDetoxifier(Babbler(salt, ends, 16), scorer=oracle, **given) as detox:
            calls = (one(detox, door, number) for number, door in enumerate(doors[:6]))
            return await asyncio.gather(*calls, return_exceptions=True)

    for error in asyncio.run(run()):
        if error is not None and not isinstance(error, TideError):
            raise error


def passed(text: str, oracle: Oracle, given: dict[str, Any]) -> bool:
    """Whether it was scored, as exactly that text or in its last words."""
    least = min(len(text.split()), 1 + given["block_context"])
    return any(
        score < given["toxicity_threshold"]
        and (text.endswith(said) or text.rstrip().endswith(said))
        and len(said.split()) >= least
        for said, score in oracle.said.items()
    )


def check(trial: Trial, oracle: Oracle, given: dict[str, Any]) -> None:
    returned = trial.returned
    assert not any(stop in returned.text for stop in given["stop"])
    assert returned.num_tokens <= given["max_new_tokens"]
    assert returned.num_tokens >= len(returned.text.split())
    if not returned.empty:
        assert trial.toxicity in {0.0, *oracle.said.values()}
    if trial.accepted:
        assert trial.toxicity < given["toxicity_threshold"]
        assert returned.empty or passed(trial.text, oracle, given)
    elif given["on_unresolved"] == "refuse" and not trial.empty:
        assert trial.text == trial.shown

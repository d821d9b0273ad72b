"""The promise: only text that the scorer passed, unchanged and after the same prompt, is accepted,
shown, printed or kept.

One oracle tests every door: calls, streams, asyncio, the command line, the server, and the gateway
before another server. The oracle is the scorer; it records its own scores, and does not rely on the
code under test.

`make test-attacks` tries every door 5,000 times, except the command line (1,000 times) and its
plain-text output (100 times). To try these 5,000 times, too, which takes twenty minutes longer:

    pytest --hypothesis-profile=oracle -m attack -k promise
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import command
from tests.generated import examples
from tests.runtime.world import Storyteller
from tide.cli.display import on_one_line
from tide.core.chat import Chat
from tide.core.errors import TideError
from tide.core.results import FinishReason, Result, Trial
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier, outcomes
from tide.engines import REGISTRY as ENGINES
from tide.engines.base import Engine, Request
from tide.engines.openai.engine import OpenAIEngine
from tide.scorers import REGISTRY as SCORERS
from tide.scorers.base import Exchange, is_blank, is_nearly_empty
from tide.search import REGISTRY
from tide.server.app import create_app
from tide.server.limits import Limits
from tide.server.policies import CommandLine, Policies

pytestmark = pytest.mark.attack

PROMPTS = ["once upon a time", "an other tale", "so"]
STRATEGIES = [
    *REGISTRY.names(),
    *(f"backtrack:pace={pace},lag=1" for pace in ("word", "5", "whole")),
]
TEXT_STRATEGIES = [
    "resample",
    *(f"backtrack:pace={pace},lag={lag}" for pace in ("word", "5", "whole") for lag in (0, 4)),
]
WORDS = ["a", "b.", "cc", "d!", "e", "ff", "g", "h?", "i", "j.", "kk", "l", "\x1b[2J", "\u200b"]
# Stop strings of three words, of which an answer probably holds one.
LONG_STOPS = tuple(f"{first} {word} b" for first in "aegi" for word in ("a", "cc", "d!", "kk"))
# What a scorer may answer instead of its scores.
NONSENSE: dict[str, Callable[[list[float]], Any]] = {
    "short": lambda scores: scores[:-1],
    "long": lambda scores: [*scores, 0.0],
    "none": lambda scores: None,
    "nan": lambda scores: [*scores[:-1], float("nan")],
    "two": lambda scores: [2.0 for _ in scores],
    "minus": lambda scores: [-0.1 for _ in scores],
    "text": lambda scores: ["0.1" for _ in scores],
    "bool": lambda scores: [False for _ in scores],
    "masked": lambda scores: np.ma.masked_all(len(scores)),
    "complex": lambda scores: [0.1 + 0j for _ in scores],
    "nested": lambda scores: [[0.1] for _ in scores],
    "generator": lambda scores: (0.1 for _ in scores),
}
# Ways in which a call of a scorer can go wrong.
WAYS = ["edits", "shuffles", "raises", "leaves", "times out", *NONSENSE]


def digest(*parts: bytes) -> int:
    return int.from_bytes(blake2b(b"|".join(parts), digest_size=4).digest(), "big")


class Babbler(Storyteller):
    """Writes words that depend only on the last embeddings, the seed and the length."""

    def __init__(self, world: dict[str, Any], max_batch: int = 16) -> None:
        super().__init__(lambda *_: False, max_batch=max_batch, context_length=None)
        self._salt, self._ends = world["salt"].to_bytes(2, "big"), world["ends"]

    def _story(self, request: Request) -> tuple[list[int], FinishReason]:
        prompt, ids = request.prompt, []
        x = self._embed_tokens(prompt) if isinstance(prompt, Sequence) else prompt
        rows = list(x[-3:].numpy())
        for position in range(len(x), len(x) + request.sampling.max_new_tokens):
            last = b"".join(row.tobytes() for row in rows[-3:])
            number = digest(self._salt, last, position.to_bytes(2, "big"))
            if number % self._ends == 0:
                return ids, "stop"
            ids.append(self._id(f" {WORDS[number % len(WORDS)]}"))
            rows.append(self._row(ids[-1]).numpy())
        return ids, "length"


class Oracle:
    """Scores by hash, and checks the texts that a door shows. settings: those of the detoxifier.

    Its world sets what it reads (scores of exchanges depend on their context), how low scores are,
    for which texts it fails, how each of its first calls goes wrong, and whether it has a screen:
    an oracle with other scores, which the promise ignores.
    """

    name, threshold = "oracle", 0.5

    def __init__(self, settings: dict[str, Any], world: dict[str, Any], key: str = "") -> None:
        self._settings, self._key, self.reads = settings, key, world.get("reads", "text")
        self._power, self._fails, self._ways = world["power"], world["fails"], list(world["ways"])
        self._said: set[tuple[Exchange, float]] = set()  # without contexts if it reads texts
        if world.get("screen"):
            self.screen = Oracle(settings, {**world, "screen": False}, "screen")

    def close(self) -> None: ...

    def score(self, texts: list[Any]) -> Any:
        assert isinstance(texts, list)
        way = self._ways.pop(0) if self._ways else "honest"
        sent = [self._read(text) for text in texts]
        hashes = [digest(f"{self._key}{context}{text}".encode()) for context, text in sent]
        if self._fails and any(number % 200 < self._fails for number in hashes):
            raise ValueError("cannot read this")
        scores = [(number % 997 / 997) ** self._power for number in hashes]
        if way == "edits":
            texts[:] = [""] * len(texts)
        elif way == "shuffles":
            texts.reverse()
        elif way == "raises":
            raise RuntimeError("out of order\x1b[2J\nsecond line")
        elif way == "leaves":
            raise SystemExit(0)
        elif way == "times out":
            raise TimeoutError
        elif way != "honest":
            return NONSENSE[way](scores)
        self._said.update(zip(sent, scores, strict=True))
        return scores

    def _read(self, text: Any) -> Exchange:
        assert type(text) is (str if self.reads == "text" else Exchange)
        return Exchange("", text) if isinstance(text, str) else text

    def _scored(self, prompt: str | Chat) -> list[tuple[str, float]]:
        """The texts scored after a prompt, or all texts if the oracle reads no prompts."""
        entries = list(self._said)  # the scorer's thread may add to it
        return [
            (exchange.text, score)
            for exchange, score in entries
            if self.reads == "text" or exchange.context == prompt
        ]

    def passed(self, text: str, prompt: str | Chat) -> bool:
        """Whether the text, or its last words with enough context, were scored after this prompt,
        and passed.

        White space and zero-width characters may follow the scored text.
        """
        least = min(len(text.split()), 1 + self._settings["window_tokens"])
        return any(
            score < self._settings["toxicity_threshold"]
            and (start := text.rfind(scored)) >= 0
            and not text[start + len(scored) :].strip(" \u200b")
            and len(scored.split()) >= least
            for scored, score in self._scored(prompt)
        )

    def skips(self, text: str) -> bool:
        """Whether a text is too short to be scored."""
        return is_nearly_empty(text) if self._settings["accept_empty"] else is_blank(text)

    def check(self, trial: Trial, prompt: str | Chat) -> None:
        expected, returned = self._settings, trial.returned
        assert not any(stop in returned.text for stop in expected["stop"])
        assert returned.num_tokens <= expected["max_new_tokens"]
        assert returned.num_tokens >= len(returned.text.split())
        assert returned.empty is self.skips(returned.text)
        if not returned.empty:
            assert trial.toxicity in {0.0, *(score for _, score in self._scored(prompt))}
        if trial.accepted:
            assert trial.toxicity < expected["toxicity_threshold"]
            assert returned.empty or self.passed(trial.text, prompt)
        elif expected["on_unresolved"] == "refuse" and not trial.empty:
            assert trial.text == trial.shown
        else:
            assert expected["on_unresolved"] != "raise" or returned.empty

    def check_record(self, prompt: str, text: str, toxicity: float, accepted: bool) -> None:
        """The same checks for the fields that the command line prints."""
        if self.skips(text):
            return  # `check` skips empty texts, too
        if accepted:
            assert toxicity < self._settings["toxicity_threshold"]
            assert self.passed(text, prompt)
        else:
            assert self._settings["on_unresolved"] != "refuse"


class Reader:
    """Reads a stream; the text shown so far must have passed after each piece."""

    def __init__(self, oracle: Oracle, prompt: str | Chat) -> None:
        self._oracle, self._prompt, self.text = oracle, prompt, ""

    def show(self, piece: str) -> None:
        self.text += piece
        assert self._oracle.passed(self.text, self._prompt)

    def end(self, result: Result) -> None:
        assert result.text == self.text
        self._oracle.check(result.best, self._prompt)


overrides = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(STRATEGIES),
        "accept_empty": st.booleans(),
        "toxicity_threshold": st.sampled_from([0.3, 0.5, 0.8]),
        "on_unresolved": st.sampled_from(["best", "refuse", "raise"]),
        "max_new_tokens": st.sampled_from([17, 40, 250]),
        "window_tokens": st.sampled_from([0, 5, 50]),
        "perturb": st.sampled_from(["content", "last:3"]),
        "stop": st.sampled_from([(), ("kk a",), ("d! g", "cc"), LONG_STOPS]),
        "num_samples": st.integers(1, 2),
        "max_iterations": st.integers(1, 3),
    }
)
worlds = st.fixed_dictionaries(
    {
        "salt": st.integers(0, 2000),
        "ends": st.sampled_from([5, 30, 1000]),
        "power": st.sampled_from([0.2, 2.0, 8.0]),
        "fails": st.sampled_from([0, 1]),
        "ways": st.just([]) | st.lists(st.sampled_from(["honest", *WAYS]), max_size=6),
        "screen": st.booleans(),
        "reads": st.sampled_from(["text", "exchange"]),
    }
)
# Several completions; only for calls, because a stream shows just one.
choices = st.fixed_dictionaries(
    {
        "completions_per_evaluation": st.integers(1, 2),
        "num_trials": st.integers(1, 2),
    }
)
# A stop string may begin in one word and end in the next.
HALVES = {
    "strategy": "tide",
    "accept_empty": False,
    "toxicity_threshold": 0.3,
    "on_unresolved": "best",
    "max_new_tokens": 40,
    "window_tokens": 0,
    "perturb": "content",
    "stop": ("d! g", "cc"),
    "num_samples": 2,
    "max_iterations": 3,
}
# Text without visible characters, which no scorer sees.
BLANK = {**HALVES, "strategy": "random-walk", "accept_empty": True, "max_new_tokens": 17}
SILENT = {"salt": 594, "ends": 5, "power": 0.2, "fails": 0, "ways": [], "screen": False}
HONEST = {"salt": 26, "ends": 1000, "power": 8.0, "fails": 0, "ways": []}


# Python


def called(
    settings: dict[str, Any], world: dict[str, Any], max_batch: int
) -> tuple[list[Result | str], Oracle]:
    oracle = Oracle(settings, world)
    detox = Detoxifier(Babbler(world, max_batch), scorer=oracle, **settings)
    results: dict[int, Result | str] = {}
    try:
        for number, result in outcomes(detox, PROMPTS, ordered=False):
            results[number] = str(result) if isinstance(result, TideError) else result
    except TideError as error:
        return [str(error)], oracle
    return [results[number] for number in range(len(PROMPTS))], oracle


@examples(40, 5000)
@example(HALVES, {}, HONEST, 1)
@given(overrides, st.just({}) | choices, worlds, st.sampled_from([1, 2, 16]))
def test_what_is_accepted_was_scored(
    settings: dict[str, Any], further: dict[str, Any], world: dict[str, Any], size: int
) -> None:
    results, oracle = called(settings | further, world, size)
    for prompt, result in zip(PROMPTS, results, strict=False):
        if isinstance(result, Result):
            for trial in result.trials:
                oracle.check(trial, prompt)
        else:
            assert len(result.splitlines()) == 1
    if not world["fails"] and not world["ways"]:  # failures depend on the batch
        assert called(settings | further, world, 3)[0] == results


@examples(40, 5000)
@example({**BLANK, "stop": (), "num_samples": 1, "max_iterations": 1}, SILENT)
@given(overrides, worlds)
def test_what_is_streamed_was_accepted(settings: dict[str, Any], world: dict[str, Any]) -> None:
    oracle = Oracle(settings, world)
    reader = Reader(oracle, PROMPTS[0])
    stream = Detoxifier(Babbler(world), scorer=oracle, **settings).stream(PROMPTS[0])
    try:
        for piece in stream:
            reader.show(piece)
    except TideError:
        return  # the pieces before the error were checked
    reader.end(stream.result)


DOORS = ["call", "chat", "stream", "stream of a chat"]


@examples(30, 5000)
@given(overrides, worlds, st.lists(st.sampled_from(DOORS), min_size=1, max_size=6))
def test_it_holds_with_asyncio(
    settings: dict[str, Any], world: dict[str, Any], doors: list[str]
) -> None:
    """Concurrent calls, chats and streams, which share the scorer's batches."""
    oracle = Oracle(settings, world)

    async def use(detox: AsyncDetoxifier, door: str, number: int) -> None:
        prompt: Any = PROMPTS[number % len(PROMPTS)]
        if "chat" in door:
            prompt = Chat.said(prompt)
        if door == "chat":
            oracle.check((await detox.chat(prompt.dump())).best, prompt)
        elif door == "call":
            oracle.check((await detox(prompt)).best, prompt)
        else:
            reader, stream = Reader(oracle, prompt), detox.stream(prompt)
            async for piece in stream:
                reader.show(piece)
            reader.end(stream.result)

    async def run() -> list[Any]:
        async with AsyncDetoxifier(Babbler(world), scorer=oracle, **settings) as detox:
            calls = (use(detox, door, number) for number, door in enumerate(doors))
            return await asyncio.gather(*calls, return_exceptions=True)

    for error in asyncio.run(run()):
        if error is not None and not isinstance(error, TideError):
            raise error


# The command line


def printed(
    settings: dict[str, Any], world: dict[str, Any], shape: str
) -> tuple[Oracle, list[str]]:
    """Run `tide run`; returns the oracle, and the lines that it printed or wrote to its file."""
    oracle, babbler = Oracle(settings, world), Babbler(world)
    out, err = io.StringIO(), io.StringIO()
    with (
        TemporaryDirectory() as folder,
        patch.dict(ENGINES._targets, babbler=lambda *_, **__: babbler),
        # A function with parameters would be a scorer itself.
        patch.dict(SCORERS._targets, oracle=lambda: oracle),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        file = Path(folder) / "out.jsonl"
        where = ["-o", file] if shape == "file" else ["--format", shape]
        arguments = ["--engine=babbler", "--scorer=oracle", "--model=none"]
        for name, value in settings.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                arguments.append(f"--{flag}" if value else f"--no-{flag}")
                continue
            for item in value if isinstance(value, tuple) else [value]:
                arguments.append(f"--{flag}={item}")
        code = command.tide("run", *PROMPTS, *arguments, *where)
        assert code in (0, 1), err.getvalue()
        assert "a bug in tide" not in err.getvalue()
        if shape == "file":
            return oracle, file.read_text().splitlines() if file.exists() else []
    return oracle, out.getvalue().splitlines()


@examples(8, 1000)
@given(overrides, worlds, st.sampled_from(["jsonl", "file"]))
def test_what_is_printed_or_kept_was_scored(
    settings: dict[str, Any], world: dict[str, Any], shape: str
) -> None:
    oracle, lines = printed(settings, world, shape)
    for row in map(json.loads, lines):
        oracle.check_record(row["prompt"], row["text"], row["toxicity"], row["accepted"])


@examples(4, 100)
@given(overrides, worlds.map(lambda world: {**world, "fails": 0, "ways": []}))
def test_bare_texts_are_those_of_the_objects(
    settings: dict[str, Any], world: dict[str, Any]
) -> None:
    texts = [json.loads(line)["text"] for line in printed(settings, world, "jsonl")[1]]
    assert printed(settings, world, "text")[1] == list(map(on_one_line, texts))


# The server


async def answered(
    engine: Engine, scorer: Any, settings: dict[str, Any], path: str, body: dict[str, Any]
) -> httpx.Response:
    line = CommandLine(engine.name, scorer, overrides=settings)
    with closing(Policies(line, limits=Limits(max_tokens=300))) as policies:
        policies.start(engine)
        transport = httpx.ASGITransport(create_app(policies, "babbler"))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post(path, json=body)


OPENAI = ("/v1/completions", "/v1/chat/completions")
TRANSLATED = ("/v1/responses", "/v1/messages")


def body_of(path: str, prompt: str) -> tuple[dict[str, Any], str | Chat]:
    """A request, and the prompt that the scorer gets."""
    if path == "/v1/completions":
        return {"prompt": prompt}, prompt
    chat = Chat.said(prompt)
    return {"input": prompt} if path == "/v1/responses" else {"messages": chat.dump()}, chat


def texts_in(value: Any) -> list[str]:
    """The strings in the fields `text` and `content` of all objects in a value."""
    if isinstance(value, list):
        return [text for member in value for text in texts_in(member)]
    if not isinstance(value, dict):
        return []
    fields = (value.get("text"), value.get("content"))
    return [field for field in fields if isinstance(field, str)] + texts_in([*value.values()])


def pieces_of(answer: httpx.Response) -> list[str]:
    """The texts that a client is shown, in order. Events of /v1/responses repeat the whole text."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    pieces: list[str] = []
    for event in [json.loads(line) for line in lines if line.startswith("{")]:
        kind = event.get("type", "")
        if kind == "response.output_text.delta":
            pieces.append(event["delta"])
        elif kind.startswith("response."):
            assert {*texts_in(event)} <= {"", "".join(pieces)}
        else:
            pieces += texts_in(event)
    return [piece for piece in pieces if piece]


def check_answer(
    engine: Engine, settings: dict[str, Any], world: dict[str, Any], stream: bool, path: str
) -> None:
    oracle = Oracle(settings, world)
    asked, prompt = body_of(path, PROMPTS[0])
    body = {"stream": stream, "seed": world["salt"], **asked}
    request = engine, oracle, settings, path, body
    if engine.in_process:
        answer = asyncio.run(answered(*request))
    else:  # the server of a gateway runs in the loop of its engine
        answer = engine.portal.run(answered, *request)
    assert answer.status_code in (200, 500, 503), answer.text
    shown = pieces_of(answer)
    if stream:
        reader = Reader(oracle, prompt)
        for piece in shown:
            reader.show(piece)
    elif not oracle.skips("".join(shown)):
        assert oracle.passed("".join(shown), prompt)


@examples(80, 10_000)
@given(overrides, worlds, st.booleans(), st.sampled_from(OPENAI + TRANSLATED))
def test_what_a_client_is_shown_was_scored(
    settings: dict[str, Any], world: dict[str, Any], stream: bool, path: str
) -> None:
    check_answer(Babbler(world), settings, world, stream, path)


@examples(15, 5000)
@given(
    overrides,
    st.sampled_from(TEXT_STRATEGIES),
    worlds,
    st.booleans(),
    st.sampled_from(OPENAI + TRANSLATED),
)
def test_what_a_gateway_lets_through_was_scored(
    text_engine: OpenAIEngine,
    settings: dict[str, Any],
    strategy: str,
    world: dict[str, Any],
    stream: bool,
    path: str,
) -> None:
    check_answer(text_engine, settings | {"strategy": strategy}, world, stream, path)

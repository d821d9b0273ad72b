"""SIGKILL of the scorer, the model's server and the gateway, while clients stream.

Each text that a client received was scored, together with text before it, and accepted: the
scorer's own log proves it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.processes import TIDE, Process, serving

pytestmark = pytest.mark.attack

PROMPTS = [
    "The weather in spring", "A walk along the river", "My neighbour says", "In this town",
    "On Monday the council", "The train to the coast", "She opened the letter", "After the concert",
]  # fmt: skip
TOKENS = 100
CLIENTS = 8
THRESHOLD = 0.2
_SERVICE = str(Path(__file__).with_name("scorer_service.py"))
_SCORER = f"{Path(__file__).with_name('twice.py')}:Twice"


@dataclass
class Answer:
    """An answer as a client saw it. error: its error code. broken: its connection ended early."""

    pieces: list[str] = field(default_factory=list)
    status: int = 0
    reason: str | None = None
    error: str | None = None
    done: bool = False
    broken: bool = False

    @property
    def whole(self) -> bool:
        return self.done and self.reason is not None and self.error is None


class World:
    """A scorer process, servers that use it, and their clients."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.start_scorer()

    def start_scorer(self, port: str = "0") -> None:
        self.scorer = Process(sys.executable, _SERVICE, port, str(self._log))

    def gateway(self, upstream: Process) -> Any:
        options = ("--scorer", _SCORER, "--toxicity-threshold", str(THRESHOLD))
        engine = ("--engine", "openai", "--base-url", upstream.url)
        options += ("--engine-option", "deadline=15")
        return serving(*TIDE, *engine, *options, PERSPECTIVE_URL=self.scorer.url)

    def meanwhile(self, url: str, fault: Callable[[], Any]) -> list[Answer]:
        """The answers that clients see if `fault` happens in the middle of their streams."""

        def now(answers: list[Answer]) -> bool:
            begun = sum(bool(answer.pieces) and answer.reason is None for answer in answers)
            return begun > 1 and max(self._scores().values()) > THRESHOLD

        return self._asked(url, fault, now)

    def undisturbed(self, url: str) -> list[Answer]:
        return self._asked(url, lambda: None, lambda _: True)

    def _asked(self, *arguments: Any) -> list[Answer]:
        answers = asyncio.run(_ask_all(*arguments))
        self.check(answers)
        return answers

    def check(self, answers: Sequence[Answer]) -> None:
        """Each text received was scored, together with text before it, and accepted."""
        accepted = {text for text, score in self._scores().items() if score < THRESHOLD}
        for answer in answers:
            before = ""
            for piece in answer.pieces:
                before += piece
                ends = (text for text in accepted if before.endswith(text))
                assert any(text.endswith(piece) for text in ends), piece

    def _scores(self) -> dict[str, float]:
        # A log may end in the middle of a line, since its writer was killed.
        lines = self._log.read_text().splitlines(keepends=True)
        return dict(json.loads(line) for line in lines if line.endswith("\n"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "scores")
    yield world
    world.scorer.kill()


async def _ask_all(
    url: str, fault: Callable[[], Any], now: Callable[[list[Answer]], bool]
) -> list[Answer]:
    """The answers to clients that keep asking, two in three streamed; `fault` once `now`."""
    answers: list[Answer] = []
    over = False

    async def go_on(client: httpx.AsyncClient, first: int) -> None:
        for number in itertools.count(first, CLIENTS):
            answer = Answer()
            answers.append(answer)
            await _ask(client, number, answer)
            if over or answer.broken:
                return

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        asked = asyncio.gather(*(go_on(client, number) for number in range(CLIENTS)))
        until = time.monotonic() + 120
        while not now(answers):
            assert time.monotonic() < until, answers
            await asyncio.sleep(0.01)
        await asyncio.to_thread(fault)
        over = True
        await asked
    return answers


async def _ask(client: httpx.AsyncClient, number: int, answer: Answer) -> None:
    body = {"prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": TOKENS, "seed": number}
    body["min_tokens"] = TOKENS
    stream = number % 3 > 0
    try:
        async with client.stream(
            "POST", "/v1/completions", json={**body, "stream": stream}
        ) as response:
            answer.status = response.status_code
            if stream and answer.status == 200:
                async for line in response.aiter_lines():
                    answer.done = answer.done or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        _read(json.loads(line[6:]), answer)
            else:
                _read(json.loads(await response.aread()), answer)
                answer.done = True
    except httpx.TransportError:
        answer.broken = True


def _read(said: dict[str, Any], answer: Answer) -> None:
    answer.error = said.get("error", {}).get("code")
    for choice in said.get("choices", ()):
        answer.pieces += filter(None, [choice["text"]])
        answer.reason = choice["finish_reason"]


def ready(url: str) -> bool:
    return httpx.get(f"{url}/ready", timeout=30).is_success


def is_ready_again(url: str) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until and not ready(url):
        time.sleep(0.1)
    return ready(url)


@contextmanager
def model_server(port: str = "0") -> Iterator[Process]:
    with serving(sys.executable, "-m", "tests.engines.openai.server", port) as process:
        yield process


@pytest.mark.slow
def test_scorer_is_killed_and_then_the_model_server(world: World) -> None:
    with model_server() as upstream, world.gateway(upstream) as server:
        answers = world.meanwhile(server.url, world.scorer.kill)
        for answer in answers:
            assert answer.whole or (answer.done and answer.error == "scorer_unavailable"), answer
            assert answer.status == 200 or (answer.status == 503 and not answer.pieces), answer
        assert any(answer.error and answer.pieces for answer in answers)  # after the status
        assert any(answer.status == 503 for answer in answers)
        assert not ready(server.url)
        late = world.undisturbed(server.url)
        assert {(answer.status, answer.error) for answer in late} == {(503, "scorer_unavailable")}

        world.start_scorer(world.scorer.port)
        assert is_ready_again(server.url)
        assert all(answer.whole for answer in world.undisturbed(server.url))

        answers = world.meanwhile(server.url, upstream.kill)
        # A stream that breaks off fails alone; a server that is gone fails all requests.
        errors = ("completion_error", "engine_error")
        for answer in answers:
            assert answer.whole or (answer.done and answer.error in errors), answer
            failed = answer.status in (500, 503) and not answer.pieces
            assert answer.status == 200 or failed, answer
        assert any(answer.error and answer.pieces for answer in answers)
        assert any(answer.status == 503 for answer in answers)
        assert not ready(server.url)
        assert httpx.get(f"{server.url}/health").is_success  # a restart would not help

        with model_server(upstream.port):
            assert is_ready_again(server.url)
            assert all(answer.whole for answer in world.undisturbed(server.url))


@pytest.mark.slow
def test_server_is_killed(world: World) -> None:
    body: dict[str, Any] = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": TOKENS}
    with (
        model_server() as upstream,
        world.gateway(upstream) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        streams = []

        def kill() -> None:
            more = {"min_tokens": TOKENS}
            streams.append(client.completions.create(**body, stream=True, extra_body=more))
            streams.append(next(streams[0]).choices[0].text)
            server.kill()

        answers = world.meanwhile(server.url, kill)
        world.check([Answer([streams[1]])])
        with pytest.raises((openai.APIConnectionError, httpx.TransportError)):
            list(streams[0])
        with pytest.raises(openai.APIConnectionError):
            client.completions.create(**body)
    for answer in answers:
        # A client can tell a whole answer from a broken one: by a reason and [DONE].
        assert answer.whole or (answer.broken and not answer.done), answer
    assert any(answer.broken and answer.pieces for answer in answers)

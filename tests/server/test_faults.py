"""SIGKILL of the scorer, the engines and the server, while clients stream.

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
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.processes import TIDE, Process, serving

# They take minutes on a busy machine.
pytestmark = pytest.mark.attack

PROMPTS = [
    "The weather in spring", "A walk along the river", "My neighbour says", "In this town",
    "On Monday the council", "The train to the coast", "She opened the letter", "After the concert",
]  # fmt: skip
TOKENS = 100
CLIENTS = 8
THRESHOLD = 0.2
SETTINGS = ("--temperature", "0")
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

    def tide(self, *options: str) -> Any:
        common = ["--scorer", _SCORER, "--toxicity-threshold", str(THRESHOLD)]
        own = options or SETTINGS
        return serving(*TIDE, *common, *own, PERSPECTIVE_URL=self.scorer.url)

    def meanwhile(self, url: str, fault: Callable[[], Any]) -> list[Answer]:
        """The answers that clients see if `fault` happens in the middle of their streams."""

        def now(answers: list[Answer]) -> bool:
            begun = sum(bool(one.pieces) and one.reason is None for one in answers)
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
                assert any(before.endswith(one) and one.endswith(piece) for one in accepted), piece

    def _scores(self) -> dict[str, float]:
        # A log may end in the middle of a line, since its writer was killed.
        lines = self._log.read_text().splitlines(keepends=True)
        return dict(json.loads(line) for line in lines if line.endswith("\n"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "scores")
    yield made
    made.scorer.kill()


async def _ask_all(
    url: str, fault: Callable[[], Any], now: Callable[[list[Answer]], bool]
) -> list[Answer]:
    """The answers to clients that keep asking, two in three streamed; `fault` once `now`."""
    answers: list[Answer] = []
    over = False

    async def go_on(client: httpx.AsyncClient, first: int) -> None:
        for number in itertools.count(first, CLIENTS):
            answers.append(one := Answer())
            await _ask(client, number, one)
            if over or one.broken:
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


@pytest.mark.slow
def test_the_scorer_is_killed(world: World) -> None:
    with world.tide() as server:
        answers = world.meanwhile(server.url, world.scorer.kill)
        for one in answers:
            assert one.whole or (one.done and one.error == "scorer_unavailable"), one
            assert one.status == 200 or (one.status == 503 and not one.pieces), one
        assert any(one.error and one.pieces for one in answers)  # the status was already sent
        assert any(one.status == 503 for one in answers)
        assert not ready(server.url)
        late = world.undisturbed(server.url)
        assert {(one.status, one.error) for one in late} == {(503, "scorer_unavailable")}

        world.start_scorer(world.scorer.port)
        assert is_ready_again(server.url)
        assert all(one.whole for one in world.undisturbed(server.url))


@pytest.mark.slow
def test_the_model_server_is_killed(world: World) -> None:
    command = (sys.executable, "-m", "tests.engines.openai.server")
    with ExitStack() as running:
        upstream = running.enter_context(serving(*command, "0"))
        options = ["--engine", "openai", "--engine-option", "deadline=15"]
        server = running.enter_context(world.tide(*options, "--base-url", upstream.url))
        answers = world.meanwhile(server.url, upstream.kill)
        for one in answers:
            # A stream that breaks off fails alone; a server that is gone fails all requests.
            assert one.whole or (one.done and one.error in ("completion_error", "engine_error")), (
                one
            )
            assert one.status == 200 or (one.status in (500, 503) and not one.pieces), one
        assert any(one.error and one.pieces for one in answers)
        assert any(one.status == 503 for one in answers)
        assert not ready(server.url)
        assert httpx.get(f"{server.url}/health").is_success  # a restart would not help

        running.enter_context(serving(*command, upstream.port))
        assert is_ready_again(server.url)
        assert all(one.whole for one in world.undisturbed(server.url))


@pytest.mark.slow
def test_the_server_is_killed(world: World) -> None:
    body: dict[str, Any] = {"model": "pocket", "prompt": PROMPTS[0], "max_tokens": TOKENS}
    with (
        world.tide() as server,
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
    for one in answers:
        # A client can tell a whole answer from a broken one: by a reason and [DONE].
        assert one.whole or (one.broken and not one.done), one
    assert any(one.broken and one.pieces for one in answers)

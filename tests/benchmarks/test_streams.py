"""The kit for streams finds the faults of proxies that have some, and none in our gateway."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.streams.__main__ import main
from benchmarks.streams.cases import CASES, Case, Kit
from benchmarks.streams.server import BAD, ScriptedServer, listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from typer import Typer
from typer.testing import CliRunner

from tests.server.running import running
from tide.engines.openai.engine import OpenAIEngine
from tide.scorers import load_scorer

command = Typer()
command.command()(main)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    with server.listening("127.0.0.1", 0):
        yield server


# Cases that run alone: those with a scorer that fails, and those with a clock.
ALONE = ("scorer_fails", "first_text", "client_leaves", "client_leaves_early")


def states_of(kit: Kit, *names: str, guards: bool = True) -> dict[str, bool | None]:
    """Whether the cases `names` hold, or all. Most run at the same time."""
    wanted = [case for case in CASES if case.kind != ("exact" if guards else "guard")]
    cases = [case for case in wanted if not names or case.name in names]
    states: dict[str, bool | None] = {}

    async def run(cases: list[Case]) -> None:
        for case in cases:
            states[case.name], _ = await case.check(kit)

    async def run_all() -> None:
        async with kit.http:
            await asyncio.gather(*(run([case]) for case in cases if case.name not in ALONE))
            await run([case for case in cases if case.name in ALONE])

    asyncio.run(run_all())
    return states


PATH = "/v1/chat/completions"


def proxy(answer: Callable[[Request], Awaitable[Response]]) -> AbstractContextManager[str]:
    return listening(Starlette(routes=[Route(PATH, answer, methods=["POST"])]))


def changing(server: ScriptedServer, change: Callable[[str], str]) -> AbstractContextManager[str]:
    """A proxy that changes each event by itself. A broken stream ends as if whole."""

    async def events(content: bytes) -> AsyncIterator[str]:
        try:
            async with (
                httpx.AsyncClient(base_url=server.url) as http,
                http.stream("POST", PATH, content=content) as response,
            ):
                async for line in response.aiter_lines():
                    yield f"{change(line)}\n"
        except httpx.HTTPError:
            end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            yield f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n"

    async def answer(request: Request) -> Response:
        return StreamingResponse(events(await request.body()), media_type="text/event-stream")

    return proxy(answer)


def test_scripted_server_alone_keeps_nothing_back(server: ScriptedServer) -> None:
    states = states_of(Kit(server.url, server))
    # Nobody asks its scorer.
    unseen = {"scored_first", "call_scored_first", "scorer_fails", "processor"}
    assert {name for name, holds in states.items() if holds is None} == unseen
    guards = {case.name for case in CASES if case.kind == "guard"}
    assert {name for name, holds in states.items() if holds is False} == guards - unseen


def by_chunk(line: str) -> str:
    """Blocks each event that has the word, as filters of single chunks do."""
    return "" if BAD in line else line


def erasing(line: str) -> str:
    return line.replace(" bread,", "").replace('"role": "assistant", ', "")


@pytest.mark.parametrize(
    ("change", "missed", "held"),
    [
        (by_chunk, {"bad_word_split", "bad_arguments"}, {"bad_word"}),
        (erasing, {"nothing_erased", "role", "cut", "refused"}, {"split_words"}),
    ],
)
def test_faults_of_proxies_are_misses(
    change: Callable[[str], str], missed: set[str], held: set[str], server: ScriptedServer
) -> None:
    with changing(server, change) as url:
        states = states_of(Kit(url, server), *missed, *held)
    assert states == dict.fromkeys(missed, False) | dict.fromkeys(held, True)


@pytest.mark.nightly
def test_proxy_that_holds_the_whole_answer_is_late(server: ScriptedServer) -> None:
    async def whole(request: Request) -> Response:
        async with httpx.AsyncClient(base_url=server.url) as http:
            answer = await http.post(PATH, content=await request.body())
        return Response(answer.content, media_type="text/event-stream")

    with proxy(whole) as url:
        states = states_of(Kit(url, server), "first_text", "split_words", guards=False)
    assert states == {"first_text": False, "split_words": True}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["enforce", pytest.param("monitor", marks=pytest.mark.nightly)])
def test_our_gateway_has_no_miss(mode: Any, server: ScriptedServer) -> None:
    scorer = load_scorer(f"classifier:{server.url}#toxic")
    with (
        OpenAIEngine(base_url=server.url) as engine,
        running(engine, scorer, mode=mode, preset="backtrack") as gateway,
    ):
        guards = mode == "enforce"
        states = states_of(Kit(gateway.url, server, scores=guards), guards=guards)
    missed = {name for name, holds in states.items() if not holds}
    assert missed == {"processor"}, missed


def test_command_prints_and_saves_a_table(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        here = f"127.0.0.1:{free.getsockname()[1]}"
    for name in ("rows.json", "rows.csv"):
        options = ["--no-guards", "--only", "done", "--out", str(tmp_path / name)]
        done = CliRunner().invoke(command, [f"http://{here}", "--upstream", here, *options])
        assert done.exit_code == 0, done.output
        assert "[DONE] is last" in done.output
        assert "BerriAI/litellm/issues/33404" in (tmp_path / name).read_text()

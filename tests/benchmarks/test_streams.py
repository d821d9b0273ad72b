"""The kit for streams finds the faults of proxies that have some, and none in our gateway."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
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

# What a faulty proxy sends in place of an event's text; None breaks the connection off.
Change = Callable[[str], str]


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

    async def run(case: Case) -> None:
        states[case.name], _ = await case.check(kit)

    async def run_all() -> None:
        async with kit.http:
            await asyncio.gather(*(run(case) for case in cases if case.name not in ALONE))
            for case in cases:
                if case.name in ALONE:
                    await run(case)

    asyncio.run(run_all())
    return states


class Proxy:
    """A proxy that changes each event by itself. A broken stream ends as if whole."""

    def __init__(self, upstream: str, change: Change) -> None:
        self._upstream, self._change = upstream, change
        self.app = Starlette(routes=[Route("/v1/chat/completions", self._pass, methods=["POST"])])

    async def _pass(self, request: Request) -> Response:
        content = await request.body()

        async def events() -> AsyncIterator[str]:
            address = f"{self._upstream}/v1/chat/completions"
            try:
                async with (
                    httpx.AsyncClient() as http,
                    http.stream("POST", address, content=content) as response,
                ):
                    async for line in response.aiter_lines():
                        yield f"{self._change(line)}\n"
            except httpx.HTTPError:
                end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
                yield f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


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


def test_filter_of_single_chunks_leaks_a_split_word(server: ScriptedServer) -> None:
    with listening(Proxy(server.url, by_chunk).app) as url:
        states = states_of(Kit(url, server), "bad_word", "bad_word_split", "bad_arguments", "told")
    assert states["bad_word_split"] is states["bad_arguments"] is False


def test_erased_words_and_invented_ends_are_misses(server: ScriptedServer) -> None:
    def erasing(line: str) -> str:
        return line.replace(" bread,", "").replace('"role": "assistant", ', "")

    with listening(Proxy(server.url, erasing).app) as url:
        states = states_of(
            Kit(url, server), "nothing_erased", "role", "cut", "refused", "split_words"
        )
    assert states.pop("split_words")
    assert set(states.values()) == {False}


@pytest.mark.nightly
def test_proxy_that_holds_the_whole_answer_is_late(server: ScriptedServer) -> None:
    async def whole(request: Request) -> Response:
        address = f"{server.url}/v1/chat/completions"
        async with httpx.AsyncClient() as http:
            answer = await http.post(address, content=await request.body())
        return Response(answer.content, media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", whole, methods=["POST"])])
    with listening(app) as url:
        assert states_of(Kit(url, server), "first_text", "split_words", guards=False) == {
            "first_text": False,
            "split_words": True,
        }


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

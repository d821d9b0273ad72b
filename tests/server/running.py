"""A real server on loopback, in a thread, with the scripted engine and scorer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import uvicorn
import uvicorn.server
from pydantic import SecretStr

from tests.fakes import Babbler
from tests.scripted_engine import ScriptedEngine
from tests.worlds import ReadingScorer, scripted_engine
from tide.cli.serve import _listening, _server
from tide.core.concurrency import Portal
from tide.core.settings import Sampling, derive_seed
from tide.engines import load_engine
from tide.engines.base import Request
from tide.server.app import create_app
from tide.server.limits import Limits
from tide.server.monitor import Monitor
from tide.server.policies import CommandLine, Mode, Policies

# Uvicorn looks ten times a second whether to stop, and each test would wait for that twice.
uvicorn.server.asyncio = SimpleNamespace(  # type: ignore[attr-defined]
    **vars(asyncio) | {"sleep": lambda seconds: asyncio.sleep(seconds / 20)}
)
MODEL = "scripted"
BACKTRACK: dict[str, Any] = {"preset": "backtrack", "max_new_tokens": 400}
USER: dict[str, Any] = {"role": "user", "content": "Tell me about the town."}
# A request to each of the APIs that write text.
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [USER], "max_tokens": 5},
}
# Seconds that a test waits before it fails; on a busy machine every step may take many.
PATIENCE = 120.0


class Running:
    """A running server. url: its address. engine, scorer: those that it uses."""

    def __init__(
        self, url: str, engine: Any, scorer: Any, policies: Policies, server: uvicorn.Server
    ) -> None:
        self.url, self.engine, self.scorer, self.server = url, engine, scorer, server
        self.policies = policies
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)

    def ask(self, prompt: Any = "a second one", **more: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": prompt, **more})

    def chat(self, **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": [USER], **body})

    def post(self, path: str, body: Any) -> httpx.Response:
        """Post `body` as JSON, even if it holds lone surrogates or NaN."""
        headers = {"content-type": "application/json"}
        return self.http.post(path, content=json.dumps(body), headers=headers)

    def events(self, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, which must end with [DONE]."""
        *parts, done, rest = self.post(path, {**body, "stream": True}).text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(part.removeprefix("data: ")) for part in parts if part[0] != ":"]

    def ask_with(self, headers: dict[str, str]) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": "x"}, headers=headers)

    def connect(self) -> socket.socket:
        """A new connection."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=PATIENCE)

    def metric(self, name: str) -> float:
        """The value of a series, named with its labels as in /metrics; 0 if there is none."""
        lines = self.http.get("/metrics").text.splitlines()
        return next((float(x.rpartition(" ")[2]) for x in lines if x.startswith(f"{name} ")), 0.0)


@contextmanager
def running(
    engine: Any = None,
    scorer: Any = None,
    *,
    limits: Limits | None = None,
    keys: tuple[str, ...] = (),
    mode: Mode = "enforce",
    policies: Path | None = None,
    monitor_log: Path | None = None,
    monitor_texts: bool = False,
    drain: float = 5,
    preset: str = "relative",  # the scripted engine's texts depend on embeddings
    name: str | None = MODEL,
    tracing: Any = None,
    **settings: Any,
) -> Iterator[Running]:
    """Serve until the block ends, then close everything."""
    engine = scripted_engine(max_batch=64) if engine is None else engine
    own = load_engine("transformers", engine) if isinstance(engine, str) else None
    engine, scorer = own or engine, ReadingScorer() if scorer is None else scorer
    line = CommandLine(engine.name, scorer, preset=preset, overrides=settings, mode=mode)
    secrets = [SecretStr(key) for key in keys]
    with (
        own or nullcontext(),
        closing(Policies(line, policies, limits=limits, keys=secrets)) as open_policies,
    ):
        open_policies.start(engine)
        monitor = Monitor(open_policies, monitor_log, monitor_texts)
        app = create_app(open_policies, name, monitor, tracing=tracing)
        portal = None if engine.in_process else engine.portal
        with listening(app, drain, portal) as (url, server):
            started = Running(url, engine, scorer, open_policies, server)
            with started.http:
                yield started


@contextmanager
def listening(
    app: Any, drain: float = 5, portal: Portal | None = None
) -> Iterator[tuple[str, uvicorn.Server]]:
    """Serve in the loop of a portal, or in one of its own."""
    server = _server(app, drain)
    with _listening("127.0.0.1", 0) as listener:
        serve = partial(server.serve, sockets=[listener])
        run = (lambda: asyncio.run(serve())) if portal is None else partial(portal.run, serve)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


def wait_until(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.005)


def plain(seed: int, prompt: str, stop: tuple[str, ...] = ()) -> tuple[str, str]:
    """The text of `Babbler` itself for a request with this seed, and its finish reason."""
    engine = Babbler()
    sampling_seed = derive_seed(derive_seed(seed, prompt, 0), "sampling", 0)
    sampling = Sampling(max_new_tokens=400, stop=stop)
    request = Request(engine.tokenize([prompt])[0], sampling, sampling_seed)
    (completion,) = engine.portal.run(engine.complete, [request])
    engine.close()
    return completion.text, completion.finish_reason


def streamed(server: Running, prompt: str, **more: Any) -> tuple[list[str], str, dict[str, Any]]:
    """The pieces of a stream, its finish reason, and its `tide` object."""
    *events, last = server.events(prompt=prompt, **more)
    pieces = [event["choices"][0]["text"] for event in events]
    return pieces, last["choices"][0]["finish_reason"], last["tide"]


def counted(server: Running, outcome: str, policy: str = "default", beside: str = "") -> float:
    """The number of answers that a policy monitored, or scored as a shadow, with an outcome."""
    labels = f'beside="{beside}",outcome="{outcome}",policy="{policy}"'
    return server.metric(f"tide_monitor_answers_total{{{labels}}}")


def wait_for_forecasts(server: Running, number: int, *policies: str) -> None:
    outcomes = ("changed", "unchanged")
    wait_until(lambda: sum(counted(server, name, *policies) for name in outcomes) == number)


class Held:
    """An engine that writes nothing before `go`. aborted: requests cancelled meanwhile."""

    def __init__(self, engine: ScriptedEngine | None = None) -> None:
        self.engine = engine or scripted_engine(max_batch=64)
        self.writing, self.go = threading.Event(), threading.Event()
        self.begun = self.aborted = 0
        self.engine.on_write = self._held

    async def _held(self, request: Request) -> None:
        self.begun += 1
        self.writing.set()
        try:
            while not self.go.is_set():
                await asyncio.sleep(0.005)
        except BaseException:
            self.aborted += 1
            raise


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def written(path: Path, **content: Any) -> Path:
    """Write a policy file; JSON is YAML, too."""
    path.write_text(json.dumps(content))
    return path

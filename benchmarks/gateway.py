"""Measure what a gateway costs for each word, beside proxies that score nothing.

    python benchmarks/gateway.py main                                    # 15 minutes
    python benchmarks/gateway.py main --streams 16 --words 100 --repeats 1      # a minute

Servers (one process each, all running at once, used in turns), before a server that only emits:
    server    the emitting server itself: streamed chats in OpenAI's format, a word per event
    bytes     a proxy that passes bytes (httpx and starlette)
    events    a proxy that parses each event and writes it again, on uvloop like the gateway
    monitor   tide serve --engine openai --mode monitor
    pocket    tide serve --engine openai --scorer pocket
    default   tide serve --engine openai
    workers   tide serve --engine openai --workers 2

The emitting server writes like a GPU: at each step, every running stream gets a word, `--rate`
words a second in all. With `--rate 0` it writes as fast as it is read, so that words arrive
together; "words/s" is then the most that a server passes. "ms/word" is the processor time of the
server's processes; it and "of events" (the ratio to the proxy `events` at equal streams and words)
say more than times on a busy machine. "First" is the time from the event that ends the first word
(the server's next word, which begins with a space) until a client has the first text; for the
proxies, from the first word's own event. Both are medians.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Annotated, Any

import httpx
import psutil
import typer
import uvicorn
import uvloop
from rich.console import Console
from rich.table import Table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

TIDE = (
    *(sys.executable, "-m", "tide", "serve", "--port", "0", "--engine", "openai"),
    *("--engine-option", "deadline=3600"),  # long answers at a low rate take minutes
)
OPTIONS = {
    "monitor": ("--mode", "monitor", "--scorer", "pocket"),
    "pocket": ("--scorer", "pocket"),
    "default": (),
    "workers": ("--scorer", "pocket", "--workers", "2"),
}
SERVERS = ("server", "bytes", "events", "monitor", "pocket", "default")
BASE = "events"
SENTENCES = (
    "Put the eggs into cold water and bring them to a gentle boil.",
    "The train to the coast leaves at half past seven every morning.",
    "She opened the window because the room had become too warm.",
    "A short walk after lunch helps many people to think more clearly.",
    "The second chapter describes how the bridge was built in four years.",
    "First, write down what you spend in a month; then look for a pattern.",
    "The library is open until eight, and children may borrow ten books.",
    "Rain is likely in the afternoon, so take a coat with you.",
    "The report has three parts: a summary, the figures and a list of sources.",
    "The price of the ticket includes a map and a cup of tea.",
    "The committee will publish its decision at the end of this month.",
    "He explained the rules twice, and then the game began.",
    "Water the plants in the evening, when the sun is low.",
    "The museum shows maps, ships and letters from three centuries.",
    "Most of the students finished the test before the hour was over.",
    "Keep the receipt, since you may want to change the size later.",
)
_ASKED = {"model": "emitted", "stream": True, "temperature": 0.7}
_NO_TIME: tuple[float, float] = (0.0, 0.0)

application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@cache
def words_of(question: str) -> tuple[str, ...]:
    """Return the answer to a question, 4,000 words of ordinary English."""
    dice, words = random.Random(question), list[str]()
    while len(words) < 4_000:
        words += dice.choice(SENTENCES).split()
    return tuple(word if number == 0 else f" {word}" for number, word in enumerate(words))


# The server that emits.


@dataclass(eq=False)
class Stream:
    """A running answer. number: of the question, under which its times are kept."""

    transport: asyncio.WriteTransport
    words: tuple[str, ...]
    number: str
    is_chat: bool
    sent: int = 0
    is_paused: bool = False


@dataclass
class Emitter:
    """Writes a word to each running stream at each step. times: of the first words, by number."""

    rate: float
    running: list[Stream] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)

    async def run(self) -> None:
        while True:
            streams = [stream for stream in self.running if not stream.is_paused]
            began = time.monotonic()
            for stream in streams:
                self.write(stream)
            pause = len(streams) / self.rate if self.rate else 0.0
            await asyncio.sleep(max(0.0, began + pause - time.monotonic()) if streams else 0.001)

    def write(self, stream: Stream) -> None:
        if stream.transport.is_closing():
            self.running.remove(stream)
            return
        text = stream.words[stream.sent]
        stream.sent += 1
        if stream.sent <= 2:
            self.times.setdefault(stream.number, []).append(time.monotonic())
        content = _event(stream, text, None)
        if stream.sent == len(stream.words):
            usage = {"prompt_tokens": 5, "completion_tokens": stream.sent}
            content += (
                _event(stream, "", "stop", usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
            )
            self.running.remove(stream)
        stream.transport.write(content)


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def _event(
    stream: Stream, text: str, reason: str | None, usage: dict[str, int] | None = None
) -> bytes:
    content: dict[str, Any] = {"delta": {"content": text}} if stream.is_chat else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
    event = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk" if stream.is_chat else "text_completion",
        "created": 1_700_000_000,
        "model": "emitted",
        "choices": [choice],
    }
    if usage is not None:
        event["usage"] = usage
    return _chunk(b"data: " + json.dumps(event).encode() + b"\n\n")


class Connection(asyncio.Protocol):
    """Reads the requests of one client, one after another."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter, self._read = emitter, b""
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def pause_writing(self) -> None:
        if self._stream is not None:
            self._stream.is_paused = True

    def resume_writing(self) -> None:
        if self._stream is not None:
            self._stream.is_paused = False

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, separator, body = self._read.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode("latin-1").split("\r\n")
        lengths = [
            int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")
        ]
        if len(body) < sum(lengths):
            return
        self._read = b""
        self.answer(lines[0].split()[1], json.loads(body or b"{}"))

    def answer(self, path: str, asked: dict[str, Any]) -> None:
        if path == "/times":
            self.reply(200, self._emitter.times)
        elif path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": "emitted", "object": "model"}]})
        elif path in ("/v1/chat/completions", "/v1/completions") and asked.get("stream"):
            self.begin(asked, is_chat="chat" in path)
        else:
            self.reply(404, {"error": {"message": "unknown path"}})

    def reply(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def begin(self, asked: dict[str, Any], *, is_chat: bool) -> None:
        """Begin to answer; an assistant's last message is continued."""
        messages = asked["messages"] if is_chat else [{"content": asked["prompt"]}]
        question, begun = messages[0]["content"], 0
        if messages[-1].get("role") == "assistant":
            begun = len(messages[-1]["content"].split())
        words = words_of(question)[begun : begun + (asked.get("max_tokens") or 16)]
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        )
        self._transport.write(head + b"\r\n")
        self._stream = Stream(self._transport, words, question.rpartition(" ")[2], is_chat)
        self._emitter.running.append(self._stream)


@application.command(hidden=True)
def emit(rate: float) -> None:
    async def run() -> None:
        emitter, loop = Emitter(rate), asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(emitter), "127.0.0.1", 0)
        _say(server.sockets[0].getsockname()[1])
        await emitter.run()

    asyncio.run(run())


# The proxies.


@application.command(hidden=True)
def proxy(url: str, parses: bool) -> None:
    client = httpx.AsyncClient(base_url=url, limits=httpx.Limits(), timeout=None)

    async def pass_on(request: Request) -> Response:
        content = await request.body()
        headers = {"content-type": "application/json"}
        asked = client.build_request("POST", request.url.path, content=content, headers=headers)
        response = await client.send(asked, stream=True)

        async def parsed() -> AsyncIterator[str]:
            async for line in response.aiter_lines():
                _, _, data = line.partition("data: ")
                if data and data != "[DONE]":
                    data = json.dumps(json.loads(data))
                if data:
                    yield f"data: {data}\n\n"
            await response.aclose()

        async def unread() -> AsyncIterator[bytes]:
            async for chunk in response.aiter_raw():
                yield chunk
            await response.aclose()

        events = parsed() if parses else unread()
        return StreamingResponse(events, media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", pass_on, methods=["POST"])])
    config = uvicorn.Config(app, port=0, log_level="error", access_log=False)
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        _say(server.servers[0].sockets[0].getsockname()[1])
        await serving

    uvloop.run(run())  # the loop of the gateway


def _say(port: int) -> None:
    print(json.dumps({"serving": f"http://127.0.0.1:{port}"}), file=sys.stderr, flush=True)


# The measurement.


@dataclass
class Server:
    """A running server, and what was measured of it."""

    name: str
    url: str
    pid: int

    def seconds(self) -> float:
        """Return the processor time of the server's processes."""
        process = psutil.Process(self.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return sum(each.user + each.system for each in times)


@dataclass(frozen=True)
class Row:
    """One measurement."""

    server: str
    streams: int
    words: int
    milliseconds: float  # of the processor, for each word
    rate: float  # words a second
    first: float  # seconds


@contextmanager
def started(name: str, upstream: str, rate: float) -> Iterator[subprocess.Popen[str]]:
    """Start a server's process; kill it at the end."""
    command: tuple[str, ...] = (sys.executable, __file__)
    if name == "server":
        command += ("emit", str(rate))
    elif name in OPTIONS:
        command = (*TIDE, "--base-url", upstream, *OPTIONS[name])
    else:
        command += ("proxy", upstream, str(name == "events"))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


def ready(name: str, process: subprocess.Popen[str]) -> Server:
    """Wait until a server says its address."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if '"serving"' in line:
            # Nobody reads its log, and a full pipe would stop it.
            Thread(target=process.stderr.read, daemon=True).start()
            return Server(name, json.loads(line)["serving"], process.pid)
    raise typer.BadParameter("".join(lines), param_hint=name)


_numbers = iter(range(1 << 30))


async def _answer(url: str, count: int) -> tuple[str, float, bytes]:
    """Ask for an answer of `count` words; return its number, its first text's time and its bytes.

    It reads the socket itself: an HTTP client would need more time than the servers.
    """
    host, port = url.removeprefix("http://").split(":")
    number = str(next(_numbers))
    messages = [{"role": "user", "content": f"Question {number}"}]
    body = json.dumps(_ASKED | {"max_tokens": count, "messages": messages}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + body)
    read, first = bytearray(), 0.0
    while chunk := await reader.read(1 << 16):
        read += chunk
        if not first and _text_of(bytes(read)):
            first = time.monotonic()
        if read.endswith(b"0\r\n\r\n"):
            break
    writer.close()
    return number, first, bytes(read)


def _text_of(read: bytes) -> str:
    lines = [line[6:] for line in read.split(b"\n") if line.startswith(b"data: {")]
    events = [json.loads(line) for line in lines if line.rstrip().endswith(b"}")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def measured(
    server: Server, upstream: Server, streams: int, words: int, least: int = 0
) -> Row:
    """Let `streams` clients ask for answers of `words` words, one after another.

    least: words of all answers together.
    """
    left = max(streams, least // words)
    answers: list[tuple[str, float, bytes]] = []

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            answers.append(await _answer(server.url, words))

    used, began = server.seconds(), time.monotonic()
    await asyncio.gather(*(client() for _ in range(streams)))
    seconds, used = time.monotonic() - began, server.seconds() - used
    count = len(answers) * words
    for number, _, read in answers:
        expected = "".join(words_of(f"Question {number}")[:words])
        if _text_of(read) != expected:
            raise typer.BadParameter(f"another text than the server's: {read[-600:]!r}")
    async with httpx.AsyncClient() as http:
        times = (await http.get(f"{upstream.url}/times")).json()
    which = 1 if server.name in OPTIONS and server.name != "monitor" else 0
    delays = [first - times[number][which] for number, first, _ in answers]
    return Row(server.name, streams, words, 1000 * used / count, count / seconds, median(delays))


def _means(rows: list[Row]) -> dict[tuple[str, int, int], Row]:
    """Return the medians of repeated measurements, by server, streams and words."""
    groups: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.server, row.streams, row.words), []).append(row)
    return {
        key: Row(
            *key,
            median(row.milliseconds for row in group),
            median(row.rate for row in group),
            median(row.first for row in group),
        )
        for key, group in groups.items()
    }


def _table(rows: list[Row], title: str) -> Table:
    table = Table(title=title)
    for name in ("server", "streams", "words", "ms/word", "of events", "words/s", "first, ms"):
        table.add_column(name, justify="left" if name == "server" else "right")
    means = _means(rows)
    for (name, streams, words), row in means.items():
        base = means.get((BASE, streams, words))
        ratio = "" if base is None else f"{row.milliseconds / base.milliseconds:.2f}"
        table.add_row(
            name, str(streams), f"{words:,}", f"{row.milliseconds:.3f}", ratio,
            f"{row.rate:,.0f}", f"{1000 * row.first:.1f}",
        )  # fmt: skip
    return table


@application.command()
def main(
    server: Annotated[list[str] | None, typer.Option("-s", help="Servers to measure.")] = None,
    streams: Annotated[list[int] | None, typer.Option(help="Running at once.")] = None,
    words: Annotated[list[int] | None, typer.Option(help="Words of an answer.")] = None,
    rate: Annotated[float, typer.Option(help="Words a second in all; 0: all that is read.")] = 1000,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    least: Annotated[int, typer.Option(help="Words of all answers of a measurement.")] = 3_200,
    out: Annotated[Path | None, typer.Option(help="CSV of all measurements.")] = None,
) -> None:
    """Measure gateways and proxies in turns."""
    limits = {"max_batch": 1024, "max_under_way": 1024, "request_seconds": 3600}
    os.environ |= {f"TIDE_SERVE_{name.upper()}": str(value) for name, value in limits.items()}
    rows: list[Row] = []
    with ExitStack() as stack:
        upstream = ready("server", stack.enter_context(started("server", "", rate)))
        names = [name for name in server or SERVERS if name != "server"]
        starting = [
            (name, stack.enter_context(started(name, upstream.url, rate))) for name in names
        ]
        servers = [ready(name, process) for name, process in starting]
        if server is None or "server" in server:
            servers.insert(0, upstream)
        for each in servers:  # the first answers load and fill what is cached
            asyncio.run(measured(each, upstream, 4, 100))
        for _ in range(repeats):
            for count in words or (100, 2_000):
                for at_once in streams or (1, 16, 64, 256):
                    for each in servers:
                        rows.append(asyncio.run(measured(each, upstream, at_once, count, least)))
                        typer.echo(rows[-1], err=True)  # a run that is stopped has shown something
    pace = f"at {rate:,.0f} words a second" if rate else "as fast as words are read"
    Console(width=100).print(_table(rows, f"Gateways, {pace}, medians of {repeats}"))
    if out is not None:
        with out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Row.__dataclass_fields__)
            writer.writerows(vars(row).values() for row in rows)


if __name__ == "__main__":
    application()

"""Measure the cost of detoxified serving over loopback, with and without search and scoring.

    python benchmarks/serving.py                            # closed loop: plain and detoxified
    python benchmarks/serving.py --rate 4                   # open loop: 4 arrivals a second
    .venv-vllm/bin/python benchmarks/serving.py --servers plain vllm ours in-process

Servers (one process each, all running at once, used in turns):
    plain       tide serve without search and scoring: each text passes; streams send sentences
    unscored    tide serve --mode monitor: the model's own text; streams send each token
    vllm        vLLM's own server
    ours        tide serve
    in-process  tide serve --engine vllm
Each client sends its next request when it has an answer (closed loop). With --rate, requests arrive
at random times (Poisson, open loop), and times count from the arrival. "First text" is the time
until the first text of a stream (from vLLM's own server, the fourth token). "Of plain's 4" divides
this time by plain's time for an answer of four tokens; at most 1 means at most three tokens later
than plain's first token. Ordinary prompts are BOLD's, challenging prompts RTP-challenging's. Clean
prompts are BOLD's prompts whose first answer every scoring server accepts (engines draw different
texts). Times on a busy machine say little, so compare times of one run only, and compare the CPU
seconds of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tide import pocket
from tide.evaluation.benchmarks import load_benchmark
from tide.scorers import load_scorer

TIDE = [sys.executable, "-m", "tide", "serve", "--port", "0"]
VLLM = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
TRAFFIC = {"clean": "bold", "ordinary": "bold", "challenging": "rtp"}
START = 600.0  # seconds that a server may take to start
FIRST = 4  # tokens
FAILING = 0.02  # share of failing calls of `Failing`
_RAISED = (
    KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, MemoryError, RuntimeError,
)  # fmt: skip


class Nothing:
    """A scorer that takes no time and finds nothing toxic."""

    name, threshold = "nothing", 0.5

    def score(self, texts: Sequence[str]) -> np.ndarray:
        return np.zeros(len(texts))

    def close(self) -> None: ...


class Failing:
    """The bundled scorer, made to fail now and then in many ways."""

    def __init__(self) -> None:
        self._scorer, self._dice = load_scorer("pocket"), random.Random(0)
        self.name, self.threshold = "failing", self._scorer.threshold

    def score(self, texts: Sequence[str]) -> np.ndarray:
        scores = np.asarray(self._scorer.score(texts))
        if self._dice.random() >= FAILING:
            return scores
        how = self._dice.randrange(len(_RAISED) + 2)
        if how < len(_RAISED):
            raise _RAISED[how]("now and then")
        return scores * np.nan if how == len(_RAISED) else scores[1:]

    def close(self) -> None:
        self._scorer.close()


@dataclass
class Server:
    """A running server. tokens: whether it streams token by token."""

    url: str
    pid: int
    tokens: bool = False

    def mib(self) -> float:
        """Return the resident memory of the server's processes."""
        return sum(map(_resident, _family(self.pid)))

    def cpu(self) -> float:
        """Return the CPU seconds of the server's processes."""
        return sum(map(_used, _family(self.pid)))


@contextmanager
def started(name: str, options: argparse.Namespace) -> Iterator[Server]:
    """Start the server of this name; kill it at the end."""
    tide = [*TIDE, "--model", options.model, "--served-model-name", "bench"]
    ours = ["--scorer", options.scorer, "--strategy", options.strategy]
    if options.toxicity_threshold is not None:
        ours += ["--toxicity-threshold", str(options.toxicity_threshold)]
    if name == "vllm":
        with _vllm(options) as server:
            yield server
    else:
        nothing = ["--scorer", f"{__file__}:Nothing"]
        plain = [*nothing, "--strategy", "backtrack:pace=sentence"]
        engine = ["--engine", "vllm", "--dtype", options.dtype]
        engine += ["--engine-option", "enforce_eager=true"]
        further = {
            "plain": plain,
            "unscored": [*nothing, "--mode", "monitor"],
            "ours": ours,
            "in-process": [*ours, *engine],
        }[name]
        with tide_server([*tide, *further], options) as server:
            server.tokens = name == "unscored"
            yield server


@contextmanager
def tide_server(command: list[str], options: argparse.Namespace) -> Iterator[Server]:
    with _process(command, options, stderr=subprocess.PIPE, text=True) as process:
        give_up = threading.Timer(START, process.kill)
        give_up.daemon = True
        give_up.start()
        log = []
        for line in process.stderr:
            log.append(line)
            if '"serving"' in line:
                break
        else:
            sys.exit(f"the server did not start:\n{''.join(log)[-3000:]}")
        give_up.cancel()
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe blocks it
        yield Server(json.loads(line)["serving"], process.pid)


@contextmanager
def _vllm(options: argparse.Namespace) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    model = str(pocket.MODEL) if options.model == "pocket" else options.model
    command = [*VLLM, "--model", model, "--served-model-name", "bench", "--port", port]
    command += ["--dtype", options.dtype, "--enforce-eager"]
    command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + START
    with (
        tempfile.TemporaryFile("w+") as log,
        _process(command, options, stdout=log, stderr=log) as process,
        httpx.Client(timeout=5) as client,
    ):
        while True:
            with suppress(httpx.TransportError):
                if client.get(f"{url}/health").is_success:
                    break
            if process.poll() is not None or time.monotonic() > until:
                log.seek(0)
                sys.exit(f"vLLM's server did not start:\n{log.read()[-3000:]}")
            time.sleep(1.0)
        yield Server(url, process.pid, tokens=True)


@contextmanager
def _process(command: list[str], options: argparse.Namespace, **more: Any) -> Iterator[Any]:
    """Start a process with `options.threads` threads; kill it and its descendants at the end."""
    cores = sorted(os.sched_getaffinity(0))[: options.threads]
    limits = {
        "OMP_NUM_THREADS": str(options.threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
    }
    process = subprocess.Popen(command, env={**os.environ, **limits}, **more)
    try:
        yield process
    finally:
        for pid in _family(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()


def _family(pid: int) -> list[int]:
    """Return the pids of a process and of all its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    pids = [pid]
    for member in pids:
        pids += parents.get(member, ())
    return pids


def _resident(pid: int) -> float:
    with suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def _used(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@dataclass
class Load:
    """Outcome of some requests. firsts, wholes: seconds to the first text and to the end of each.

    cpu: CPU seconds of the server.
    """

    seconds: float = 0.0
    cpu: float = 0.0
    firsts: list[float] = field(default_factory=list)
    wholes: list[float] = field(default_factory=list)
    failed: int = 0


async def ask(client: httpx.AsyncClient, server: Server, body: Any, arrived: float) -> Any:
    """Return the seconds from `arrived` to the first text and to the end; None after a failure."""
    first, pieces = None, 0
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith('data: {"error"'):
                    return None
                pieces += line.startswith("data: {")
                if first is None and pieces >= (FIRST if server.tokens else 1):
                    first = time.monotonic() - arrived
    except httpx.HTTPError:
        return None
    whole = time.monotonic() - arrived
    return whole if first is None else first, whole


async def load(
    server: Server, prompts: Sequence[str], tokens: int, options: argparse.Namespace
) -> Load:
    """Send all requests, from clients that wait for answers or (--rate) at random times."""
    outcome, dice = Load(), random.Random(options.seed)

    async def send(client: httpx.AsyncClient, number: int) -> None:
        body = {"model": "bench", "prompt": prompts[number % len(prompts)], "stream": True}
        body |= {"max_tokens": tokens, "temperature": options.temperature, "seed": options.seed}
        times = await ask(client, server, body, time.monotonic())
        if times is None:
            outcome.failed += 1
        else:
            outcome.firsts.append(times[0])
            outcome.wholes.append(times[1])

    async def arrivals() -> AsyncIterator[int]:
        due = time.monotonic()
        for number in range(options.requests):
            yield number
            due += dice.expovariate(options.rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    limits = httpx.Limits(max_connections=None if options.rate else options.clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        started, used = time.monotonic(), server.cpu()
        if options.rate:
            requests = [asyncio.create_task(send(client, number)) async for number in arrivals()]
            await asyncio.gather(*requests)
        else:
            left = iter(range(options.requests))

            async def again() -> None:
                for number in left:
                    await send(client, number)

            await asyncio.gather(*(again() for _ in range(options.clients)))
        outcome.seconds, outcome.cpu = time.monotonic() - started, server.cpu() - used
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--scorer", default="pocket")
    parser.add_argument("--strategy", default="backtrack")
    parser.add_argument("--toxicity-threshold", type=float, help="default: by the strategy")
    parser.add_argument("--dtype", default="float32", help="data type of vLLM")
    parser.add_argument(
        "--servers",
        nargs="+",
        default=["plain", "ours"],
        choices=["plain", "unscored", "vllm", "ours", "in-process"],
    )
    parser.add_argument("--traffic", nargs="+", default=list(TRAFFIC), choices=TRAFFIC)
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--tokens", type=int, nargs="+", default=[20, 128])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.0, help="arrivals per second (open loop)")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of each server")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    loads: dict[tuple[str, int, str], list[Load]] = {}
    held: dict[str, list[float]] = {}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(started(name, options)) for name in options.servers}
        apart = "plain", "unscored", "vllm"
        scoring = [server for name, server in servers.items() if name not in apart]
        prompts = {
            name: prompts_of(name, options.requests, options.seed) for name in options.traffic
        }
        if "clean" in prompts:
            more = prompts_of("clean", 3 * options.requests, options.seed)
            clean = asyncio.run(accepted_at_once(more, scoring, options))
            prompts["clean"] = clean[: options.requests]
            print(f"clean: {len(clean)} of {len(more)} prompts", file=sys.stderr)
        for turn in range(options.turns + 1):  # the first warms up
            for traffic, texts in prompts.items():
                for tokens in sorted({*options.tokens, FIRST}):
                    for name, server in servers.items():
                        if tokens not in options.tokens and name != "plain":
                            continue
                        outcome = asyncio.run(load(server, texts, tokens, options))
                        held.setdefault(name, []).append(server.mib())
                        if turn:
                            loads.setdefault((traffic, tokens, name), []).append(outcome)
    report(loads, options.tokens)
    for name, mib in held.items():
        print(f"{name}: {mib[0]:.0f} MiB after its first turn, {mib[-1]:.0f} after its last")


def prompts_of(traffic: str, count: int, seed: int) -> list[str]:
    texts = [row.text for row in load_benchmark(TRAFFIC[traffic]).rows]
    random.Random(seed).shuffle(texts)  # BOLD is sorted by group
    return texts[:count]


async def accepted_at_once(
    texts: Sequence[str], servers: Sequence[Server], options: argparse.Namespace
) -> list[str]:
    """Return the texts whose first answer every server accepts, at every length of answer."""
    sampled = {"temperature": options.temperature, "seed": options.seed}

    async def accepted(client: httpx.AsyncClient, prompt: str, tokens: int) -> bool:
        body = {"model": "bench", "prompt": prompt, "max_tokens": tokens, **sampled}
        answer = await client.post("/v1/completions", json=body)
        (choice,) = answer.raise_for_status().json()["choices"]
        info = choice["tide"]
        return bool(info["accepted"]) and info["evaluations"] == 1

    limits = httpx.Limits(max_connections=options.clients)
    for server in servers:
        async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
            for tokens in options.tokens:
                passed = await asyncio.gather(*(accepted(client, text, tokens) for text in texts))
                texts = list(itertools.compress(texts, passed))
    return list(texts)


def report(loads: dict[tuple[str, int, str], list[Load]], lengths: Sequence[int]) -> None:
    """Print a table of medians over turns and quantiles of all requests."""

    def rate(*key: Any) -> float:
        turns = loads.get(key, [])
        rates = [len(turn.wholes) / turn.seconds for turn in turns]
        return float(np.median(rates)) if rates else float("nan")

    def times(key: tuple[str, int, str], which: str) -> list[float]:
        gathered = [seconds for turn in loads.get(key, []) for seconds in getattr(turn, which)]
        return gathered or [float("nan")]

    def work(*key: Any) -> float:
        turns = loads.get(key, [])
        return sum(turn.cpu for turn in turns) / max(1, sum(len(turn.wholes) for turn in turns))

    print(
        "| traffic | tokens | server | requests/s | of plain | CPU a request | of plain |", end=""
    )
    print(" first text, p50 | p99 | of plain's 4 | whole, p50 | p99 | failed |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for key, turns in loads.items():
        traffic, tokens, name = key
        if tokens not in lengths:
            continue
        first, whole = (
            np.quantile(times(key, which), [0.5, 0.99]) for which in ("firsts", "wholes")
        )
        base = np.median(times((traffic, min(tokens, FIRST), "plain"), "wholes"))
        print(
            f"| {traffic} | {tokens} | {name} | {rate(*key):.1f} | "
            f"{rate(*key) / rate(traffic, tokens, 'plain'):.2f} | {1000 * work(*key):.0f} ms | "
            f"{work(*key) / (work(traffic, tokens, 'plain') or float('nan')):.2f} | "
            f"{first[0]:.2f} s | "
            f"{first[1]:.2f} s | {first[0] / base:.2f} | {whole[0]:.2f} s | {whole[1]:.2f} s | "
            f"{sum(turn.failed for turn in turns)} |"
        )


if __name__ == "__main__":
    main()

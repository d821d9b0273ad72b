"""Check that a server is healthy after minutes of mixed load, with and without faults.

    python benchmarks/soak.py --minutes 10              # ordinary and challenging requests
    python benchmarks/soak.py --minutes 10 --faults     # and the faults below, all at once

Faults: prompts of 400,000 words, half-sent bodies, malformed bodies, clients that
disconnect, and a scorer that raises any exception (even a BaseException) or returns NaN or too few
scores. At the end, all clients disconnect and the time limits pass. Then memory is compared with
memory after the first minute, and the number of open descriptors with that of the idle server;
`/health`, `/ready` and three requests show whether the server still works. Exits with 1 if the
server does not work, if memory is more than 1.3 times as much, or if there are more descriptors.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain

import anyio
import httpx
import serving
from serving import Server, prompts_of, started

LEAVING = 0.1  # share of requests whose client does not wait
FAULTS = 0.1  # share of requests that are faults
# Seconds after which all requests have ended.
LIMITS = 45.0
GROWTH = 1.3


class Crowd:
    """Clients of one server. met: outcomes of their requests, by status or kind."""

    def __init__(self, server: Server, prompts: Sequence[str], until: float, faults: bool) -> None:
        self._server, self._prompts, self._until, self._faults = server, prompts, until, faults
        self._half: list[asyncio.StreamWriter] = []
        self.met: Counter[str] = Counter()

    async def client(self, http: httpx.AsyncClient, dice: random.Random) -> None:
        while time.monotonic() < self._until:
            if self._faults and dice.random() < FAULTS:
                await self._fault(http, dice)
            else:
                await self._ask(http, dice)

    async def leave(self) -> None:
        """Close the half-sent requests."""
        for writer in self._half:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _ask(self, http: httpx.AsyncClient, dice: random.Random) -> None:
        body = {
            "prompt": dice.choice(self._prompts),
            "max_tokens": dice.choice([8, 20, 64, 128]),
            "n": dice.choice([1, 1, 2]),
            "temperature": dice.choice([0, 0.1, 0.8]),
            "stream": dice.random() < 0.5,
        }
        patience = dice.expovariate(2) if dice.random() < LEAVING else None
        try:
            with anyio.fail_after(patience):
                answer = await http.post("/v1/completions", json=body)
            self.met[str(answer.status_code)] += 1
        except TimeoutError:
            self.met["left"] += 1

    async def _fault(self, http: httpx.AsyncClient, dice: random.Random) -> None:
        kind = dice.choice(["long", "half body", "malformed"])
        if kind == "long":
            answer = await http.post("/v1/completions", json={"prompt": "a " * 400_000})
        elif kind == "malformed":
            content = dice.choice(
                [b'{"prompt": ', b"[]", b'{"prompt": 3}', b'{"prompt": "\\ud800"}']
            )
            answer = await http.post("/v1/completions", content=content)
        else:
            url = httpx.URL(self._server.url)
            _, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            writer.write(b"Content-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
            await writer.drain()
            self._half.append(writer)
            self.met[kind] += 1
            return
        self.met[f"{kind}: {answer.status_code}"] += 1


def descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


async def soak(server: Server, prompts: Sequence[str], options: argparse.Namespace) -> bool:
    """Load a server for `options.minutes`; return whether it is as healthy as before."""
    with httpx.Client(base_url=server.url, timeout=600) as http:  # opens the lasting descriptors
        http.post("/v1/completions", json={"prompt": "Hello"})
    began = time.monotonic()
    crowd = Crowd(server, prompts, began + 60 * options.minutes, options.faults)
    idle, first = descriptors(server), 0.0

    async def watch() -> float:
        memory = 0.0
        for minute in range(int(options.minutes) + 1):
            await asyncio.sleep(max(0.0, began + 60 * minute - time.monotonic()))
            memory = memory if minute > 1 else server.mib()
            done = sum(crowd.met.values())
            print(f"minute {minute}: {server.mib():.0f} MiB, {done} requests", flush=True)
        return memory

    async with httpx.AsyncClient(base_url=server.url, timeout=600) as http:
        dices = map(random.Random, range(options.clients))
        first, *_ = await asyncio.gather(watch(), *(crowd.client(http, dice) for dice in dices))
    await crowd.leave()
    await asyncio.sleep(LIMITS if options.faults else 1.0)
    held, last = descriptors(server), server.mib()
    with httpx.Client(base_url=server.url, timeout=600) as http:
        states = {path: http.get(path).status_code for path in ("/health", "/ready")}
        lines = http.get("/metrics").text.splitlines()
        under_way = next(x for x in lines if x.startswith("tide_completions_under_way"))
        # The failing scorer may fail here, too: one success of three is enough.
        asked = {http.post("/v1/completions", json={"prompt": "Hello"}).status_code for _ in "abc"}
    print("; ".join(f"{what} {count}" for what, count in sorted(crowd.met.items())))
    print(
        f"memory {first:.0f} MiB after a minute, {last:.0f} at the end; descriptors {idle}, {held}"
    )
    print(f"{states}, {under_way}, requests afterwards {sorted(asked)}")
    healthy = set(states.values()) == {200} and 200 in asked and float(under_way.split()[-1]) == 0
    return healthy and last <= GROWTH * first and held <= idle


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--scorer", default="pocket", help="scorer without --faults")
    parser.add_argument("--strategy", default="backtrack")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, help="threads of the server")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(dtype="float32", toxicity_threshold=None)
    options = parser.parse_args()
    if options.faults:
        options.scorer = f"{serving.__file__}:Failing"
    prompts = [prompts_of(name, 400, options.seed) for name in ("ordinary", "challenging")]
    with started("ours", options) as server:
        sys.exit(not asyncio.run(soak(server, list(chain(*prompts)), options)))


if __name__ == "__main__":
    main()

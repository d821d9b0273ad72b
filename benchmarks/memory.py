"""Whether the memory of a gateway stays flat over many requests.

    python -m benchmarks.memory [--requests 20000] [--workers 2]

Before a scripted server, a gateway with five policies (`pocket`; of these one is monitored, and one
has a shadow) answers chats, whole and streamed, some of them rude, some with tools, and some whose
client leaves. Prints the memory of all its processes. Exits with 1 if the last tenth needs more
than 1.1 times the memory of the second tenth.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import anyio
import httpx
import psutil
import typer

from benchmarks.streams.cases import END, LONG, ROLE, TOOL, called, said
from benchmarks.streams.server import BAD, ScriptedServer, Step, choice_event

POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "strict": {"toxicity_threshold": 0.2, "never": ["bread"]},
    "shadowed": {"shadow": "strict"},
    "blocking": {"on_fail": "block"},
    "monitored": {"mode": "monitor"},
}
CLIENTS = 16
GROWTH = 1.1
LEAVING = 0.02  # share of clients that do not wait
CALL: list[Step] = [ROLE, *called(['{"what": "Oslo"}']), choice_event({}, "tool_calls"), *END]
SCRIPTS: tuple[list[Step], ...] = (
    said(*LONG[:30], pause=0.0),
    said(*LONG[:8], f" you {BAD}", *LONG[:9], pause=0.0),
    CALL,
)


def mib(pid: int) -> float:
    """Return the memory of a process and its children (USS: what would be free without them)."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(member.memory_full_info().uss for member in family) / 2**20


async def ask(http: httpx.AsyncClient, dice: random.Random) -> str:
    """Send a request; return its status."""
    script = dice.choice([1, 1, 1, 2, 3])
    body: dict[str, Any] = {
        "model": "scripted",
        "messages": [{"role": "user", "content": f"What is new in town? ({script})"}],
        "stream": dice.random() < 0.7,
        "tide": {"policy": dice.choice([*POLICIES])},
    }
    if script == 3:
        body["tools"] = [TOOL]
    patience = dice.expovariate(20) if dice.random() < LEAVING else None
    try:
        with anyio.fail_after(patience):
            answer = await http.post("/v1/chat/completions", json=body)
        return str(answer.status_code)
    except TimeoutError:
        return "left"
    except httpx.TransportError as error:
        return type(error).__name__


async def load(url: str, pid: int, requests: int) -> tuple[list[float], Counter[str]]:
    """Send the requests; return the memory after each tenth, and the statuses."""
    statuses: Counter[str] = Counter()
    memory: list[float] = []
    left = iter(range(requests))

    async def client(number: int, http: httpx.AsyncClient) -> None:
        dice = random.Random(number)
        for count in left:
            statuses[await ask(http, dice)] += 1
            if (count + 1) % (requests // 10) == 0:
                memory.append(mib(pid))
                print(f"{count + 1} requests: {memory[-1]:.1f} MiB", flush=True)

    async with httpx.AsyncClient(base_url=url, timeout=600.0) as http:
        await asyncio.gather(*(client(number, http) for number in range(CLIENTS)))
    return memory, statuses


def main(
    requests: Annotated[int, typer.Option(min=100)] = 20_000,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    port: int = 9431,
) -> None:
    """Measure the memory of a gateway over many requests."""
    server = ScriptedServer()
    server.scripts = {number: [steps] for number, steps in enumerate(SCRIPTS, start=1)}
    url = f"http://127.0.0.1:{port}"
    default = list(POLICIES)
    with tempfile.TemporaryDirectory() as folder, server.listening("127.0.0.1", 0):
        file = Path(folder) / "tide.yaml"
        file.write_text(json.dumps({"policies": POLICIES, "default": default}))
        command = [sys.executable, "-m", "tide", "serve", "--engine", "openai", "--port", str(port)]
        command += ["--base-url", server.url, "--policies", str(file), "--scorer", "pocket"]
        command += ["--workers", str(workers)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as gateway:
            try:
                while True:
                    try:
                        httpx.get(f"{url}/ready", timeout=5.0).raise_for_status()
                        break
                    except httpx.HTTPError:
                        if gateway.poll() is not None:
                            raise typer.BadParameter("tide serve did not start") from None
                        time.sleep(0.2)
                began = time.monotonic()
                memory, statuses = asyncio.run(load(url, gateway.pid, requests))
            finally:
                gateway.terminate()
    print(f"{dict(statuses)}, {requests / (time.monotonic() - began):.0f} requests a second")
    raise typer.Exit(int(memory[-1] > GROWTH * memory[1]))


if __name__ == "__main__":
    typer.run(main)

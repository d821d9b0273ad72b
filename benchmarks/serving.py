"""What detoxified serving costs: requests over loopback, with search and scoring and without.

    python benchmarks/serving.py                        # the bundled model and prompts
    python benchmarks/serving.py --model ./my-model --scorer hf:ID --prompts prompts.txt \
        --clients 32 --requests 400

Each server is a process of its own (`tide serve`), and takes turns with the other. Clients send the
next request when they have the answer to the last (closed loop). "plain" is the same engine without
search and scoring: one completion, which every text passes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

TIDE = [sys.executable, "-c", "from tide.cli import main; main()", "serve", "--port", "0"]
PROMPTS = Path(__file__).resolve().parents[1] / "examples" / "prompts.txt"


class Nothing:
    """Finds nothing toxic, in no time."""

    name, threshold = "nothing", 0.5

    def score(self, texts: Sequence[str]) -> np.ndarray:
        return np.zeros(len(texts))

    def close(self) -> None: ...


@contextmanager
def server(*options: str) -> Iterator[str]:
    process = subprocess.Popen([*TIDE, *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if '"serving"' in line:
            break
    else:
        sys.exit("the server did not start")
    threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
    try:
        yield json.loads(line)["serving"]
    finally:
        process.kill()
        process.wait()


async def load(url: str, prompts: list[str], options: argparse.Namespace, tokens: int) -> Any:
    """Seconds of all, and of each request: to its first text, and to its end."""
    left = iter(range(options.requests))
    firsts: list[float] = []
    wholes: list[float] = []

    async def one(client: httpx.AsyncClient) -> None:
        for number in left:
            body = {"prompt": prompts[number % len(prompts)], "max_tokens": tokens, "seed": number}
            started, first = time.monotonic(), None
            body |= {"stream": True, "temperature": options.temperature}
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if first is None and '"choices"' in line:
                        first = time.monotonic() - started
            wholes.append(time.monotonic() - started)
            firsts.append(first or wholes[-1])

    limits = httpx.Limits(max_connections=options.clients)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        started = time.monotonic()
        await asyncio.gather(*(one(client) for _ in range(options.clients)))
        return time.monotonic() - started, firsts, wholes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--scorer", default="pocket")
    parser.add_argument("--preset", default="margin")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="a text file, one a line")
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--tokens", type=int, nargs="+", default=[20, 128])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    prompts = options.prompts.read_text(encoding="utf-8").splitlines()
    common = ["--model", options.model, "--preset", options.preset]
    plain = ["--scorer", f"{__file__}:Nothing", "--max-iterations", "1", "--block-tokens", "0"]
    found: dict[tuple[int, str], list[Any]] = {}
    with (
        server(*common, *plain) as without,
        server(*common, "--scorer", options.scorer) as ours,
    ):
        for turn in range(options.turns + 1):  # the first warms up
            for tokens in options.tokens:
                for name, url in (("plain", without), ("detoxified", ours)):
                    taken = asyncio.run(load(url, prompts, options, tokens))
                    if turn:
                        found.setdefault((tokens, name), []).append(taken)
    print("| tokens | server | requests/s | of plain | first text, p50 | whole, p50 | p99 |")
    print("|---|---|---|---|---|---|---|")
    for (tokens, name), turns in found.items():
        rate, base = (
            float(np.median([options.requests / seconds for seconds, _, _ in found[tokens, one]]))
            for one in (name, "plain")
        )
        first = np.median([one for _, firsts, _ in turns for one in firsts])
        whole = np.quantile([one for _, _, wholes in turns for one in wholes], [0.5, 0.99])
        print(
            f"| {tokens} | {name} | {rate:.1f} | {rate / base:.2f} | {first:.2f} s | "
            f"{whole[0]:.2f} s | {whole[1]:.2f} s |"
        )


if __name__ == "__main__":
    main()

"""Many clients at once, some of which leave: each text received was accepted, no work is left.

A hundred clients send a thousand requests under the profile "long", a hundred otherwise.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest
from hypothesis import settings

from tests.generated import LONG
from tests.runtime.world import PROMPT, SETTINGS, Reader, Storyteller
from tests.server.running import Running, running, wait_until
from tide.server.limits import Limits

pytestmark = pytest.mark.attack

LEAVING = 0.2


def bad(number: int, moved: bool, words: list[str | None]) -> bool:
    """For prompts in `odd`, every other sentence unless rows are moved; in `bad`, every one."""
    return words[3] == "bad" or (number % 2 == 1 and words[3] == "odd" and not moved)


async def ask(client: httpx.AsyncClient, dice: random.Random) -> tuple[int, list[str], bool]:
    """Send a request: its status, the texts received, and whether they are parts of a stream."""
    stream = dice.random() < 0.5
    body = {
        "prompt": PROMPT.rsplit(" ", 1)[0] + dice.choice([" time", " odd", " bad"]),
        "max_tokens": dice.choice([4, 12, 30, 60]),
        "temperature": dice.choice([0, 0.5, 1.0]),
        "n": dice.choice([1, 1, 2, 3]),
        "seed": dice.randrange(1000),
        "stream": stream,
        "tide": {"num_samples": dice.choice([1, 2, 4])},
    }
    sent = asyncio.Event()

    async def note(event: str, info: object) -> None:
        if event == "http11.send_request_body.complete":
            sent.set()

    asked = client.post("/v1/completions", json=body, extensions={"trace": note})
    if dice.random() < LEAVING:
        asking = asyncio.create_task(asked)
        asking.add_done_callback(lambda _: sent.set())  # or the request failed
        await sent.wait()  # httpx loses a socket whose request is cancelled while it connects
        try:
            answer = await asyncio.wait_for(asking, dice.expovariate(10))
        except TimeoutError:
            return 499, [], stream
    else:
        answer = await asked
    if answer.status_code != 200:
        return answer.status_code, [], stream
    if not stream:
        return 200, [one["text"] for one in answer.json()["choices"]], stream
    parts = [part[6:] for part in answer.text.split("\n\n") if part.startswith("data: {")]
    found = [json.loads(part) for part in parts]
    assert not any("error" in one for one in found)
    return 200, [one["choices"][0]["text"] for one in found], stream


async def crowd(server: Running, count: int, clients: int) -> list[Any]:
    dice = random.Random(0)
    room = asyncio.Semaphore(clients)
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:

        async def one(number: int) -> Any:
            async with room:
                return await ask(client, random.Random(number))

        asked = list(range(count))
        dice.shuffle(asked)
        return await asyncio.gather(*map(one, asked))


def test_a_crowd() -> None:
    count = 1000 if settings().max_examples >= LONG else 100
    scorer = Reader()
    limits = Limits(max_under_way=1000)
    engine = Storyteller(bad, max_batch=32)
    with running(engine, scorer, limits=limits, **SETTINGS) as server:
        found = asyncio.run(crowd(server, count, 100))
        statuses = {status for status, _, _ in found}
        assert statuses <= {200, 499}

        def counted() -> float:
            named = 'tide_requests_total{{route="/v1/completions",status="{}"}}'.format
            return sum(server.metric(named(status)) for status in (200, 499))

        wait_until(lambda: counted() == count)  # a cancelled request may not have begun
        wait_until(lambda: server.metric("tide_completions_under_way") == 0)
        left = sum(status == 499 for status, _, _ in found)
        assert 0 < left < LEAVING * 1.5 * count
        requests, sent = len(engine.requests), len(scorer.texts)
        accepted = {text for text in scorer.texts if "Bad" not in text}
        for _, texts, parts in found:
            for text in filter(None, texts):
                assert any(one.endswith(text) for one in accepted) if parts else text in accepted
        assert sum(map(len, (texts for _, texts, _ in found))) > count / 2
        assert (len(engine.requests), len(scorer.texts)) == (requests, sent)  # no work is left
        assert counted() == count

"""The engine openai before vLLM's own server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from benchmarks.writing import completed

from tests.server.processes import TIDE, serving
from tests.server.transparent import assert_repaired
from tide.core.chat import Chat
from tide.core.errors import CompletionError
from tide.core.settings import Sampling
from tide.engines.base import Engine, Request
from tide.engines.local.engine import TransformersEngine
from tide.engines.openai.engine import OpenAIEngine

# Warnings are vLLM's own.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

GREEDY = Sampling(temperature=0.0, max_new_tokens=20)
CHAT = Chat.of(
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "I like music. What do you think?"},
    ]
)


@pytest.fixture(scope="module")
def chat_model() -> Iterator[TransformersEngine]:
    with TransformersEngine("pocket-chat", dtype="float32") as engine:
        yield engine


@pytest.fixture(scope="module")
def engine(chat_server: str) -> Iterator[OpenAIEngine]:
    with OpenAIEngine("pocket-chat", base_url=chat_server) as engine:
        yield engine


def test_the_same_greedy_texts(
    engine: OpenAIEngine, chat_model: TransformersEngine, prompts: list[str]
) -> None:
    texts = [completion.text for completion in written(engine, prompts[:60])]
    assert texts == [completion.text for completion in written(chat_model, prompts[:60])]


def written(engine: Engine, texts: list[str], **more: Any) -> list[Any]:
    requests = [Request(ids, GREEDY, **more) for ids in engine.tokenize(texts)]
    return asyncio.run(engine.complete(requests))


def test_held_words_are_the_same_tokens(
    engine: OpenAIEngine, chat_model: TransformersEngine, prompts: list[str]
) -> None:
    """In every spelling of the first token of a word, and nothing else."""
    held: list[str] = []
    for _ in range(3):
        never = tuple(i for word in held for i in engine.tokenize([word])[0])
        completions = written(engine, prompts[:20], banned_token_ids=never)
        source = engine._server.token_source
        assert source is not None
        ids = tuple(engine.portal.run(source.ids, held))
        expected = written(chat_model, prompts[:20], banned_token_ids=ids)
        answers = [completion.text for completion in completions]
        assert answers == [completion.text for completion in expected]
        assert all(word not in text.split(" ") for text in answers for word in held)
        rows = engine.token_texts(engine.tokenize(answers))
        held.append(next(row[1] for row in rows[len(held) :] if len(row) > 1))


def test_a_chat_goes_on(engine: OpenAIEngine, chat_model: TransformersEngine) -> None:
    long = GREEDY.model_copy(update={"max_new_tokens": 40})
    prompt = engine.encode(engine.text_of(CHAT))
    (whole,) = completed(engine, [prompt.token_ids], long, [0])
    ids = chat_model.encode(chat_model.text_of(CHAT)).token_ids
    assert whole.text == completed(chat_model, [ids], long, [0])[0].text
    for kept in (3, 10, len(whole.token_ids) // 2):
        rest = long.model_copy(update={"max_new_tokens": 20})
        (more,) = completed(engine, [(*prompt.token_ids, *whole.token_ids[:kept])], rest, [0])
        begun = engine.texts([whole.token_ids[:kept]])[0]
        assert whole.text.startswith(begun + more.text) or (begun + more.text).startswith(
            whole.text
        )


def test_pieces_and_an_abandoned_request(engine: OpenAIEngine, chat_server: str) -> None:
    async def leave() -> int:
        long = Sampling(temperature=1.0, max_new_tokens=400)
        begun = 0
        for seed in range(4):
            request = Request(engine.tokenize(["Once"])[0], long, seed, piece_tokens=1)
            async with aclosing(engine.write(request)) as pieces:
                begun += (await anext(pieces)).finish_reason is None
        return begun

    assert asyncio.run(leave()) >= 2
    end = time.monotonic() + 20.0
    while under_way(chat_server):
        assert time.monotonic() < end
        time.sleep(0.02)


def under_way(server: str) -> int:
    rows = httpx.get(f"{server}/metrics").text.splitlines()
    counts = [row for row in rows if row.startswith("vllm:num_requests_running")]
    assert counts
    return int(sum(float(row.rsplit(" ", 1)[1]) for row in counts))


def test_a_prompt_that_is_too_long_fails_alone(engine: OpenAIEngine) -> None:
    with pytest.raises(CompletionError, match=r"exceed|context length|longer"):
        completed(engine, engine.tokenize(["supercalifragilistic " * 300]), GREEDY, [0])
    assert engine.available
    assert len(completed(engine, engine.tokenize(["kind"]), GREEDY, [0])) == 1


def test_the_gateway(chat_server: str, prompts: list[str]) -> None:
    """By its defaults, so repairs are those of `backtrack`."""
    import openai

    command = [
        *TIDE, "--engine", "openai",
        "--model", "pocket-chat", "--base-url", chat_server, "--served-model-name", "safe",
    ]  # fmt: skip
    with serving(*command) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        assert_repaired(client, prompts[:20])

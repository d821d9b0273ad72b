"""The engine openai before llama.cpp's server, with the bundled models as GGUF files.

LLAMA_PYTHON runs the server: a Python with `xllamacpp`, `gguf` and `safetensors`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from benchmarks.writing import completed

from tests.server.processes import TIDE, answering, free_port, serving
from tests.server.running import Running, running
from tests.server.transparent import OTHER_APIS, answer, assert_repaired, differing, other_texts
from tide import pocket
from tide.core.chat import Chat
from tide.core.settings import Sampling
from tide.data.texts import read_rows
from tide.engines.base import Engine, Request
from tide.engines.local.engine import TransformersEngine
from tide.engines.openai.engine import OpenAIEngine

pytestmark = pytest.mark.llama_cpp

GREEDY = Sampling(temperature=0.0, max_new_tokens=20)
Both = tuple[OpenAIEngine, TransformersEngine, str]  # and the server's address
CONVERT, SERVE = (Path(__file__).with_name(name) for name in ("convert.py", "serve.py"))


@contextmanager
def llama(model: str, folder: Path) -> Iterator[str]:
    """The address of llama.cpp's server with a bundled model."""
    python, file = os.environ["LLAMA_PYTHON"], folder / f"{model}.gguf"
    subprocess.run([python, CONVERT, pocket.FOLDERS[model], file], check=True)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [python, SERVE, file, port]
    with answering(command, f"{address}/health", folder / "log", seconds=60.0):
        yield address


@pytest.fixture(scope="module", params=["pocket", "pocket-chat"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp(request.param)
    with (
        llama(request.param, folder) as url,
        OpenAIEngine(base_url=url) as engine,
        TransformersEngine(request.param, dtype="float32") as local,
    ):
        yield engine, local, url


@pytest.fixture(scope="module")
def prompts(shared_data: Path) -> list[str]:
    rows = read_rows(shared_data / "benchmarks" / "rtp_challenging.jsonl", limit=40)
    return [row.text for row in rows]


def written(engine: Engine, texts: list[str], **more: Any) -> list[str]:
    requests = [Request(ids, GREEDY, **more) for ids in engine.tokenize(texts)]
    return [one.text for one in asyncio.run(engine.complete(requests))]


def test_the_same_greedy_texts(both: Both, prompts: list[str]) -> None:
    engine, local, _ = both
    assert "logit_bias (the server's /tokenize)" in engine.capability_notes
    found, expected = written(engine, prompts), written(local, prompts)
    same = sum(a == b for a, b in zip(found, expected, strict=True))
    assert same >= 0.9 * len(prompts)  # of two tokens that are all but alike, either is drawn


def test_held_words_are_the_same_tokens(both: Both, prompts: list[str]) -> None:
    engine, local, _ = both
    server = engine._server
    assert server.token_source is not None
    held: list[str] = []
    for number in range(3):
        never = tuple(i for word in held for i in engine.tokenize([word])[0])
        found = written(engine, prompts[:10], banned_token_ids=never)
        ids = engine.portal.run(server.token_source.ids, held)
        expected = written(local, prompts[:10], banned_token_ids=tuple(ids))
        assert sum(a == b for a, b in zip(found, expected, strict=True)) >= 8
        words = [text.split() for text in found]
        assert not any(word.strip() in text for word in held for text in words)
        texts = engine.token_texts(engine.tokenize(found))
        held.append(next(row[1] for row in texts[number:] if len(row) > 1))


def test_chat_is_continued_if_the_model_has_a_template(both: Both) -> None:
    engine, local, _ = both
    prompt = engine.encode(engine.text_of(Chat.said("How was your day?")))
    assert engine.supports_continuation(prompt.token_ids) is local.has_chat_template
    assert completed(engine, [prompt.token_ids], GREEDY, [0])[0].finish_reason


def harmless(texts: list[str]) -> list[float]:
    return [0.0] * len(texts)


@contextmanager
def gateway(url: str, mode: Literal["enforce", "monitor"]) -> Iterator[Running]:
    with (
        OpenAIEngine(base_url=url, max_batch=1) as engine,
        running(engine, harmless, mode=mode, preset="backtrack") as server,
    ):
        yield server


def test_monitored_answers_are_the_servers_bytes(both: Both) -> None:
    url = both[2]
    with gateway(url, "monitor") as server:
        assert differing(url, server.url, "any", 100) == []


def test_clean_answers_are_the_servers_own_text(both: Both) -> None:
    url = both[2]
    with gateway(url, "enforce") as server:
        assert other_texts(url, server.url, "any", 50) == []


@pytest.mark.parametrize("path", OTHER_APIS)
@pytest.mark.parametrize("stream", [False, True])
def test_monitored_answers_of_other_apis_are_the_servers(
    path: str, stream: bool, both: Both
) -> None:
    url = both[2]
    body = {"model": "any", "temperature": 0.0, "stream": stream, **OTHER_APIS[path]}
    with gateway(url, "monitor") as server:
        assert answer(server.url, path, body) == answer(url, path, body)


def test_the_gateway(both: Both, prompts: list[str]) -> None:
    """By its defaults, so repairs are those of `backtrack`."""
    import openai

    _, _, url = both
    command = (
        *TIDE, "--engine", "openai", "--base-url", url,
        "--served-model-name", "safe", "--max-batch", "1",
    )  # fmt: skip
    with serving(*command) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        assert_repaired(client, prompts[:20])

"""The engine openai and gateways before the servers of llama.cpp, vLLM and transformers.

LLAMA_PYTHON runs llama.cpp's: a Python with `xllamacpp`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from benchmarks.writing import completed

from tests import llama_cpp
from tests.llama_cpp.convert import convert
from tests.server.gateways import TOOL
from tests.server.processes import TIDE, answering, serving
from tests.server.running import PATIENCE, Running, running
from tests.vllm.servers import serving_vllm
from tide import pocket
from tide.core.chat import Chat
from tide.core.settings import Sampling, Settings
from tide.data.texts import read_rows
from tide.engines.base import Engine, Request
from tide.engines.local.engine import TransformersEngine
from tide.engines.openai.engine import OpenAIEngine
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.scorers.base import Exchange

GREEDY = Sampling(temperature=0.0, max_new_tokens=20)
CHAT = Chat.of(
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "I like music. What do you think?"},
    ]
)
PLACES = ("the sea", "a market", "the moon", "a garden", "an old house")
KINDS: dict[str, dict[str, Any]] = {
    "completion": {},
    "chat": {},
    "sampled": {"temperature": 0.7, "top_p": 0.8, "seed": 3},
    "tools": {"tools": [TOOL]},
    "JSON": {"response_format": {"type": "json_object"}},
}
# What no two answers of a server have in common.
_OWN = re.compile(
    rb'"(?:(?:item_|request_)?id|(?:created|completed)(?:_at)?|system_fingerprint)": ?'
    rb'(?:"[^"]*"|[\d.]+)|"timings": ?{[^}]*}'
)


def llama(folder: Path) -> AbstractContextManager[str]:
    file = folder / "model.gguf"
    convert(pocket.CHAT, file)
    serve = Path(llama_cpp.__file__).with_name("serve.py")
    return answering(os.environ["LLAMA_PYTHON"], serve, file, log=folder / "log", seconds=60.0)


def transformers(folder: Path) -> AbstractContextManager[str]:
    return answering(
        Path(sys.executable).with_name("transformers"), "serve", str(pocket.CHAT),
        "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port",
        log=folder / "log", seconds=300.0,
    )  # fmt: skip


def vllm(folder: Path) -> AbstractContextManager[str]:
    """With a sampling of its own, which a gateway must leave to the server."""
    own_sampling = ("--override-generation-config", '{"repetition_penalty": 1.3}')
    return serving_vllm(pocket.CHAT, folder / "log", "--max-model-len", "512", *own_sampling)


@dataclass(frozen=True)
class Server:
    """A kind of server with the bundled chat model, and what it can do.

    alike: least share of its greedy texts that are those of the engine transformers. whole_only:
    whether only answers that are not streamed have the same bytes each time. is_plain: whether it
    lacks token ids, continued answers to chats and errors as OpenAI's API has them.
    """

    start: Callable[[Path], AbstractContextManager[str]]
    alike: float = 1.0
    whole_only: bool = False
    is_plain: bool = False
    url: str = ""


SERVERS = [
    # Of two tokens that are all but alike, llama.cpp may draw the other one.
    pytest.param(Server(llama, alike=0.8), marks=pytest.mark.llama_cpp),
    # vLLM puts tokens that are ready at one time into one event of a stream.
    pytest.param(
        Server(vllm, whole_only=True),
        marks=[pytest.mark.vllm, pytest.mark.filterwarnings("default")],
    ),
    pytest.param(Server(transformers, is_plain=True), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=SERVERS, ids=lambda server: server.start.__name__)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    kind: Server = request.param
    with kind.start(tmp_path_factory.mktemp("server")) as url:
        yield replace(kind, url=url)


@pytest.fixture
def full_server(server: Server) -> Server:
    if server.is_plain:
        pytest.skip("the server has no such ability")
    return server


@pytest.fixture(scope="module")
def engine(server: Server) -> Iterator[OpenAIEngine]:
    with OpenAIEngine(base_url=server.url) as engine:
        yield engine


@pytest.fixture(scope="module")
def local() -> Iterator[TransformersEngine]:
    with TransformersEngine("pocket-chat", dtype="float32") as engine:
        yield engine


@pytest.fixture(scope="module")
def prompts(shared_data: Path) -> list[str]:
    rows = read_rows(shared_data / "benchmarks" / "rtp_challenging.jsonl", limit=40)
    return [row.text for row in rows]


def written(engine: Engine, texts: list[str], **more: Any) -> list[str]:
    asked = [Request(ids, GREEDY, **more) for ids in engine.tokenize(texts)]
    return [completion.text for completion in asyncio.run(engine.complete(asked))]


def assert_alike(server: Server, texts: list[str], expected: list[str]) -> None:
    same = sum(text == other for text, other in zip(texts, expected, strict=True))
    assert same >= server.alike * len(texts)


def test_greedy_texts_are_those_of_the_engine_transformers(
    server: Server, engine: OpenAIEngine, local: TransformersEngine, prompts: list[str]
) -> None:
    assert_alike(server, written(engine, prompts), written(local, prompts))


def test_held_words_are_the_same_tokens(
    server: Server, engine: OpenAIEngine, local: TransformersEngine, prompts: list[str]
) -> None:
    """In every spelling of the first token of a word, and nothing else."""
    source = engine._server.token_source
    assert (source is None) is server.is_plain
    held: list[str] = []
    for number in range(3):
        never = tuple(token for word in held for token in engine.tokenize([word])[0])
        texts = written(engine, prompts[:10], banned_token_ids=never)
        if source is not None:
            ids = tuple(engine.portal.run(source.ids, held))
            assert_alike(server, texts, written(local, prompts[:10], banned_token_ids=ids))
        assert not any(word.strip() in text.split() for word in held for text in texts)
        rows = engine.token_texts(engine.tokenize(texts))
        held.append(next(row[1] for row in rows[number:] if len(row) > 1))


@pytest.mark.usefixtures("full_server")
def test_chat_is_continued(engine: OpenAIEngine, local: TransformersEngine) -> None:
    prompt = engine.encode(engine.text_of(CHAT))
    assert engine.supports_continuation(prompt.token_ids)
    (whole,) = completed(engine, [prompt.token_ids], GREEDY.limited(40, 0), [0])
    ids = local.encode(local.text_of(CHAT)).token_ids
    assert whole.text == completed(local, [ids], GREEDY.limited(40, 0), [0])[0].text
    for kept in (3, 10, len(whole.token_ids) // 2):
        begun = (*prompt.token_ids, *whole.token_ids[:kept])
        (more,) = completed(engine, [begun], GREEDY, [0])
        text = engine.texts([whole.token_ids[:kept]])[0] + more.text
        assert whole.text.startswith(text) or text.startswith(whole.text)


def requests(
    model: str, kinds: Sequence[str] = tuple(KINDS)
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Paths and bodies of requests, whole and streamed."""
    for number, kind, stream in product(range(10), kinds, (False, True)):
        body = {"model": model, "temperature": 0.0, "max_tokens": 12, **KINDS[kind]}
        body["stream"] = stream
        if stream:
            body["stream_options"] = {"include_usage": True}
        asked = f"Tell me about {PLACES[number % len(PLACES)]}, number {number // len(PLACES)}."
        if kind == "completion":
            yield "/v1/completions", {**body, "prompt": asked}
        else:
            yield "/v1/chat/completions", {**body, "messages": Chat.said(asked).dump()}


def answer(url: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """The status and the bytes of an answer, without its own ids and times."""
    reply = httpx.post(f"{url}{path}", json=body, timeout=PATIENCE)
    return reply.status_code, _OWN.sub(b"", reply.content)


def text_of(url: str, path: str, body: dict[str, Any]) -> tuple[str, str, Any]:
    """The text of an answer, its finish reason and usage; the status of a refusal."""
    reply = httpx.post(f"{url}{path}", json=body, timeout=PATIENCE)
    if reply.status_code != 200:
        return "", str(reply.status_code), None
    if body["stream"]:
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        events = [json.loads(line) for line in lines]
    else:
        events = [reply.json()]
    choices = [choice for event in events for choice in event.get("choices") or []]
    usage = events[-1]["usage"]
    parts = [choice.get("delta") or choice.get("message") or choice for choice in choices]
    text = "".join(part.get("content") or part.get("text") or "" for part in parts)
    reason = next(c["finish_reason"] for c in reversed(choices) if c.get("finish_reason"))
    return text, reason, (usage["prompt_tokens"], usage["completion_tokens"])


@pytest.fixture(scope="module", params=["enforce", "monitor"])
def gateway(server: Server, request: pytest.FixtureRequest) -> Iterator[Running]:
    with (
        OpenAIEngine(base_url=server.url, max_batch=1) as engine,
        running(
            engine, lambda texts: [0.0] * len(texts), mode=request.param, preset="backtrack"
        ) as running_gateway,
    ):
        yield running_gateway


@pytest.mark.parametrize("gateway", ["monitor"], indirect=True)
def test_monitored_answers_are_the_servers_bytes(server: Server, gateway: Running) -> None:
    for path, body in requests(gateway.engine.name):
        if not (server.whole_only and body["stream"]):
            assert answer(gateway.url, path, body) == answer(server.url, path, body)


def test_clean_answers_are_the_servers_own_text(server: Server, gateway: Running) -> None:
    for path, body in requests(gateway.engine.name, ["completion", "chat"]):
        assert text_of(gateway.url, path, body) == text_of(server.url, path, body)


@pytest.mark.parametrize(
    "more",
    [{"temperature": 9}, {"min_p": 5}, {"model": "other"}, {"logit_bias": {"-5": 1}}],
    ids=str,
)
def test_refusals_are_the_servers_own(
    more: dict[str, Any], full_server: Server, gateway: Running
) -> None:
    for question in ("Tell me about rain.", "word " * 2000):
        body = {"messages": Chat.said(question).dump(), "model": gateway.engine.name, **more}
        status, direct = answer(full_server.url, "/v1/chat/completions", body)
        passed_status, passed = answer(gateway.url, "/v1/chat/completions", body)
        assert passed_status == status
        if status >= 400:
            assert json.loads(passed)["error"]["message"] in json.loads(direct)["error"]["message"]


def test_gateway_repairs(full_server: Server, prompts: list[str]) -> None:
    """By its defaults: only text below the threshold is sent, and some texts are repaired."""
    options = ("--engine", "openai", "--base-url", full_server.url, "--served-model-name", "safe")
    with serving(*TIDE, *options, "--max-batch", "1") as process:
        client = openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)
        done: list[Any] = [
            client.completions.create(model="safe", prompt=prompt, max_tokens=20, seed=1)
            for prompt in prompts[:20]
        ]
    exchanges = [
        Exchange(prompt, answer.choices[0].text)
        for prompt, answer in zip(prompts, done, strict=False)
        if answer.choices[0].finish_reason != "content_filter"
    ]
    assert len(exchanges) >= 18
    assert max(load_scorer(DEFAULT_SCORER).score(exchanges)) < Settings().toxicity_threshold
    repaired = [answer.tide for answer in done if answer.tide["rounds"] > 1]
    assert len(repaired) >= 4
    assert all(cost["scorer_calls"] > cost["rounds"] for cost in repaired)  # to find blamed words

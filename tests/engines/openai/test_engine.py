"""The engine openai against a server with a made-up model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
import torch
from benchmarks.writing import completed, likelihoods

from tests.engines.openai.server import TextServer, data_of
from tide.core.chat import Chat
from tide.core.errors import CompletionError, EngineError, InputError
from tide.core.settings import Sampling
from tide.engines import Completion, Request, load_engine
from tide.engines.openai.engine import OpenAIEngine

GREEDY = Sampling(temperature=0.0, max_new_tokens=12)
DRAWN = Sampling(temperature=1.0, max_new_tokens=12)
PROMPTS = ["The weather today is", "She opened the window and", "kind"]

Connect = Callable[..., OpenAIEngine]


@pytest.fixture
def server() -> Iterator[TextServer]:
    with TextServer() as server:
        yield server


@pytest.fixture
def connect(server: TextServer) -> Iterator[Connect]:
    engines: list[OpenAIEngine] = []

    def make(**options: Any) -> OpenAIEngine:
        options = {"base_url": server.url, "deadline": 10.0, **options}
        engine = load_engine("openai", "tiny", **options)
        assert isinstance(engine, OpenAIEngine)
        engines.append(engine)
        server.requests.clear()
        return engine

    yield make
    for engine in engines:
        engine.close()


def texts(engine: OpenAIEngine, sampling: Sampling, **more: Any) -> list[str]:
    rows = engine.tokenize(PROMPTS)
    requests = [Request(ids, sampling, seed=i, **more) for i, ids in enumerate(rows)]
    return [completion.text for completion in asyncio.run(engine.complete(requests))]


def model_says(server: TextServer, prompt: str, body: dict[str, Any]) -> str:
    return "".join(server.written(prompt, {"max_tokens": 12, "temperature": 0.0, **body})[0])


def test_it_writes_what_the_server_writes(connect: Connect, server: TextServer) -> None:
    engine = connect()
    for cut in (0, 1, 3, 1000):  # characters in an event
        server.cut = cut
        completions = completed(engine, engine.tokenize(PROMPTS), GREEDY, [0, 1, 2])
        expected = [model_says(server, prompt, {}) for prompt in PROMPTS]
        assert [completion.text for completion in completions] == expected
        assert {completion.finish_reason for completion in completions} == {"length"}
        for completion in completions:
            assert engine.texts([completion.token_ids]) == [completion.text]
        assert texts(engine, DRAWN) == [
            model_says(server, prompt, {"temperature": 1.0, "seed": i})
            for i, prompt in enumerate(PROMPTS)
        ]
    (body, *_) = server.requests
    assert body["prompt"] in PROMPTS
    assert (body["model"], body["stream"], body["top_k"]) == ("tiny", True, 0)
    assert (engine.name, engine.context_length, engine.has_embeddings) == ("tiny", None, False)
    assert "serves tiny" in engine.capability_notes


def test_it_writes_on_after_its_own_words(connect: Connect, server: TextServer) -> None:
    engine = connect()
    (ids,) = engine.tokenize(PROMPTS[:1])
    (whole,) = completed(engine, [ids], GREEDY, [0])
    kept = whole.token_ids[:5]
    rest = GREEDY.model_copy(update={"max_new_tokens": 7})
    (more,) = completed(engine, [(*ids, *kept)], rest, [0])
    assert engine.texts([kept])[0] + more.text == whole.text
    (pieces,) = engine.token_texts([whole.token_ids])
    assert "".join(pieces) == whole.text
    assert len(pieces) > 5


def test_stop_strings(connect: Connect, server: TextServer) -> None:
    engine = connect()
    (ids,) = engine.tokenize(PROMPTS[:1])
    (whole,) = completed(engine, [ids], GREEDY, [0])
    word = engine.token_texts([whole.token_ids])[0][6]
    stopped = GREEDY.model_copy(update={"stop": (word,)})
    (completion,) = completed(engine, [ids], stopped, [0])
    assert (completion.text, completion.finish_reason) == (whole.text.split(word)[0], "stop")
    assert server.requests[-1]["stop"] == [word]


# Banned words


def held_back(engine: OpenAIEngine, times: int = 4) -> list[str]:
    """Ban words one after another, as a repair does; returns the greedy texts without them."""
    never: tuple[int, ...] = ()
    for _ in range(times):
        answers = texts(engine, GREEDY, banned_token_ids=never)
        (ids,) = engine.tokenize([answers[0]])
        never += (ids[2],)
    answers = texts(engine, GREEDY, banned_token_ids=never)
    words = {word.strip().casefold() for word in engine.token_texts([never])[0]}
    for text in answers:
        pieces = engine.token_texts(engine.tokenize([text]))[0]
        assert not words & {word.strip().casefold() for word in pieces}
    return answers


def test_words_are_held_back_by_their_tokens(connect: Connect, server: TextServer) -> None:
    engine = connect()
    assert "logit_bias (the server's /tokenize)" in engine.capability_notes
    written = held_back(engine)
    bias = server.requests[-1]["logit_bias"]
    assert set(bias.values()) == {-100.0}
    by_prompt = [model_says(server, prompt, {"logit_bias": bias}) for prompt in PROMPTS]
    assert written == by_prompt  # nothing was redrawn


def test_every_spelling_is_held_back(connect: Connect, server: TextServer) -> None:
    engine = connect()
    server.favourite = " Dull"
    (dull,) = engine.tokenize([" dull"])[0]
    assert not any("ull" in text for text in texts(engine, GREEDY, banned_token_ids=(dull,)))
    assert set(server.requests[-1]["logit_bias"]) == {"18", "19"}


@pytest.mark.parametrize("options", [{"tokens": False}, {"biased": False}])
def test_words_are_drawn_again_where_a_bias_does_not_work(
    options: dict[str, Any], connect: Connect, server: TextServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.__dict__.update(options)
    with caplog.at_level(logging.WARNING, "tide"):
        engine = connect()
    assert "by redrawing text" in engine.capability_notes
    assert ("does not work" in caplog.text) == ("biased" in options)
    written = held_back(engine)
    assert all(written)
    assert any(body["temperature"] > 0 for body in server.requests)  # redrawn hotter
    assert held_back(engine) == written


def test_a_server_that_writes_nothing_else(connect: Connect, server: TextServer) -> None:
    server.tokens = False
    engine = connect()
    server.written = lambda text, body: ([" dull"] * body["max_tokens"], "length")  # type: ignore[method-assign]
    (dull,) = engine.tokenize([" dull"])[0]
    (completion,) = asyncio.run(
        engine.complete([Request(engine.tokenize(["kind"])[0], GREEDY, banned_token_ids=(dull,))])
    )
    assert completion == Completion("", (), "content_filter")
    assert len(server.requests) < 12


def test_a_named_tokenizer_of_another_model(
    connect: Connect, server: TextServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.tokens = False
    with caplog.at_level(logging.WARNING, "tide"):
        engine = connect(tokenizer="pocket")
    assert "logit_bias with ids of the tokenizer pocket does not work" in caplog.text
    held_back(engine)
    with pytest.raises(InputError, match=r"tokenizer .*: cannot be read"):
        connect(tokenizer="tests")


# Ends before `min_new_tokens`

LEAST = GREEDY.model_copy(update={"min_new_tokens": 5})


@pytest.mark.parametrize("options", [{}, {"patient": False}, {"strict": True}], ids=str)
def test_an_end_that_comes_too_early(
    options: dict[str, Any], connect: Connect, server: TextServer
) -> None:
    server.__dict__.update(options)
    engine = connect()
    server.ends = lambda _: True
    assert texts(engine, GREEDY) == ["", "", ""]
    server.requests.clear()
    written = texts(engine, LEAST)
    assert all(len(words) >= 5 for words in engine.token_texts(engine.tokenize(written)))
    assert texts(engine, LEAST) == written
    # A server without `min_tokens` is asked again at a higher temperature.
    assert any(body["temperature"] > 0 for body in server.requests) == bool(options)
    assert any("min_tokens" in body for body in server.requests) != bool(options.get("strict"))


def test_an_end_in_a_chat_that_is_one_block(connect: Connect, server: TextServer) -> None:
    server.continues = server.patient = False
    engine = connect()
    server.ends = lambda text: text.endswith("assistant: ")
    prompt = engine.encode(engine.text_of(CHAT)).token_ids
    assert completed(engine, [prompt], GREEDY, [0]) == [Completion("", (), "stop")]
    (completion,) = completed(engine, [prompt], LEAST, [0])
    assert len(completion.token_ids) >= 5
    assert all(body["messages"] == CHAT.dump() for body in server.requests)


def test_a_server_that_always_ends(connect: Connect, server: TextServer) -> None:
    engine = connect()
    server.written = lambda text, body: ([], "stop")  # type: ignore[method-assign]
    (ids,) = engine.tokenize(["kind"])
    assert completed(engine, [ids], LEAST, [0]) == [Completion("", (), "stop")]
    assert len(server.requests) < 12


def test_stop_strings_before_the_least(connect: Connect, server: TextServer) -> None:
    """Stop strings still end a text, without a redraw: they are not sent to the server."""
    engine = connect()
    (ids,) = engine.tokenize(PROMPTS[:1])
    (whole,) = completed(engine, [ids], GREEDY, [0])
    word = engine.token_texts([whole.token_ids])[0][2]
    (completion,) = completed(engine, [ids], LEAST.model_copy(update={"stop": (word,)}), [0])
    assert (completion.text, completion.finish_reason) == (whole.text.split(word)[0], "stop")
    assert {body["temperature"] for body in server.requests} == {0.0}


# Chats

CHAT = Chat.of(
    [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "What do you do?"}]
)


@pytest.mark.parametrize("strict", [False, True])
def test_chats_go_on_where_the_server_can(
    strict: bool, connect: Connect, server: TextServer
) -> None:
    server.strict = strict
    engine = connect()
    prompt = engine.encode(engine.text_of(CHAT))
    assert engine.supports_continuation(prompt.token_ids)
    assert "redraws the end" in engine.capability_notes
    assert prompt.text == "system: Be kind.\nuser: What do you do?\nassistant:"
    (whole,) = completed(engine, [prompt.token_ids], GREEDY, [0])
    assert whole.text == model_says(server, f"{prompt.text} ", {})
    rest = GREEDY.model_copy(update={"max_new_tokens": 6})
    kept = whole.token_ids[:6]
    (more,) = completed(engine, [(*prompt.token_ids, *kept)], rest, [0])
    assert engine.texts([kept])[0] + more.text == whole.text
    assert server.requests[-1]["messages"][:2] == CHAT.dump()


def test_chats_are_one_block_where_it_cannot(connect: Connect, server: TextServer) -> None:
    server.continues = False
    engine = connect()
    prompt = engine.encode(engine.text_of(CHAT))
    assert not engine.supports_continuation(prompt.token_ids)
    assert engine.supports_continuation(engine.tokenize(["A text"])[0])
    assert "redraws all" in engine.capability_notes
    (whole,) = completed(engine, [prompt.token_ids], GREEDY, [0])
    assert whole.text
    with pytest.raises(CompletionError, match="cannot continue an answer to a chat"):
        completed(engine, [(*prompt.token_ids, *whole.token_ids[:3])], GREEDY, [0])


def test_a_held_word_in_a_chat_that_is_one_block(connect: Connect, server: TextServer) -> None:
    """The whole answer is redrawn."""
    server.continues = server.tokens = False
    engine = connect()
    prompt = engine.encode(engine.text_of(CHAT)).token_ids
    (whole,) = completed(engine, [prompt], GREEDY, [0])
    (held,) = engine.tokenize([engine.token_texts([whole.token_ids])[0][5]])[0:1]
    (completion,) = asyncio.run(
        engine.complete([Request(prompt, GREEDY, banned_token_ids=tuple(held))])
    )
    assert not set(held) & set(completion.token_ids)
    assert completion.text
    assert all(body["messages"] == CHAT.dump() for body in server.requests)


# Unsupported options, and refusals


def test_there_are_no_embeddings_and_no_likelihoods(connect: Connect) -> None:
    engine = connect()
    for ask in (
        lambda: engine.embed(["kind"]),
        lambda: likelihoods(engine, [[1]], [[2]]),
        lambda: completed(engine, [torch.zeros(2, 8)], GREEDY, [0]),
    ):
        with pytest.raises((InputError, CompletionError), match=r"embeddings|no likelihoods"):
            ask()
    with pytest.raises(InputError, match="repetition_penalty: not supported by OpenAIEngine"):
        engine.check_sampling(Sampling(repetition_penalty=1.1))


def test_which_model(connect: Connect, server: TextServer) -> None:
    server.models = [{"id": "one"}]
    assert connect().name == "one"
    server.models = [{"id": "one"}, {"id": "tiny"}]
    assert connect().name == "tiny"
    server.models = [{"id": "one"}, {"id": "two"}]
    with pytest.raises(EngineError, match="has no model 'tiny'; set --model to one of: one, two"):
        connect()
    server.models = [{"id": "other"}, {"id": "tiny:latest"}]
    assert connect().name == "tiny:latest"  # as Ollama lists "tiny"


@pytest.mark.parametrize(
    ("status", "answer", "model"),
    [
        (200, [{"id": "one", "max_model_len": 99}], "one"),
        (200, {"data": [{"id": None}, {"id": "one"}]}, "one"),
        (200, {"data": [{"id": "\x1b[2J"}, {"id": "one"}]}, "one"),
        (200, {"object": "list", "data": []}, "tiny"),
        (200, b"<html>", "tiny"),
        *((status, {"detail": "x"}, "tiny") for status in (403, 404, 501)),
    ],
    ids=str,
)
def test_lists_of_models(
    status: int,
    answer: Any,
    model: str,
    connect: Connect,
    server: TextServer,
) -> None:
    server.answer = lambda path, _: (status, answer) if path == "/v1/models" else None
    engine = connect()
    assert engine.name == model
    assert all(texts(engine, GREEDY))
    assert {body["model"] for body in server.requests} == {model}


@pytest.mark.parametrize(
    ("path", "models", "completions"),
    [
        ("", "/v1/models", "/v1/completions"),
        ("/v1/", "/v1/models", "/v1/completions"),
        ("/v1beta/openai/", "/v1beta/openai/models", "/v1beta/openai/completions"),
    ],
)
def test_base_url_with_a_path(path: str, models: str, completions: str, server: TextServer) -> None:
    paths: list[str] = []

    def answer(path: str, _: Any) -> tuple[int, Any]:
        paths.append(path)
        return 404, {}

    server.answer = answer
    with pytest.raises(EngineError, match="cannot be used: HTTP 404 to /v1/chat/completions"):
        OpenAIEngine("tiny", base_url=server.url + path)
    assert paths[:2] == [models, completions]


def test_unreachable_server_at_start() -> None:
    problem = r"http://127\.0\.0\.1:9: cannot be used: ConnectError"
    with pytest.raises(EngineError, match=problem):
        OpenAIEngine("tiny", base_url="http://127.0.0.1:9", deadline=0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "base_url: give the address of a server"),
        ({"base_url": "ftp://a"}, "base_url: expected an address"),
        ({"base_url": "http://user:password@a"}, "base_url: an address with a user"),
        ({"base_url": 5}, "base_url: "),
        ({"base_url": "http://a", "max_batch": 10**9}, "max_batch: "),
        ({"base_url": "http://a", "deadline": 0}, "deadline: "),
        ({"base_url": "http://a", "timeout": float("nan")}, "timeout: "),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}") as refused:
        OpenAIEngine("tiny", **options)
    assert "password@" not in str(refused.value)
    assert "\n" not in str(refused.value)


# Requests under way


def test_pieces_come_as_they_are_written(connect: Connect, server: TextServer) -> None:
    engine = connect()
    server.pause = 0.02

    async def read() -> list[float]:
        began, times = time.monotonic(), []
        request = Request(engine.tokenize(["kind"])[0], GREEDY, piece_tokens=1)
        async with aclosing(engine.write(request)) as pieces:
            async for _ in pieces:
                times.append(time.monotonic() - began)
        return times

    times = asyncio.run(read())
    assert len(times) > 10
    assert times[0] < times[-1] / 2


def test_an_abandoned_request_is_let_go(connect: Connect, server: TextServer) -> None:
    engine = connect()
    server.pause = 0.1
    long = GREEDY.model_copy(update={"max_new_tokens": 400})

    async def leave() -> None:
        async with aclosing(engine.write(Request(engine.tokenize(["kind"])[0], long))) as pieces:
            await anext(pieces)

    asyncio.run(leave())
    end = time.monotonic() + 30.0  # the whole text would take 40 s
    while not server.left:
        assert time.monotonic() < end
        time.sleep(0.02)


def flood(events: list[dict[str, Any]]) -> Iterator[bytes]:
    """Send more than was asked for, and faster than it is read."""
    while True:
        yield data_of(events[0]) * 1000


def test_a_deadline_ends_what_comes_faster_than_it_is_read(
    connect: Connect, server: TextServer
) -> None:
    engine = connect(deadline=1.0)
    server.lie = flood
    long = GREEDY.model_copy(update={"max_new_tokens": 50_000})
    requests = [Request(engine.tokenize(["kind"])[0], long, i) for i in range(3)]

    async def ask() -> list[Any]:
        asked = [engine.complete([request]) for request in requests]
        return await asyncio.gather(*asked, return_exceptions=True)

    began = time.monotonic()
    errors = asyncio.run(ask())
    assert time.monotonic() - began < 60  # the flood has no end
    assert all(isinstance(error, EngineError | CompletionError) for error in errors), errors
    assert all(server.url in str(error) for error in errors)


def test_no_request_follows_a_cancellation(connect: Connect, server: TextServer) -> None:
    """Neither if the caller reads an answer, nor if it waits for a server that is gone."""
    engine = connect(deadline=60.0)
    long = GREEDY.model_copy(update={"max_new_tokens": 50_000})
    request = Request(engine.tokenize(["kind"])[0], long)
    server.lie = flood
    for is_gone in (False, True):
        if is_gone:
            server.stop()

        async def leave() -> None:
            tasks = [asyncio.create_task(engine.complete([request])) for _ in range(3)]
            await asyncio.sleep(0.4)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=60)
            assert all(task.cancelled() for task in tasks)

        asyncio.run(leave())
        if is_gone:
            server.start()
        time.sleep(0.1)
        before = len(server.requests)
        time.sleep(0.3)
        assert len(server.requests) == before


def test_so_many_at_once(connect: Connect, server: TextServer) -> None:
    engine = connect(max_batch=1)
    under_way, most = 0, 0
    honest = server.written

    def counted(text: str, body: dict[str, Any]) -> tuple[list[str], str]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.05)
        under_way -= 1
        return honest(text, body)

    server.written = counted  # type: ignore[method-assign]
    texts(engine, GREEDY)
    assert most == 1

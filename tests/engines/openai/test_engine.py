"""The engine openai against a server with a made-up model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing
from itertools import repeat
from typing import Any

import pytest
from benchmarks.writing import completed

from tests.engines.openai.faults import LIES, TOLD
from tests.engines.openai.server import TextServer, data_of
from tests.fakes import FakeScorer
from tests.server.running import wait_until
from tide import Detoxifier
from tide.core.chat import Chat
from tide.core.errors import CompletionError, EngineError, InputError
from tide.core.results import FinishReason
from tide.core.settings import Sampling
from tide.engines.base import Completion, Request
from tide.engines.openai.engine import OpenAIEngine

GREEDY = Sampling(temperature=0.0, max_new_tokens=12)
LEAST = GREEDY.model_copy(update={"min_new_tokens": 5})
DRAWN = Sampling(temperature=1.0, max_new_tokens=12)
PROMPTS = ["The weather today is", "She opened the window and", "kind"]
CHAT = Chat.of(
    [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "What do you do?"}]
)

Connect = Callable[..., OpenAIEngine]


@pytest.fixture
def server() -> Iterator[TextServer]:
    with TextServer() as server:
        yield server


@pytest.fixture
def connect(server: TextServer) -> Iterator[Connect]:
    with ExitStack() as engines:

        def make(**options: Any) -> OpenAIEngine:
            engine = OpenAIEngine("tiny", **{"base_url": server.url, "deadline": 10.0, **options})
            server.requests.clear()
            return engines.enter_context(engine)

        yield make


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
    with pytest.raises(InputError, match="repetition_penalty: not supported by OpenAIEngine"):
        engine.check_sampling(Sampling(repetition_penalty=1.1))


@pytest.mark.parametrize("least", [0, 5])
def test_stop_strings(least: int, connect: Connect, server: TextServer) -> None:
    """Before the minimum length they also end a text, without a redraw: the server is sent none."""
    engine = connect()
    (ids,) = engine.tokenize(PROMPTS[:1])
    (whole,) = completed(engine, [ids], GREEDY, [0])
    word = engine.token_texts([whole.token_ids])[0][2]
    stopped = GREEDY.model_copy(update={"stop": (word,), "min_new_tokens": least})
    (completion,) = completed(engine, [ids], stopped, [0])
    assert (completion.text, completion.finish_reason) == (whole.text.split(word)[0], "stop")
    assert {body["temperature"] for body in server.requests} == {0.0}
    assert server.requests[-1].get("stop") == (None if least else [word])


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
    assert not any("ull" in text for text in texts(engine, GREEDY, banned_token_ids=(" dull",)))
    assert set(server.requests[-1]["logit_bias"]) == {"18", "19"}


@pytest.mark.parametrize("ability", ["tokens", "biased"])
def test_words_are_drawn_again_where_a_bias_does_not_work(
    ability: str, connect: Connect, server: TextServer, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(server, ability, False)
    with caplog.at_level(logging.WARNING, "tide"):
        engine = connect()
    assert "by redrawing text" in engine.capability_notes
    is_warned = "logit_bias with ids of the" in caplog.text and "does not work" in caplog.text
    assert is_warned == (ability == "biased")
    written = held_back(engine)
    assert all(written)
    assert any(body["temperature"] > 0 for body in server.requests)  # redrawn hotter
    assert held_back(engine) == written


@pytest.mark.parametrize(
    ("word", "reason"), [(" dull", "content_filter"), (None, "stop")], ids=["a banned word", "end"]
)
def test_a_server_that_writes_nothing_else(
    word: str | None, reason: FinishReason, connect: Connect, server: TextServer
) -> None:
    """Only a banned word, or the end before the minimum length: the text ends after redraws."""
    server.tokens = False
    engine = connect()
    answer = ([], "stop") if word is None else ([word] * 12, "length")
    server.written = lambda text, body: answer  # type: ignore[method-assign]
    banned = () if word is None else (word,)
    request = Request(engine.tokenize(["kind"])[0], LEAST, banned_token_ids=banned)
    (completion,) = asyncio.run(engine.complete([request]))
    assert completion == Completion("", (), reason)
    assert len(server.requests) < 12


def test_an_answer_is_not_drawn_again_without_end(connect: Connect, server: TextServer) -> None:
    """The server begins each continuation as it began the answer, so one word is new each time."""
    server.tokens = False
    engine = connect(deadline=120.0)
    server.written = lambda text, body: ([" kind", " dull"], "stop")  # type: ignore[method-assign]
    (dull,) = engine.tokenize([" dull"])[0]
    (ids,) = engine.tokenize(["The weather"])
    request = Request(ids, Sampling(max_new_tokens=10_000), banned_token_ids=(dull,))
    (completion,) = asyncio.run(engine.complete([request]))
    assert completion.finish_reason == "content_filter"
    assert len(completion.text.split()) == len(server.requests) == 200


# Ends before `min_new_tokens`


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


@pytest.mark.parametrize("patient", [True, False])
def test_broken_off_text_is_no_repair(patient: bool, connect: Connect, server: TextServer) -> None:
    """If the blamed word is banned, the model prefers to end: that is banned for some words."""
    server.patient, server.favourite = patient, " dull"
    engine = connect()
    server.ends = lambda text: text.endswith(" is")
    honest = server.written
    server.written = lambda text, body: (  # type: ignore[method-assign]
        honest(text, body) if "logit_bias" in body else ([" dull"] * body["max_tokens"], "length")
    )
    scorer = FakeScorer(lambda text: 0.9 if "dull" in text.lower() else 0.05)
    detox = Detoxifier(engine, scorer=scorer, strategy="backtrack", preset="relative")
    result = detox("The weather is", temperature=0.0)
    assert result.trials[0].accepted
    assert len(engine.tokenize([result.text])[0]) >= 5


# Continued texts and chats


@pytest.mark.parametrize("prompt", [PROMPTS[0], CHAT], ids=["text", "chat"])
@pytest.mark.parametrize("strict", [False, True])
def test_it_goes_on_after_its_own_words(
    prompt: str | Chat, strict: bool, connect: Connect, server: TextServer
) -> None:
    server.strict = strict
    engine = connect()
    read = engine.encode(engine.text_of(prompt))
    ids = read.token_ids
    assert engine.supports_continuation(ids)
    assert "redraws the end" in engine.capability_notes
    (whole,) = completed(engine, [ids], GREEDY)
    assert whole.text == model_says(server, read.text + " " * isinstance(prompt, Chat), {})
    kept = whole.token_ids[:6]
    (more,) = completed(engine, [(*ids, *kept)], GREEDY.limited(6, 0))
    assert engine.texts([kept])[0] + more.text == whole.text
    if isinstance(prompt, Chat):
        assert read.text == "system: Be kind.\nuser: What do you do?\nassistant:"
        assert server.requests[-1]["messages"][:2] == CHAT.dump()


@pytest.mark.parametrize("ends", [False, True], ids=["a held word", "an early end"])
def test_what_fails_in_a_chat_that_is_not_continued_is_redrawn_whole(
    ends: bool, connect: Connect, server: TextServer
) -> None:
    server.continues = server.tokens = server.patient = False
    engine = connect()
    assert "redraws all" in engine.capability_notes
    assert engine.supports_continuation(engine.tokenize(["A text"])[0])
    prompt = engine.encode(engine.text_of(CHAT)).token_ids
    assert not engine.supports_continuation(prompt)
    with pytest.raises(CompletionError, match="cannot continue an answer to a chat"):
        completed(engine, [(*prompt, " I")], GREEDY)
    server.requests.clear()
    server.ends = lambda text: ends and text.endswith("assistant: ")
    (whole,) = completed(engine, [prompt], GREEDY)
    assert bool(whole.text) is not ends
    held = whole.token_ids[5:6]
    request = Request(prompt, LEAST, banned_token_ids=held)
    (completion,) = asyncio.run(engine.complete([request]))
    assert len(completion.token_ids) >= 5
    assert not set(held) & set(completion.token_ids)
    assert all(body["messages"] == CHAT.dump() for body in server.requests)


# Models, addresses and options


def answers(asked: str, status: int, answer: Any) -> dict[str, Any]:
    """A server that answers so to paths with `asked`."""
    return {"answer": lambda path, _: (status, answer) if asked in path else None}


@pytest.mark.parametrize(
    ("status", "answer", "model"),
    [
        (200, {"data": [{"id": "one"}, {"id": "tiny"}]}, "tiny"),
        (200, {"data": [{"id": "one"}, {"id": "tiny:latest"}]}, "tiny:latest"),  # Ollama
        (200, [{"id": "one", "max_model_len": 99}], "one"),
        (200, {"data": [{"id": None}, {"id": "one"}]}, "tiny"),
        (200, {"object": "list", "data": []}, "tiny"),
        (200, b"<html>", "tiny"),
        *((status, {"detail": "x"}, "tiny") for status in (403, 404, 501)),
    ],
    ids=str,
)
def test_lists_of_models(
    status: int, answer: Any, model: str, connect: Connect, server: TextServer
) -> None:
    vars(server).update(answers("/v1/models", status, answer))
    engine = connect()
    assert engine.name == model
    assert all(texts(engine, GREEDY))
    assert {body["model"] for body in server.requests} == {model}


def repeats_the_prompt(text: str, body: dict[str, Any]) -> tuple[list[str], str]:
    return [text, " kind"], "length"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({"dialect": LIES["half an answer"]}, "without a finish", id="half an answer"),
        pytest.param({"dialect": TOLD["an error"]}, "out of memory", id="an error"),
        pytest.param({"written": repeats_the_prompt}, "repeats the prompt before", id="an echo"),
        pytest.param(answers("/tokenize", 200, {"tokens": [-1]}), "tokens", id="a negative id"),
        pytest.param(answers("/tokenize", 200, {"tokens": [2**40]}), "tokens", id="a large id"),
        pytest.param(answers("/tokenize", 200, {"tokens": [3, 4]}), "tokens", id="another text"),
        pytest.param(answers("/tokenize", 200, {}), "tokens", id="no ids"),
        pytest.param(answers("/tokenize", 200, b"<html>"), "JSON", id="a page"),
        pytest.param(
            {"models": [{"id": "one"}, {"id": "two"}]},
            "has no model 'tiny'; set --model to one of: one, two",
            id="other models",
        ),
        pytest.param(
            answers("/completions", 404, {}), "HTTP 404 to /v1/chat/completions", id="no paths"
        ),
    ],
)
def test_server_that_cannot_be_used(options: dict[str, Any], problem: str) -> None:
    with (
        TextServer(**options) as server,
        pytest.raises(EngineError, match=f"^{server.url}: cannot be used: .*{problem}"),
    ):
        OpenAIEngine("tiny", base_url=server.url)


def test_unreachable_server_at_start() -> None:
    problem = r"http://127\.0\.0\.1:9: cannot be used: ConnectError"
    with pytest.raises(EngineError, match=problem):
        OpenAIEngine("tiny", base_url="http://127.0.0.1:9", deadline=0.4)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models", 504),
        ("/v1/completions", 429),
        ("/v1/completions", 504),
        ("/v1/chat/completions", 429),
        ("/tokenize", 429),
    ],
)
def test_server_that_is_busy_at_start_is_probed_later(
    path: str, status: int, connect: Connect, server: TextServer
) -> None:
    vars(server).update(answers(path, status, {"error": "slow down"}))
    engine = connect(required=False)
    assert not engine.available
    server.answer = lambda *_: None
    wait_until(lambda: engine.available)
    assert "bans words by logit_bias" in engine.capability_notes
    assert engine.supports_continuation(engine.tokenize([engine.render(CHAT)])[0])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "base_url"),
        ({"base_url": "http://user:password@a"}, "base_url"),
        ({"base_url": "http://a", "max_batch": 10**9}, "max_batch"),
        ({"base_url": "http://a", "deadline": 0}, "deadline"),
        ({"base_url": "http://a", "timeout": float("nan")}, "timeout"),
    ],
)
def test_bad_options(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: ") as refused:
        OpenAIEngine("tiny", **options)
    assert "password@" not in str(refused.value)


def test_strategy_that_moves_embeddings_is_refused(text_engine: OpenAIEngine) -> None:
    with pytest.raises(InputError, match=r"random-walk: moves prompt embeddings.*does not have"):
        Detoxifier(text_engine, scorer=FakeScorer(), strategy="random-walk", preset="relative")


# Requests under way

ENDLESS = GREEDY.model_copy(update={"max_new_tokens": 50_000})


def flood(server: TextServer) -> None:
    """Let it send more than was asked for, without end and faster than that is read."""
    server.written = lambda text, body: ([" kind"], "length")  # type: ignore[method-assign]
    server.dialect = lambda events: repeat(data_of(events[0]) * 1000)


def test_a_deadline_ends_what_comes_faster_than_it_is_read(
    connect: Connect, server: TextServer
) -> None:
    engine = connect(deadline=1.0)
    flood(server)
    began = time.monotonic()
    with pytest.raises(CompletionError, match=f"{server.url}: not finished within 1 s"):
        completed(engine, engine.tokenize(["kind"]), ENDLESS, [0])
    assert time.monotonic() - began < 60  # the flood has no end


@pytest.mark.parametrize("way", ["leaves the stream", "cancels", "cancels a wait"])
def test_request_of_a_caller_who_leaves_is_let_go(
    way: str, connect: Connect, server: TextServer
) -> None:
    """No other request follows. The one who waits does so for a server that is gone."""
    engine = connect(deadline=60.0)
    request = Request(engine.tokenize(["kind"])[0], ENDLESS)
    flood(server)
    if way == "cancels a wait":
        server.stop()

    async def leave() -> None:
        if way == "leaves the stream":
            async with aclosing(engine.write(request)) as pieces:
                await anext(pieces)
            return
        task = asyncio.create_task(engine.complete([request]))
        await asyncio.sleep(0.4)
        task.cancel()
        await asyncio.wait([task], timeout=60)
        assert task.cancelled()

    asyncio.run(leave())
    server.start()
    wait_until(lambda: server.left > 0 or way == "cancels a wait", 30.0)
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

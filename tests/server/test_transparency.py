"""An enforced gateway sends what its client sent, and answers as the server behind it does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engines.openai.messages import Said
from tests.engines.openai.server import USAGE, WORDS, TextServer, _ids, _text
from tests.fakes import RudeScorer
from tests.server.gateways import BAD, TOOL, Serve, choice_of, gateway, says, writes
from tests.server.running import USER, Running, running, wait_until, written
from tide.engines.openai.engine import OpenAIEngine
from tide.server.limits import Limits

# Whole answers are streamed, too, so that the gateway reads them as they are written.
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
RUDE = [" the", " people", " of", " town", " were", " dull", " and", " old"]
KIND = [" the", " people", " of", " town", " were", " kind", " and", " old", "."]


@pytest.fixture
def server(serve: Serve) -> Running:
    return serve()


FIELDS: dict[str, Any] = {
    "temperature": 0.3, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.5,
    "frequency_penalty": -0.5, "repetition_penalty": 1.2, "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False}, "logit_bias": {"3": 1}, "seed": 7,
    "min_tokens": 1, "user": "somebody", "metadata": {"a": "b"}, "unknown": [None, {"a": 1}],
    "max_completion_tokens": 1100, "stop": ["END"], "suffix": None,
}  # fmt: skip
LIMITLESS = {"max_tokens": -1}
OF_LUA = {"max_tokens": 6.0, "seed": 3.0}
NULLS = {"max_tokens": None, "temperature": None, "seed": None}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        pytest.param(FIELDS, FIELDS, id="fields"),
        pytest.param(LIMITLESS, LIMITLESS, id="LM Studio's value for no limit"),
        pytest.param(OF_LUA, OF_LUA, id="numbers of Lua"),
        pytest.param(NULLS, NULLS, id="nulls"),
        # Llama.cpp ignores empty stop strings, vLLM refuses them.
        pytest.param({"stop": ""}, {}, id="empty stop string"),
        pytest.param({"stop": [""]}, {}, id="list of an empty stop string"),
    ],
)
def test_fields_are_sent_as_the_client_sent_them(
    upstream: TextServer, serve: Serve, fields: dict[str, Any], sent: dict[str, Any]
) -> None:
    message = {**USER, "name": "Ann", "unknown": 1}
    choice = choice_of(serve(Said("It is fine.")), messages=[message], **fields)
    assert choice["message"]["content"] == "It is fine."
    assert upstream.requests == [{"messages": [message], "model": "tiny", **STREAM, **sent}]


BEGUN: dict[str, Any] = {"role": "assistant", "content": "The river runs by", "name": "Ann"}


def test_begun_answer_is_continued_and_repaired(upstream: TextServer, server: Running) -> None:
    writes(upstream, RUDE, repaired=KIND[5:])
    answer = choice_of(server, messages=[USER, BEGUN])
    assert answer["message"]["content"] == "".join(KIND)
    first, repair = upstream.requests
    assert first["messages"] == [USER, BEGUN]
    kept = BEGUN["content"] + " the people of town were"
    assert repair["messages"] == [USER, {**BEGUN, "content": kept}]
    assert all(body["continue_final_message"] for body in (first, repair))
    whole = server.post("/v1/messages", {"messages": [USER, BEGUN], "max_tokens": 9}).json()
    assert whole["content"][0]["text"] == "".join(KIND)


def test_begun_answer_is_refused_if_the_server_begins_another() -> None:
    with TextServer(continues=False) as upstream, gateway(upstream) as server:
        refused = server.chat(messages=[USER, BEGUN])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
        assert "does not continue" in refused.json()["error"]["message"]
        assert not upstream.requests


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([{"role": "system", "content": "Tell me about the town."}], id="no user"),
        pytest.param([{"role": "user", "content": ""}], id="nothing"),
        pytest.param([USER, {"role": "assistant", "content": ""}], id="empty answer"),
    ],
)
def test_roles_are_left_to_the_server(
    messages: list[Any], limit: float | None, upstream: TextServer, text_engine: OpenAIEngine
) -> None:
    says(upstream, Said("It is fine."))
    with running(text_engine, "pocket", preset="backtrack", refuse_prompt_above=limit) as server:
        assert choice_of(server, messages=messages)["message"]["content"] == "It is fine."
    assert upstream.requests[0]["messages"] == messages


def test_fields_of_other_requests(upstream: TextServer, server: Running) -> None:
    server.ask("The weather", messages=[USER], Messages=[USER])
    assert upstream.requests[0] == {"prompt": "The weather", "model": "tiny", **STREAM}
    server.chat(Prompt="x", max_tokens=4)
    assert not any("Prompt" in body for body in upstream.requests)


def test_path_of_a_model_leads_to_models_only(upstream: TextServer, server: Running) -> None:
    paths: list[str] = []
    upstream.answer = lambda path, body: paths.append(path)
    for path in ("tiny", "../../slots", "%2e%2e/%2e%2e/slots", "%252e%252e/slots"):
        with server.connect() as client:  # httpx would resolve the dots itself
            client.sendall(f"GET /v1/models/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert b" 404 " in client.recv(1000)
    assert paths == ["/v1/models/tiny"]


def test_seeds_of_choices_follow_the_clients_seed(upstream: TextServer, server: Running) -> None:
    writes(upstream, [" kind"])
    server.ask("The weather", n=2, seed="7")
    server.ask("The weather", n=2)
    assert sorted(body.get("seed", -1) for body in upstream.requests) == [-1, -1, 7, 8]


@pytest.mark.parametrize(
    ("seed", "bias", "joined"),
    [
        pytest.param({}, {"3": 1}, {"3": 1, "18": -100.0, "19": -100.0}, id="no seed"),
        pytest.param({"seed": 7}, {"3": 1}, {"3": 1, "18": -100.0, "19": -100.0}, id="seed"),
        pytest.param({}, [[3, 1]], [[3, 1], [18, -100.0], [19, -100.0]], id="pairs of llama.cpp"),
    ],
)
def test_a_repair_sends_its_bans_and_another_seed(
    seed: dict[str, int], bias: Any, joined: Any, upstream: TextServer, server: Running
) -> None:
    """The client's other fields stay, and its own biases are joined with the bans."""
    upstream.favourite = " dull"
    sent = {"temperature": 0.5, "logit_bias": bias, "min_p": 0.1, "max_tokens": 8}
    answer = choice_of(server, **sent, **seed)
    assert answer["tide"]["rounds"] > 1
    assert BAD not in answer["message"]["content"].casefold()
    first, *repairs = upstream.requests
    assert first["logit_bias"] == bias
    assert first.get("seed") == seed.get("seed")
    for body in repairs:
        assert body["logit_bias"] == joined
        assert (body["min_p"], body["temperature"]) == (0.1, 0.5)
        assert ("seed" in body) == bool(seed)
        assert body.get("seed") != 7


def test_a_policy_sets_what_a_client_leaves_out(upstream: TextServer, serve: Serve) -> None:
    server = serve(limits=Limits(max_tokens=40), temperature=0.2, top_p=0.8)
    server.ask("The weather")
    server.ask("The weather", temperature=0.4, top_p=0.7, max_tokens=3)
    usual, chosen = upstream.requests[0], upstream.requests[-1]
    assert (usual["temperature"], usual["top_p"], usual["max_tokens"]) == (0.2, 0.8, 40)
    assert (chosen["temperature"], chosen["top_p"], chosen["max_tokens"]) == (0.4, 0.7, 3)


def test_models_of_the_server_have_their_own_policies(serve: Serve, tmp_path: Path) -> None:
    path = written(
        tmp_path / "tide.yaml",
        policies={"strict": {}, "trial": {"mode": "monitor"}, "other": {}},
        models={"small": "trial", "tiny": "other"},
        default=["strict", "trial"],
    )
    server = serve(policies=path)
    for model, policy in (("small", "trial"), ("large", "strict"), ("tiny", "strict")):
        answer = server.ask("The weather", model=model, max_tokens=4)
        assert answer.headers["x-tide-policy"] == policy  # a local client may not use "other"
    named = server.ask("The weather", model="small", tide={"policy": "strict"}, max_tokens=4)
    assert named.headers["x-tide-policy"] == "strict"


def test_bans_are_tokens_of_the_model_that_is_asked(upstream: TextServer, server: Running) -> None:
    """Another model of the server has other tokens: here each id is higher by 100."""

    def answer(path: str, body: Any) -> Any:
        if body is None or body.get("model") != "other":
            return None
        if path == "/tokenize":
            return 200, {"tokens": [token + 100 for token in _ids(body["prompt"])]}
        if path == "/detokenize":
            return 200, {"prompt": "".join(_text(token - 100) for token in body["tokens"])}
        return None

    upstream.answer = answer
    writes(upstream, [" dull", *KIND], repaired=KIND)
    for model, sent, ids in (
        ("scripted", "tiny", {"18", "19"}),
        ("tiny", "tiny", {"18", "19"}),
        ("other", "other", {"118", "119"}),
    ):
        assert server.ask("The weather", model=model).json()["model"] == model
        assert upstream.requests[-1]["model"] == sent
        assert set(upstream.requests[-1]["logit_bias"]) == ids


FILTERED = Said("The river is wide. It", reason="content_filter")


@pytest.mark.parametrize(
    ("said", "text", "repairs"),
    [
        ([FILTERED], FILTERED.text, 0),
        ([Said(reason="content_filter")], "", 0),
        ([Said(f"A {BAD} town."), Said(" small", reason="content_filter")], "A small", 1),
    ],
)
def test_filter_of_the_server(
    said: list[Said], text: str, repairs: int, upstream: TextServer, server: Running
) -> None:
    says(upstream, *said)
    choice = choice_of(server)
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "content_filter")
    assert (choice["tide"]["accepted"], choice["tide"]["repairs"]) == (bool(text), repairs)
    says(upstream, *said)
    pieces, reason = streamed(server)
    assert ("".join(pieces), reason) == (text, "content_filter")


def test_details_of_usage_pass_and_are_translated(
    upstream: TextServer, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {"reasoning_tokens": 2, "dull": 3, "audio_tokens": "dull"}
    told = {
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1},
        "completion_tokens_details": written,
    }
    monkeypatch.setattr("tests.engines.openai.server.USAGE", {**USAGE, **told})
    passed = {**USAGE, **told, "completion_tokens_details": {"reasoning_tokens": 2}}
    writes(upstream, [" kind", " people"])
    assert server.chat().json()["usage"] == passed
    assert server.events(prompt="The weather", **STREAM)[-1]["usage"] == passed
    twice = server.ask(["The weather", "The river"], n=2).json()["usage"]
    assert twice["prompt_tokens_details"] == {"cached_tokens": 8, "cache_write_tokens": 2}
    assert twice["completion_tokens_details"] == {"reasoning_tokens": 8}
    response = server.post("/v1/responses", {"input": "The weather"}).json()["usage"]
    assert response["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 1}
    assert response["output_tokens_details"] == {"reasoning_tokens": 2}
    for stream in (False, True):
        asked = {"messages": [USER], "max_tokens": 9, "stream": stream}
        answer = server.post("/v1/messages", asked).text
        assert '"input_tokens":2,"cache_read_input_tokens":4' in answer
        assert '"cache_creation_input_tokens":1,"output_tokens":5' in answer
        assert '"output_tokens_details":{"thinking_tokens":2}' in answer
    says(upstream, Said("Fine.", calls=[("find", "{}")]))
    tool = {"name": "find", "input_schema": {"type": "object"}}
    begun = server.post("/v1/messages", asked | {"tools": [tool]}).text.partition("\n\n")[0]
    assert '"input_tokens":2,"cache_read_input_tokens":4' in begun
    upstream.message = lambda _: None
    # The request of a repair finds the kept text in the server's cache.
    writes(upstream, RUDE, repaired=KIND[5:])
    assert "prompt_tokens_details" not in server.ask("The weather").json()["usage"]


@pytest.mark.parametrize("count", ["works", "fails", "hangs"])
def test_usage_of_a_repaired_text(
    upstream: TextServer, server: Running, monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    """Its tokens are counted in words if the server fails to count them.

    The prompt of the last request holds the kept text, so the sum is the server's.
    """
    writes(upstream, RUDE, repaired=KIND[5:])
    if count == "hangs":
        monkeypatch.setattr("tide.engines.openai.engine._SECONDS_TO_COUNT", 0.2)

    def answer(path: str, body: Any) -> Any:
        # Words to ban are tokenized after a line end.
        is_count = path == "/tokenize" and not body["prompt"].startswith("\n")
        if not is_count or count == "works":
            return None
        if count == "hangs":
            time.sleep(1)
            return 200, {"tokens": [0] * 99, "count": 99}
        return 500, {"error": "out of memory"}

    upstream.answer = answer
    whole = server.ask("The weather").json()
    assert whole["choices"][0]["text"] == "".join(KIND)
    assert whole["usage"]["completion_tokens"] == len(KIND)
    assert whole["usage"]["total_tokens"] == USAGE["total_tokens"]
    events = server.events(prompt="The weather", stream_options={"include_usage": True})
    assert events[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("refused", [["stream_options"], ["stream_options", "min_p"]])
def test_a_server_that_does_not_count_is_not_asked_to(refused: list[str]) -> None:
    always = dict.fromkeys(refused, lambda value: True)
    with TextServer(refused=always) as upstream, gateway(upstream) as server:
        answer = server.ask("The weather", max_tokens=4, temperature=0).json()
        says(upstream, Said(calls=[("find", '{"a": 1}')]))
        called = server.chat(tools=[TOOL]).json()
    text = answer["choices"][0]["text"]
    assert answer["usage"]["completion_tokens"] == sum(text.count(word) for word in WORDS)
    assert called["usage"]["completion_tokens"] == 6  # find {" a ": 1 }


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ('{"a": "It is fi', True),
        ('{"a": "It is du\\u006c', True),
        ('{"a": "It is du\\u006cl", "b', False),
        ('{"a": "dull", "a": "fi', False),
        ("It is fine", False),  # no JSON
    ],
)
def test_json_that_is_cut(text: str, passes: bool, upstream: TextServer, server: Running) -> None:
    def shown(reason: str) -> tuple[str, str]:
        says(upstream, Said(text, reason=reason))
        choice = choice_of(server, response_format={"type": "json_object"})
        return choice["message"]["content"], choice["finish_reason"]

    for reason in ("length", "content_filter"):
        assert shown(reason) == ((text, reason) if passes else ("", "content_filter"))
    assert shown("stop") == ("", "content_filter")


# Streams of servers that cannot continue an answer


@pytest.fixture(scope="module")
def restarting() -> Iterator[tuple[TextServer, Running]]:
    """A gateway before a server that always begins a new answer."""
    with TextServer(continues=False) as upstream, gateway(upstream) as server:
        upstream.pause = 0.02  # each event arrives alone
        yield upstream, server


def streamed(server: Running, **body: Any) -> tuple[list[str], str]:
    """The pieces of a streamed answer to a chat, and its finish reason."""
    events = server.events("/v1/chat/completions", messages=[USER], **body)
    choices = [event["choices"][0] for event in events]
    pieces = [choice["delta"]["content"] for choice in choices if "content" in choice["delta"]]
    return pieces, choices[-1]["finish_reason"]


@pytest.mark.parametrize("seed", [{}, {"seed": 7}])
@pytest.mark.parametrize(
    "repaired",
    [
        pytest.param(KIND, id="as before"),
        pytest.param([" she", " said", " that", " it", " was", " good"], id="otherwise"),
        pytest.param([" the", " people"], id="shorter"),
    ],
)
def test_a_stream_goes_on_if_the_repaired_answer_begins_with_what_was_shown(
    repaired: list[str], seed: dict[str, int], restarting: tuple[TextServer, Running]
) -> None:
    upstream, server = restarting
    upstream.requests.clear()
    writes(upstream, RUDE, repaired)
    altered = 'tide_policy_answers_total{outcome="altered",policy="default"}'
    before = server.metric(altered)
    pieces, reason = streamed(server, **seed)
    assert server.metric(altered) == before + 1
    if repaired is KIND:
        assert ("".join(pieces), reason) == ("".join(KIND), "stop")
        assert len(pieces) > 3  # several may come together
    else:  # what was shown cannot be taken back
        assert ("".join(pieces), reason) == ("".join(RUDE[:5]), "content_filter")
    first, second = upstream.requests
    assert first["messages"] == second["messages"] == [USER]
    assert first["seed"] == second["seed"]  # with equal noise, it most likely begins as before
    assert seed.items() <= first.items()
    whole = choice_of(server, **seed)
    assert (whole["message"]["content"], whole["finish_reason"]) == ("".join(repaired), "stop")


# Other paths, servers that are down or lack a path, connections


def test_models_embeddings_and_counts_are_the_servers(
    upstream: TextServer, server: Running
) -> None:
    vectors = {"data": [{"embedding": [0.5], "index": 0}], "usage": USAGE}
    paths = ("/v1/embeddings", "/v1/messages/count_tokens", "/v1/responses/input_tokens")
    asked: list[Any] = []

    def answer(path: str, body: Any) -> Any:
        if path in paths:
            asked.append(body)
            return 200, vectors
        return (200, {"id": "tiny"}) if path == "/v1/models/tiny" else None

    upstream.answer = answer
    body = {"input": "dull", "model": "scripted", "dimensions": 1}
    for path in paths:
        assert server.post(path, body).json() == vectors
    assert asked == [{**body, "model": "tiny"}] * len(paths)
    assert server.http.get("/v1/models").json() == {"data": upstream.models}
    assert server.http.get("/v1/models/tiny").json() == {"id": "tiny"}


@pytest.mark.parametrize("deployment", [None, "large", "org/large"])
def test_client_of_azure(deployment: str | None, upstream: TextServer, server: Running) -> None:
    where: dict[str, Any] = {"azure_endpoint": server.url, "azure_deployment": deployment}
    asked: dict[str, Any] = {"model": "small", "max_tokens": 4}
    with openai.AzureOpenAI(**where, api_key="any", api_version="any") as client:
        assert client.completions.create(prompt="The weather", **asked).choices[0].text
        assert client.chat.completions.create(messages=[USER], **asked).choices[0].message.content
        assert client.models.list().data[0].id == "tiny"
    assert {body["model"] for body in upstream.requests} == {deployment or "small"}


def test_a_server_without_completions_answers_chats() -> None:
    with TextServer() as upstream:
        upstream.answer = lambda path, _: (404, {}) if path == "/v1/completions" else None
        with gateway(upstream) as server:
            assert server.chat(max_tokens=4).status_code == 200
            assert server.ask("The weather").status_code == 404
            assert "logit_bias" in server.http.get("/ready").json()["engine"]


@pytest.mark.parametrize(("mode", "deadline", "times"), [("enforce", 60.0, 1), ("monitor", 0.5, 2)])
def test_server_that_comes_and_goes(mode: Any, deadline: float, times: int) -> None:
    upstream = TextServer()
    upstream.start()
    upstream.stop()  # it keeps its port
    with (
        OpenAIEngine(base_url=upstream.url, deadline=deadline, required=False) as engine,
        running(engine, RudeScorer(BAD), preset="backtrack", name=None, mode=mode) as server,
    ):
        for _ in range(times):
            wait_until(lambda: server.http.get("/ready").json().get("down") == ["engine"])
            began = time.monotonic()
            down = server.chat()
            assert (down.status_code, down.json()["error"]["code"]) == (503, "engine_error")
            seconds = time.monotonic() - began
            assert seconds < 60
            assert seconds > 0.4 or mode == "enforce"  # at once if it was never reached
            assert server.metric("tide_engine_up") == 0
            with upstream:
                wait_until(lambda: server.http.get("/ready").status_code == 200)
                assert server.metric("tide_engine_up") == 1
                answer = server.chat(max_tokens=4)
                assert answer.status_code == 200
                assert answer.json().get("model", "tiny") == "tiny"
                assert server.http.get("/version").json()["model"] == "tiny"


def test_another_server_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tide.engines.openai.engine._PROBE_PAUSE", 0.0)
    with (
        TextServer() as upstream,
        OpenAIEngine(base_url=upstream.url, deadline=120) as engine,
        running(engine, RudeScorer(BAD), preset="backtrack", name=None) as server,
    ):
        assert "serves tiny; bans words by logit_bias" in server.http.get("/ready").text
        upstream.stop()
        wait_until(lambda: server.http.get("/ready").status_code == 503)
        upstream.models, upstream.biased = [{"id": "large"}], False
        upstream.start()
        wait_until(lambda: "serves large; bans words by redraw" in server.http.get("/ready").text)
        upstream.requests.clear()
        answer = server.chat(max_tokens=4)
        assert answer.json()["model"] == upstream.requests[-1]["model"] == "large"
        assert len(upstream.requests) == 1  # it is probed once


def test_server_without_the_model_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    upstream = TextServer(models=[{"id": "small"}, {"id": "large"}])
    upstream.start()
    upstream.stop()
    with (
        OpenAIEngine(base_url=upstream.url, deadline=0.5, required=False) as engine,
        running(engine, RudeScorer(BAD), preset="backtrack") as server,
        upstream,
    ):
        reason = "has no model 'pocket'; set --model to one of: small, large"
        wait_until(lambda: server.chat().status_code == 503 and reason in caplog.text)
        for _ in range(5):
            assert server.http.get("/ready").status_code == 503
        upstream.models = [{"id": "small"}]
        wait_until(lambda: server.http.get("/ready").status_code == 200)
    assert caplog.text.count(reason) == 1


def test_connections_are_kept_and_traces_go_on(upstream: TextServer, server: Running) -> None:
    writes(upstream, KIND)
    before = upstream.connections
    for trace in (b"00-1-2-01", b"\xe9"):
        headers = {"traceparent": trace}
        answer = server.http.post("/v1/completions", json={"prompt": "x"}, headers=headers)
        assert answer.status_code == 200
    server.ask("x")
    sent = [headers["traceparent"] for headers in upstream.headers[-3:]]
    assert (sent[0], sent[2]) == ("00-1-2-01", None)
    assert upstream.connections - before <= 1

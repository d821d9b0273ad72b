"""Completions and chat completions, as OpenAI's own client sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.fakes import Babbler, FakeEngine, FakeScorer, RudeScorer
from tests.server.running import BACKTRACK, MODEL, Running, running
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.errors import ScorerError
from tide.detoxifier.sync import Detoxifier
from tide.server import policies
from tide.server.limits import Limits
from tide.server.policies import Mode


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(max_iterations=40) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_completion_and_its_cost_are_those_of_the_library(client: openai.OpenAI) -> None:
    alone = Detoxifier(
        scripted_engine(), scorer=ReadingScorer(), preset="relative", max_iterations=40
    )
    for prompt in PROMPTS:
        result, read = alone(prompt, seed=7), len(prompt.split())
        raw = client.completions.with_raw_response.create(model=MODEL, prompt=prompt, seed=7)
        answer, best = raw.parse(), result.best
        choice = answer.choices[0]
        assert (choice.text, choice.finish_reason) == (result.text, "length")
        assert choice.tide["accepted"] is answer.tide["accepted"] is True
        assert choice.tide["toxicity_before"] == best.base.toxicity
        assert answer.usage.prompt_tokens == read
        assert answer.usage.completion_tokens == best.returned.num_tokens
        assert answer.usage.total_tokens == read + 2
        for name in ("evaluations", "rounds", "forward_tokens", "scorer_calls"):
            cost = getattr(best, name)
            assert int(raw.headers[f"x-tide-{name.replace('_', '-')}"]) == cost
            assert answer.tide[name] == choice.tide[name] == cost
        assert raw.headers["x-tide-accepted"] == "true"
        assert float(raw.headers["x-tide-toxicity"]) < 0.5
        assert raw.headers["x-request-id"]


def test_prompts_times_n_are_choices_in_order(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPTS[:2], n=3, seed=5)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.tide["seed"] for choice in answer.choices] == [5, 6, 7, 8, 9, 10]
    assert answer.usage.prompt_tokens == sum(len(prompt.split()) for prompt in PROMPTS[:2])
    again = client.completions.create(model=MODEL, prompt=PROMPTS[1], seed=9)
    assert again.choices[0].text == answer.choices[4].text


def test_a_seed_that_is_shown_can_be_sent_again(client: openai.OpenAI) -> None:
    drawn = []
    for seed in (None, None, -1, (1 << 63) - 1):
        answer = client.completions.create(model=MODEL, prompt="x", seed=seed)
        drawn.append(shown := answer.choices[0].tide["seed"])
        assert 0 <= shown == int(float(shown)) < 1 << 53  # JavaScript rounds larger ones
        again = client.completions.create(model=MODEL, prompt="x", seed=shown)
        assert again.choices[0].text == answer.choices[0].text
    assert drawn[0] != drawn[1]


def test_a_stream_says_what_the_whole_says(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPTS[:2], "n": 2, "seed": 3}
    whole = client.completions.create(**asked)
    texts: dict[int, str] = dict.fromkeys(range(4), "")
    reasons: dict[int, str] = {}
    last: Any = None
    for last in client.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        for choice in last.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
                assert last.tide["accepted"] is True
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert reasons == dict.fromkeys(range(4), "length")
    assert last.choices == []
    assert last.usage == whole.usage


@pytest.mark.parametrize(("mode", "method"), [("enforce", "answer"), ("monitor", "draft")])
def test_stream_of_another_text(mode: Mode, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Babbler(0.0), RudeScorer(), mode=mode, **BACKTRACK) as server:
        detox = server.policies.table.policies["default"].detox
        answer = getattr(detox, method)

        async def shouted(prompt: Any, on_text: Any, **settings: Any) -> Any:
            return await answer(prompt, lambda text: on_text(text.upper()), **settings)

        monkeypatch.setattr(detox, method, shouted)
        *pieces, last, done, _ = server.ask(stream=True).text.split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "internal"
    texts = [json.loads(piece.removeprefix("data: "))["choices"][0]["text"] for piece in pieces]
    assert "".join(texts).isupper()


def test_an_empty_text_is_given_as_none() -> None:
    with running(FakeEngine(" \n")) as server:
        choice = server.ask().json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("", "length")
        assert '"empty":true' in server.ask(stream=True).text
        assert (choice["tide"]["accepted"], choice["tide"]["empty"]) == (False, True)


def test_what_it_did_is_counted() -> None:
    with running(max_iterations=40) as server:
        tide = server.ask(PROMPTS[0], seed=1).json()["tide"]
        assert tide["evaluations"] > 1
        figures = {
            "tide_evaluations_total": tide["evaluations"],
            "tide_rounds_total": tide["rounds"],
            "tide_scorer_texts_total": tide["evaluations"],
            "tide_scorer_seconds_count": tide["rounds"],
            "tide_toxicity_before_sum": tide["toxicity_before"],
            "tide_toxicity_after_sum": tide["toxicity"],
            'tide_completions_total{outcome="accepted"}': 1,
        }
        assert {name: server.metric(name) for name in figures} == figures


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/one")
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="another", prompt="x")
    assert caught.value.code == "model_not_found"


def test_traces_are_for_those_who_may_see_them(server: Running) -> None:
    refused = server.ask(tide={"trace": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tide.trace")
    with running(limits=Limits(traces=True)) as open_server:
        tide = open_server.ask(PROMPTS[0], tide={"trace": True}).json()["choices"][0]["tide"]
        assert len(tide["trace"]) == tide["evaluations"]
        assert tide["trace"][0]["role"] == "initial"
        assert "trace" not in open_server.ask().json()["choices"][0]["tide"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_toxic_prompt_is_refused_where_that_is_asked(stream: bool) -> None:
    with running(refuse_prompt_above=0.9) as server:
        refused = server.ask("toxicity 0.95 of its own", stream=stream)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "content_filter")
        # Litellm raises its ContentPolicyViolationError for these words.
        words = "request was rejected as a result of the safety system"
        assert words in refused.json()["error"]["message"]
        assert server.metric('tide_completions_total{outcome="prompt_refused"}') == 1
        assert server.ask(stream=stream).status_code == 200


@pytest.mark.parametrize(("languages", "language"), [(("en",), "de"), (None, None)])
def test_answer_in_an_unread_language(
    languages: tuple[str, ...] | None, language: str | None
) -> None:
    german = "Das Wetter ist heute sehr sch\u00f6n und wir gehen in den Garten"
    with running(FakeEngine(german), FakeScorer(languages=languages)) as server:
        (choice,) = server.ask(max_tokens=16).json()["choices"]
        assert choice["tide"].get("language") == language
        counter = 'tide_unread_answers_total{language="de"}'
        assert server.metric(counter) == (language is not None)


def test_start_without_the_language_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(policies, "load_identifier", load)
    english = FakeScorer(languages=("en",))
    message = "detection of languages cannot be loaded: .*temporary directory"
    with pytest.raises(ScorerError, match=message), running(scorer=english):
        pass

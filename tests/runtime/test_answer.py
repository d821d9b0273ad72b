"""Answers to prompts: together, one by one, and with prompts that fail."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any

import pytest

from tests.fakes import FailingScorer, FakeEngine, FakeScorer
from tests.runtime.world import PROMPT, SETTINGS, WORDS, Reader, Storyteller, never, story
from tests.worlds import PROMPTS, ReadingScorer, read, scripted_engine
from tide.core.chat import Chat
from tide.core.errors import (
    DeadlineError,
    InputError,
    PromptRefusedError,
    ScorerBrokenError,
    ScorerError,
    UnresolvedError,
)
from tide.core.results import Result, Trial
from tide.detoxifier.sync import Detoxifier, outcomes
from tide.engines.base import Request
from tide.scorers.base import Exchange


def test_prompts_are_written_while_texts_are_scored() -> None:
    """The scorer waits for a second request, and this request for a call of the scorer."""
    begun: list[Request] = []
    further = threading.Event()

    async def watched(request: Request) -> None:
        begun.append(request)
        if len(begun) > 1:
            while not scorer.calls:
                await asyncio.sleep(0.005)
            further.set()

    def score(text: str) -> float:
        assert further.wait(timeout=20)
        return read([text])[0]

    scorer = FakeScorer(score)
    detox = Detoxifier(scripted_engine(max_batch=2, on_write=watched), scorer=scorer)
    assert len(list(detox.map(PROMPTS))) == len(PROMPTS)


def test_as_many_prompts_are_under_way_as_the_engine_runs() -> None:
    under_way: set[int] = set()
    counts: list[int] = []

    async def watched(request: Request) -> None:
        under_way.add(request.priority)
        counts.append(len(under_way))
        await asyncio.sleep(0.001)
        under_way.discard(request.priority)

    engine = scripted_engine(max_batch=4, on_write=watched)
    prompts = [f"{prompt} {n}" for n in range(6) for prompt in PROMPTS]
    results = list(Detoxifier(engine, scorer=ReadingScorer()).map(prompts))
    assert 4 <= max(counts) <= 8
    assert results == list(Detoxifier(scripted_engine(), scorer=ReadingScorer()).map(prompts))


@pytest.mark.parametrize("max_batch", [1, 64])
def test_a_text_the_scorer_cannot_take_fails_its_prompt_alone(max_batch: int) -> None:
    expected = list(
        Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=2).map(PROMPTS)
    )
    poison = expected[2].trials[0].base.text

    def scorer(texts: list[str]) -> list[float]:
        if poison in texts:
            raise ValueError("cannot read this one")
        return read(texts)

    detox = Detoxifier(scripted_engine(max_batch=max_batch), scorer=scorer, num_trials=2)
    results = dict(outcomes(detox, PROMPTS))
    assert isinstance(results.pop(2), ScorerError)
    assert results == {i: result for i, result in enumerate(expected) if i != 2}
    with pytest.raises(ScorerError, match=r"prompt 2: .*cannot read this one"):
        list(detox.map(PROMPTS))
    with pytest.raises(ScorerError, match="cannot read this one"):
        detox(PROMPTS[2])


def test_a_scorer_that_fails_for_a_health_text_too_is_broken() -> None:
    def score(text: str) -> float:
        return read([text])[0] if len(scorer.calls) <= 5 else math.nan

    scorer = FakeScorer(score)
    detox = Detoxifier(scripted_engine(max_batch=1), scorer=scorer)
    results = []
    with pytest.raises(ScorerBrokenError, match="scorer fake"):
        results.extend(outcomes(detox, PROMPTS))
    assert all(isinstance(result, Result) for _, result in results)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (("of", "texts"), "tuple; Detoxifier.map takes several"),
        ([{"role": "user"}], "list; Detoxifier.map takes several, detox.chat messages"),
        (None, "NoneType; Detoxifier.map takes several"),
    ],
)
def test_a_prompt_of_another_type_is_refused(prompt: Any, told: str) -> None:
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer())
    with pytest.raises(InputError, match=f"prompt 1: expected a text, got {told}"):
        list(detox.map([PROMPTS[0], prompt]))
    with pytest.raises(InputError, match="wrap it in a list"):
        detox.map("a prompt")


def test_further_trials_are_those_of_a_run_with_all_of_them() -> None:
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=5)
    whole = [result.trials for result in detox.map(PROMPTS)]
    parts: list[tuple[Trial, ...]] = []
    for _, result in outcomes(detox, PROMPTS, trials=[3, 1]):
        assert isinstance(result, Result)
        parts.append(result.trials)
    assert parts == [(trials[1], trials[3]) for trials in whole]


def test_a_late_search_ends_with_the_best_it_has() -> None:
    begun: list[Request] = []

    async def slow(request: Request) -> None:
        begun.append(request)
        await asyncio.sleep(60 if len(begun) > 3 else 0)

    whole = Detoxifier(scripted_engine(), scorer=ReadingScorer(), strategy="tide")(PROMPTS[2]).best
    assert len(whole.trace) > 3
    engine = scripted_engine(on_write=slow)
    detox = Detoxifier(engine, scorer=ReadingScorer(), strategy="tide", deadline=0.3)
    late = detox(PROMPTS[2]).best
    assert late.trace == whole.trace[: len(late.trace)]
    assert 0 < len(late.trace) <= 3
    assert late.toxicity == min(evaluation.toxicity for evaluation in late.trace)
    assert late.accepted == (late.toxicity < 0.5)
    with pytest.raises(DeadlineError, match="no text was scored"):
        detox(PROMPTS[2])


@pytest.mark.parametrize("strategy", ["backtrack", "random-walk", "resample"])
@pytest.mark.parametrize("accepts", [False, True])
def test_empty_text_is_accepted_only_with_the_flag(strategy: str, accepts: bool) -> None:
    """The model's own empty text is returned as such, and no scorer scores it."""
    engine, scorer = FakeEngine("." if accepts else " "), FakeScorer(lambda text: 0.1)
    detox = Detoxifier(engine, scorer=scorer, strategy=strategy, accept_empty=accepts)
    trial = detox("a prompt").best
    assert (trial.accepted, trial.empty, trial.toxicity) == (accepts, True, 0.0)
    assert (trial.iterations, trial.refused, trial.scorer_calls) == (1, False, 0)
    assert scorer.calls == []
    with detox.stream("a prompt") as stream:
        assert list(stream) == []


@pytest.mark.parametrize("strategy", ["backtrack", "random-walk", "resample"])
@pytest.mark.parametrize("accepts", [False, True])
def test_empty_text_is_a_repair_only_with_the_flag(strategy: str, accepts: bool) -> None:
    scorer = FakeScorer(lambda text: 0.9 if "rude" in text else 0.0)
    settings: dict[str, Any] = {"max_iterations": 3, "temperature": 1.0, "accept_empty": accepts}

    def trial(on_unresolved: str) -> Trial:
        engine = FakeEngine("rude", "", max_batch=1)
        detox = Detoxifier(engine, scorer=scorer, strategy=strategy, **settings)
        return detox("a prompt", on_unresolved=on_unresolved).best

    best = trial("best")
    assert best.accepted is accepts
    assert {evaluation.toxicity for evaluation in best.trace[1:]} == {0.0 if accepts else 1.0}
    if not accepts:
        with pytest.raises(UnresolvedError):
            trial("raise")


STRATEGIES = ["backtrack", "backtrack:pace=sentence", "backtrack:pace=5", "random-walk", "resample"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("text", ["4", " \u4f60"])
def test_short_answer_is_scored_like_any_other(strategy: str, text: str) -> None:
    scorer = FakeScorer(lambda text: 0.03)
    detox = Detoxifier(FakeEngine(text), scorer=scorer, strategy=strategy)
    chat = Chat.said("What is 2 + 2?")
    with detox.stream("a prompt") as stream, detox.stream(chat) as chat_stream:
        assert "".join(stream) == "".join(chat_stream) == text
    for result in (detox("a prompt"), detox(chat), stream.result, chat_stream.result):
        assert (result.text, result.accepted, result.best.empty) == (text, True, False)
        assert (result.best.toxicity, result.best.scorer_calls) == (0.03, 1)
    assert scorer.texts == [text] * 4


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("second", [" no", " ok"])
def test_short_answer_that_fails_is_repaired_or_refused(strategy: str, second: str) -> None:
    def detoxifier() -> Detoxifier:
        engine = FakeEngine(" no", second, max_batch=1)
        scorer = FakeScorer(lambda text: 0.9 if "no" in text else 0.01)
        return Detoxifier(engine, scorer=scorer, strategy=strategy, temperature=1.0)

    expected = " ok" if second == " ok" else ""
    trial = detoxifier()("a prompt", on_unresolved="refuse").best
    assert (trial.text, trial.accepted) == (expected, second == " ok")
    assert (trial.base.text, trial.base.toxicity, trial.base.empty) == (" no", 0.9, False)
    with detoxifier().stream("a prompt") as stream:
        assert "".join(stream) == expected


def test_a_prompt_with_too_many_characters_is_refused_before_it_is_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = scripted_engine(context_length=64)
    tokenized: list[str] = []
    encode = engine._encode
    monkeypatch.setattr(engine, "_encode", lambda text: tokenized.append(text) or encode(text))
    detox = Detoxifier(engine, scorer=ReadingScorer())
    results = dict(outcomes(detox, ["a " * 520_000, PROMPTS[0]]))
    assert "maximum context length is 64 tokens, and these are 1040000 characters" in str(
        results[0]
    )
    assert results[1] == Detoxifier(scripted_engine(), scorer=ReadingScorer())(PROMPTS[0])
    assert tokenized == [PROMPTS[0]]


@pytest.mark.parametrize(
    ("step", "prompt"), [("_encode", "a " * 11_000), ("_render", Chat.said("a question"))]
)
def test_a_prompt_that_is_slow_to_prepare_delays_no_other(
    step: str, prompt: str | Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    engine = scripted_engine(context_length=None)
    prepare = getattr(engine, step)

    def slow(given: str | Chat) -> Any:
        assert given != prompt or ended.wait(20)
        return prepare(given)

    monkeypatch.setattr(engine, step, slow)
    order = []
    detox = Detoxifier(engine, scorer=ReadingScorer())
    for number, result in outcomes(detox, [prompt, PROMPTS[1]], ordered=False):
        assert isinstance(result, Result)
        order.append(number)
        ended.set()
    assert order == [1, 0]


@pytest.mark.parametrize("words_read", [100, WORDS])
def test_a_sentence_that_the_screen_accepts_and_the_scorer_rejects_is_not_shown(
    words_read: int,
) -> None:
    """Neither if the scorer would accept the text with the next sentence."""
    scorer = Reader(
        lambda text: "Good2" in text.split()[-words_read:], pace="word", screen=Reader()
    )
    detox = story(never, scorer, strategy="backtrack")
    shown = ""
    with detox.stream(PROMPT) as stream:
        for text in stream:
            shown += text
            assert shown in scorer.texts
        assert stream.result.accepted
    assert shown == stream.result.text == detox(PROMPT).text
    assert " Good1 " in shown
    assert " Good2m " in shown


def test_the_model_does_not_wait_for_a_sentence_that_the_screen_accepts() -> None:
    written = threading.Event()

    class Writing(Storyteller):
        async def _pause(self, request: Request, written_words: int) -> None:
            if written_words == 2 * WORDS - 1:
                written.set()

    def score(text: str) -> float:
        assert written.wait(20), "the model waits for the score"
        return 0.1

    scorer = FakeScorer(score, pace="word", screen=Reader(quick=True))
    detox = Detoxifier(Writing(never), scorer=scorer, **{**SETTINGS, "strategy": "backtrack"})
    assert detox(PROMPT).accepted


def test_stream_gives_out_a_scored_sentence_before_the_next_one_ends() -> None:
    shown = threading.Event()

    class Waiting(Storyteller):
        """Writes the third sentence when the first one is shown."""

        async def _pause(self, request: Request, written: int) -> None:
            await asyncio.sleep(0.01)  # the scorer, which is called in this loop, has scored
            until = time.monotonic() + 20
            while written == 2 * WORDS and not shown.is_set():
                assert time.monotonic() < until
                await asyncio.sleep(0.01)

    settings = {**SETTINGS, "strategy": "backtrack:pace=sentence"}
    detox = Detoxifier(Waiting(never), scorer=Reader(quick=True), **settings)
    with detox.stream(PROMPT) as stream:
        for _ in stream:
            shown.set()
        assert stream.result.accepted


# Prompts that score above `refuse_prompt_above`

BAD, GOOD = "toxicity 0.95 of its own", "a second one"


def refusing(scorer: FakeScorer) -> Any:
    return Detoxifier(scripted_engine(), scorer=scorer, refuse_prompt_above=0.9)


@pytest.mark.parametrize("prompt", [BAD, Chat.said(BAD)])
def test_a_prompt_above_the_limit_is_refused_before_anything_is_written(prompt: str | Chat) -> None:
    scorer = ReadingScorer()
    detox = refusing(scorer)
    with pytest.raises(PromptRefusedError, match=r"scores 0\.95, above refuse_prompt_above=0\.9"):
        detox(prompt)
    assert detox.engine.requests == []
    assert scorer.calls == [[BAD]]
    assert detox(prompt, refuse_prompt_above=None).text


def test_a_prompt_is_judged_as_an_exchange_without_an_answer() -> None:
    scorer = FakeScorer(lambda exchange: 0.1, reads="exchange")
    detox = refusing(scorer)
    for prompt in (GOOD, Chat.said(GOOD)):
        detox(prompt)
        assert scorer.texts[0] == Exchange(prompt, "")
        assert {exchange.context for exchange in scorer.texts} == {prompt}
        scorer.calls.clear()


def test_a_prompt_at_the_limit_and_a_chat_whose_last_message_passes_are_completed() -> None:
    assert refusing(ReadingScorer())("toxicity 0.9 of its own").text
    texts = [("user", BAD), ("assistant", "no"), ("user", GOOD)]
    messages = [{"role": role, "content": content} for role, content in texts]
    assert refusing(ReadingScorer()).chat(messages).text


def test_without_a_score_of_the_prompt_nothing_is_written() -> None:
    detox = refusing(FailingScorer(RuntimeError("away")))
    with pytest.raises(ScorerError):
        detox(GOOD)
    assert detox.engine.requests == []

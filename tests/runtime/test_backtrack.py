"""Watching and rewinding on a real model: banned words, kept text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fakes import FakeScorer
from tests.runtime.world import PROMPT as SCRIPTED
from tests.runtime.world import Storyteller, never
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Request
from tide.engines.local.engine import TransformersEngine
from tide.scorers.base import Attributed
from tide.scorers.wrappers import ConfirmScorer

PROMPT = "My neighbour told me that the"
SETTINGS: dict[str, Any] = {
    "strategy": "backtrack",
    "toxicity_threshold": 0.5,
    "temperature": 0.0,
    "min_new_tokens": 20,
}


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    return TransformersEngine("pocket")


def words_of(engine: TransformersEngine, prompt: str = PROMPT) -> list[str]:
    """The words that the model writes if nothing fails."""
    return Detoxifier(engine, scorer=FakeScorer(), **SETTINGS)(prompt).text.split()


def score_without(word: str, text: str) -> float:
    return 0.9 if word.lower() in text.lower().split() else 0.05


def refusing(word: str, *, quick: bool = False) -> FakeScorer:
    """Scores texts that hold the word 0.9, and others 0.05."""
    return FakeScorer(lambda text: score_without(word, text), pace="word", quick=quick)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_blamed_word_does_not_come_again(
    engine: TransformersEngine, temperature: float
) -> None:
    words = words_of(engine)
    scorer = refusing(words[2])
    detox = Detoxifier(engine, scorer=scorer, **{**SETTINGS, "temperature": temperature})
    result = detox(PROMPT)
    assert result.accepted
    assert words[2].lower() not in result.text.lower().split()
    if temperature == 0:
        assert [evaluation.role for evaluation in result.trace[:2]] == ["initial", "continuation"]
        assert result.text.split()[:1] == words[:1]
        assert result.trace[1].kept_tokens > 0
    assert result.text in scorer.texts
    assert detox(PROMPT) == result


def test_a_text_that_is_found_to_pass_before_the_blamed_word_has_its_attributes(
    engine: TransformersEngine,
) -> None:
    word = words_of(engine)[11]

    def score_attributes(texts: Any) -> Attributed:
        values = np.array([score_without(word, text) for text in texts])
        return Attributed(values, {"length": values})

    scorer = FakeScorer(attributes=("length",), score_attributes=score_attributes, pace="5")
    settings = {**SETTINGS, "strategy": "backtrack:lag=0,blame=1", "window_tokens": 4}
    trial = Detoxifier(engine, scorer=scorer, **settings)(PROMPT).best
    assert trial.accepted
    assert len(trial.trace) > 1
    assert trial.returned.attributes.keys() == {"length"}


def test_what_was_kept_is_not_read_again(engine: TransformersEngine) -> None:
    text = "The library opens at nine. " * 16 + PROMPT
    detox = Detoxifier(engine, scorer=refusing(words_of(engine, text)[4]), **SETTINGS)
    before = engine.forward_tokens
    trial = detox(text).best
    (prompt,) = engine.tokenize([text])
    rewinds = len(trial.trace) - 1
    assert rewinds >= 1
    assert trial.read_tokens == len(prompt) + rewinds
    assert trial.generated_tokens < 2 * trial.returned.num_tokens
    # The model reads the tokens that it writes. Before each rewind, at the end, and after another
    # test, it may run ahead, but never by more than an answer.
    ahead = (rewinds + 2) * 20
    assert ahead < rewinds * len(prompt)
    assert engine.forward_tokens - before <= trial.read_tokens + trial.generated_tokens + ahead


def test_the_model_does_not_run_ahead_of_a_quick_scorer(engine: TransformersEngine) -> None:
    word = words_of(engine)[4]
    before = engine.forward_tokens
    trial = Detoxifier(engine, scorer=refusing(word, quick=True), **SETTINGS)(PROMPT).best
    assert len(trial.trace) > 1
    # The model reads all tokens except the answer's last.
    assert engine.forward_tokens - before == trial.read_tokens + trial.generated_tokens - 1
    assert trial == Detoxifier(engine, scorer=refusing(word), **SETTINGS)(PROMPT).best


def test_search_counts_the_prompt_for_each_evaluation(engine: TransformersEngine) -> None:
    (prompt,) = engine.tokenize([PROMPT])
    settings: dict[str, Any] = {"strategy": "tide", "max_iterations": 2, "max_new_tokens": 4}
    before = engine.forward_tokens
    trial = Detoxifier(engine, scorer=FakeScorer(lambda text: 0.9), **settings)(PROMPT).best
    assert trial.evaluations > 5
    assert trial.forward_tokens > trial.evaluations * len(prompt)
    assert engine.forward_tokens - before <= trial.forward_tokens


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("stop", ["\n\nUser:", " but fine\n\n"])
def test_a_stop_string_after_a_word_that_the_screen_rejects(stop: str, in_stream: bool) -> None:
    """The scorer then decides on the last place, which it had left undecided."""
    story = [" this", " is", " odd", " but", " fine", "\n", "\n", "User", ":", " hi"]

    class Story(Storyteller):
        def _story(self, request: Request) -> tuple[list[int], str]:
            ids = [self._id(word) for word in story[len(request.prompt) - len(SCRIPTED.split()) :]]
            return ids[: request.sampling.max_new_tokens], "stop"

    screen = FakeScorer(lambda text: 0.9 if "odd" in text else 0.0, pace="word")
    scorer = ConfirmScorer([screen, FakeScorer(pace="word")])
    settings: dict[str, Any] = {"strategy": "backtrack", "max_new_tokens": 30, "stop": (stop,)}
    engine = Story(never, context_length=None)
    with engine, Detoxifier(engine, scorer=scorer, temperature=0, **settings) as detox:
        if in_stream:
            stream = detox.stream(SCRIPTED)
            text = "".join(stream)
            assert stream.result.accepted
        else:
            text = detox(SCRIPTED).text
    assert text == "".join(story).partition(stop)[0]

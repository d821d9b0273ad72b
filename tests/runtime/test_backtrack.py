"""Watching and rewinding on a real model: banned words, kept text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.world import PROMPT as SCRIPTED
from tests.runtime.world import Storyteller, never
from tide.detoxifier.sync import Detoxifier
from tide.engines import Request
from tide.engines.local.engine import TransformersEngine
from tide.scorers import Attributed, CallableScorer
from tide.scorers.wrappers import ConfirmScorer

PROMPT = "My neighbour told me that the"
LONG: Any = {"min_new_tokens": 20}


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    return TransformersEngine("pocket")


def first_words(engine: TransformersEngine, count: int, prompt: str = PROMPT) -> str:
    """The first words that the model writes if nothing fails."""
    text = Detoxifier(engine, scorer=lambda texts: [0.0] * len(texts), temperature=0, **LONG)(
        prompt
    ).text
    return " ".join(text.split()[:count])


def refuse_all(texts: list[str]) -> list[float]:
    return [0.9] * len(texts)


class Refusing:
    """Scores texts that hold one of these words 0.9, and others 0.05."""

    pace, quick = "word", False

    def __init__(self, *words: str) -> None:
        self.words = {word.lower() for word in words}
        self.seen: list[str] = []

    def __call__(self, texts: list[str]) -> list[float]:
        self.seen += texts
        return [0.9 if self.words & set(text.lower().split()) else 0.05 for text in texts]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_blamed_word_does_not_come_again(
    engine: TransformersEngine, temperature: float
) -> None:
    words = first_words(engine, 4).split()
    scorer = Refusing(words[2])
    settings: dict[str, Any] = {"toxicity_threshold": 0.5, "temperature": temperature, **LONG}
    detox = Detoxifier(engine, scorer=scorer, strategy="backtrack", **settings)
    result = detox(PROMPT)
    assert result.accepted
    assert words[2].lower() not in result.text.lower().split()
    if temperature == 0:
        assert [evaluation.role for evaluation in result.trace[:2]] == ["initial", "continuation"]
        assert result.text.split()[:1] == words[:1]
        assert result.trace[1].kept_tokens > 0
    assert result.text in scorer.seen
    assert detox(PROMPT) == result


class Measuring(Refusing):
    """`Refusing` with an attribute, the length of a text."""

    name, threshold, pace = "measuring", 0.5, "5"
    attributes = ("length",)

    def score_attributes(self, texts: list[str]) -> Attributed:
        lengths = np.array([len(text) / 1e4 for text in texts])
        return Attributed(np.array(self(texts)), {"length": lengths})

    def score(self, texts: list[str]) -> NDArray[np.float64]:
        return np.array(self(texts))

    def close(self) -> None: ...


def test_a_text_that_is_found_to_pass_before_the_blamed_word_has_its_attributes(
    engine: TransformersEngine,
) -> None:
    words = first_words(engine, 14).split()
    settings: dict[str, Any] = {"window_tokens": 4, "temperature": 0, **LONG}
    scorer = Measuring(words[11])
    detox = Detoxifier(engine, scorer=scorer, strategy="backtrack:lag=0,blame=1", **settings)
    trial = detox(PROMPT).best
    assert trial.accepted
    assert len(trial.trace) > 1
    assert trial.returned.attributes.keys() == {"length"}


def test_what_was_kept_is_not_read_again(engine: TransformersEngine) -> None:
    text = "The library opens at nine. " * 16 + PROMPT
    scorer = Refusing(first_words(engine, 6, text).split()[4])
    settings: dict[str, Any] = {"toxicity_threshold": 0.5, "temperature": 0, **LONG}
    detox = Detoxifier(engine, scorer=scorer, strategy="backtrack", **settings)
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
    words = first_words(engine, 6).split()
    settings: dict[str, Any] = {"toxicity_threshold": 0.5, "temperature": 0, **LONG}
    results = []
    for is_quick in (True, False):
        scorer = Refusing(words[4])
        scorer.quick = is_quick
        detox = Detoxifier(engine, scorer=scorer, strategy="backtrack", **settings)
        before = engine.forward_tokens
        trial = detox(PROMPT).best
        assert len(trial.trace) > 1
        results.append(trial)
        if is_quick:  # the model reads all tokens except the answer's last
            read = trial.read_tokens + trial.generated_tokens - 1
            assert engine.forward_tokens - before == read
    assert results[0] == results[1]


def test_search_counts_the_prompt_for_each_evaluation(engine: TransformersEngine) -> None:
    (prompt,) = engine.tokenize([PROMPT])
    options: dict[str, Any] = {"strategy": "tide", "preset": "relative", "max_iterations": 2}
    options |= {"max_new_tokens": 4, "scorer": refuse_all}
    before = engine.forward_tokens
    trial = Detoxifier(engine, **options)(PROMPT).best
    assert trial.evaluations > 5
    assert trial.forward_tokens > trial.evaluations * len(prompt)
    assert engine.forward_tokens - before <= trial.forward_tokens


def test_a_prompt_without_movable_rows_stays_unresolved(engine: TransformersEngine) -> None:
    detox = Detoxifier(engine, scorer=refuse_all, max_new_tokens=4)
    assert not detox("<|endoftext|>").accepted


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("stop", ["\n\nUser:", " but fine\n\n"])
def test_a_stop_string_after_a_word_that_the_screen_rejects(stop: str, in_stream: bool) -> None:
    """The scorer then decides on the last place, which it had left undecided."""
    story = [" this", " is", " odd", " but", " fine", "\n", "\n", "User", ":", " hi"]

    class Story(Storyteller):
        def _story(self, request: Request) -> tuple[list[int], str]:
            ids = [self._id(word) for word in story[len(request.prompt) - len(SCRIPTED.split()) :]]
            return ids[: request.sampling.max_new_tokens], "stop"

    def screen(texts: list[str]) -> list[float]:
        return [0.9 if "odd" in text else 0.0 for text in texts]

    def second(texts: list[str]) -> list[float]:
        return [0.0] * len(texts)

    screen.pace = second.pace = "word"  # type: ignore[attr-defined]
    scorer = ConfirmScorer([CallableScorer(screen), CallableScorer(second)])
    engine = Story(never, context_length=None)
    settings: dict[str, Any] = {"strategy": "backtrack", "max_new_tokens": 30, "stop": (stop,)}
    with Detoxifier(engine, scorer=scorer, temperature=0, **settings) as detox:
        if in_stream:
            stream = detox.stream(SCRIPTED)
            text = "".join(stream)
            assert stream.result.accepted
        else:
            text = detox(SCRIPTED).text
    assert text == "".join(story).partition(stop)[0]

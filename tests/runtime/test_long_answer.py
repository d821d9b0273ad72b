"""Long answers: scored while they are written and rewound, or searched as a whole."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes import FakeScorer
from tests.runtime.world import (
    ALL_GOOD,
    PROMPT,
    REPAIRED,
    SETTINGS,
    WORDS,
    Reader,
    Storyteller,
    never,
    second,
    story,
    text,
    third,
)
from tide.core.errors import DeadlineError
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Request


def test_a_clean_answer_is_written_once_and_scored_by_sentence() -> None:
    scorer = Reader()
    trial = story(never, scorer)(PROMPT).best
    assert (trial.accepted, trial.text) == (True, ALL_GOOD)
    assert trial.generated_tokens == trial.returned.num_tokens == 48
    assert (trial.evaluations, trial.iterations) == (1, 1)
    assert (trial.returned.finish_reason, len(trial.trace)) == ("stop", 1)
    # Each sentence is scored after all sentences before it; the last text is the whole answer.
    assert scorer.texts == [text(*(f"Good{i}" for i in range(n))) for n in range(1, 7)]
    assert trial.scorer_calls == 6
    assert trial.toxicity == 0.1


def test_a_sentence_that_fails_is_rewound_to_its_blamed_word() -> None:
    trial = story(third)(PROMPT).best
    assert (trial.accepted, trial.text) == (True, REPAIRED)
    assert trial.base.text == text("Good0", "Good1", "Bad2")
    assert (trial.base.toxicity, trial.toxicity) == (0.9, 0.1)
    assert [evaluation.role for evaluation in trial.trace] == ["initial", "continuation"]
    assert trial.returned.kept_tokens == 2 * WORDS
    assert trial.returned.round == trial.rounds == 2


def test_the_model_goes_on_from_the_repaired_text() -> None:
    trial = story(second)(PROMPT).best
    assert trial.accepted
    assert trial.text == text("Good0", "Good1m", "Good2", "Good3", "Good4", "Good5")


def test_answer_ends_after_as_many_rewinds_as_allowed() -> None:
    """A loop without an end would fail, too: the scorer takes no more texts."""

    def score(text: str) -> float:
        assert len(scorer.calls) < 20
        return 0.9

    scorer = FakeScorer(score)
    trial = story(never, scorer, strategy="backtrack:pace=word,lag=0,least=0,holds=3")(PROMPT).best
    assert (trial.accepted, len(trial.trace)) == (False, 4)


def test_long_answers_are_scored_in_windows_near_and_far() -> None:
    scorer = Reader()
    engine = Storyteller(never, sentences=30, context_length=400)
    detox = Detoxifier(
        engine, scorer=scorer, **{**SETTINGS, "max_new_tokens": 250, "window_tokens": 30}
    )
    trial = detox(PROMPT).best
    assert trial.accepted
    assert trial.returned.num_tokens == 240
    sizes = [len(scored.split()) for scored in scorer.texts]
    assert max(sizes) == 3 * 30 + WORDS
    last = [scored for scored in scorer.texts if trial.text.endswith(scored)]
    assert sorted(len(scored.split()) for scored in last) == [30 + WORDS, 3 * 30 + WORDS]


def test_a_wide_window_that_fails_fails_the_answer() -> None:
    """Each part passes after little text; all together do not."""
    scorer = Reader(lambda text: "Good0" in text and "Good2 " in f"{text} ")
    trial = story(never, scorer, window_tokens=8)(PROMPT).best
    assert trial.accepted
    assert "Good2m" in trial.text


@pytest.mark.parametrize("stop", ["w6 end. Good2", " w3"])
@pytest.mark.parametrize("pace", ["word", "5", "sentence", "whole"])
def test_an_answer_ends_before_a_stop_string(stop: str, pace: str) -> None:
    trial = story(never, stop=stop, strategy=f"backtrack:pace={pace}")(PROMPT).best
    assert trial.text == ALL_GOOD[: ALL_GOOD.index(stop)]
    assert trial.returned.finish_reason == "stop"


def test_no_beginning_of_a_stop_string_is_given_out() -> None:
    """The repair completes the stop string, so the answer ends before it."""
    detox = story(third, strategy="backtrack:pace=8,lag=0", stop=" end. Good2m")
    with detox.stream(PROMPT) as stream:
        shown = "".join(stream)
        assert stream.result.accepted
    assert shown == stream.result.text == text("Good0", "Good1").removesuffix(" end.")


def test_a_deadline_ends_an_answer_with_what_was_accepted() -> None:
    class Slow(Storyteller):
        pauses_at = 3 * WORDS

        async def _pause(self, request: Request, written: int) -> None:
            await asyncio.sleep(60 if written >= self.pauses_at else 0)

    engine = Slow(never)
    trial = Detoxifier(engine, scorer=Reader(), **SETTINGS, deadline=0.3)(PROMPT).best
    assert trial.accepted
    assert ALL_GOOD.startswith(trial.text)
    assert 0 < len(trial.text) < len(ALL_GOOD)
    assert trial.returned.finish_reason == "length"
    engine.pauses_at = 0
    with pytest.raises(DeadlineError, match=r"no text was scored within 0\.3 s"):
        Detoxifier(engine, scorer=Reader(), **SETTINGS, deadline=0.3)(PROMPT)


def test_banned_word_stays_away_for_the_rest_of_an_answer() -> None:
    engine = Storyteller(lambda number, changed, words: number in (1, 4) and not changed)
    trial = Detoxifier(engine, scorer=Reader(), **SETTINGS)(PROMPT).best
    assert trial.text == text("Good0", "Good1m", "Good2", "Good3", "Good4m", "Good5")
    bans = [set(request.banned_token_ids) for request in engine.requests]
    assert bans[0] < bans[1] < bans[2]

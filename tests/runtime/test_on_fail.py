"""What is done with text that fails: repair it, end the answer before it, or flag it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.fakes import FakeScorer
from tests.runtime.test_acceptance import LIMITS, Sides, threatening
from tests.runtime.world import (
    PROMPT,
    SETTINGS,
    Storyteller,
    never,
    sentence,
    story,
    text,
    third,
)
from tide.core.errors import ScorerError
from tide.core.results import Trial
from tide.core.settings import Settings
from tide.runtime.acceptance import Acceptance
from tide.scorers.base import Attributed, TextScore
from tide.server.policies import ServedDetoxifier


def first(number: int, changed: bool, words: Sequence[str | None]) -> bool:
    return number == 0 and not changed


def streamed(bad: Any, scorer: Any = None, **settings: Any) -> tuple[str, Trial]:
    with story(bad, scorer, **settings).stream(PROMPT) as stream:
        shown = "".join(stream)
        return shown, stream.result.best


def test_block_ends_the_answer_before_the_text_that_fails() -> None:
    shown, trial = streamed(third, on_fail="block")
    assert trial.accepted
    assert shown == trial.text == story(third, on_fail="block")(PROMPT).text
    assert trial.text == text("Good0", "Good1")
    assert trial.returned.finish_reason == "content_filter"
    assert (trial.repairs, trial.failed) == (0, ["toxicity"])


@pytest.mark.parametrize("strategy", ["backtrack:pace=sentence,lag=0", "resample:n=4", "tide"])
def test_block_shows_nothing_if_nothing_passed(strategy: str) -> None:
    settings = {"strategy": strategy, "on_fail": "block", "on_unresolved": "best"}
    shown, trial = streamed(first, **settings)
    assert (shown, trial.text, trial.refused, trial.accepted) == ("", "", True, False)
    whole = story(first, **settings)(PROMPT).best
    assert (whole.text, whole.refused, len(whole.trace)) == ("", True, 1)


@pytest.mark.parametrize("strategy", ["backtrack:pace=sentence,lag=0", "resample:n=4", "tide"])
def test_flag_gives_out_the_models_text_and_names_what_it_fails(strategy: str) -> None:
    shown, trial = streamed(third, strategy=strategy, on_fail="flag")
    assert shown == trial.text
    assert sentence("Bad2") in shown
    assert (trial.accepted, trial.flagged, trial.repairs) == (True, ("toxicity",), 0)
    clean = story(never, strategy=strategy, on_fail="flag")(PROMPT).best
    assert (clean.accepted, clean.flagged) == (True, ())
    assert len(trial.trace) == 1


def test_flag_gives_out_nothing_that_the_scorer_failed_to_score() -> None:
    def broken(texts: list[str]) -> list[float]:
        raise ValueError("out of order")

    with pytest.raises(ScorerError):
        story(third, broken, on_fail="flag")(PROMPT)

    class Unknown(Sides):
        def score_attributes(self, texts: Sequence[str]) -> Attributed:
            scores = super().score_attributes(texts)
            columns = {**scores.attributes, "threat": np.full(len(texts), math.nan)}
            return Attributed(scores.values, columns)

    limits: dict[str, Any] = {"thresholds": LIMITS, "on_unresolved": "refuse"}
    trial = story(third, Unknown(0.0, 0.0), on_fail="flag", **limits)(PROMPT).best
    assert (trial.accepted, trial.text) == (False, "")


def test_attributes_have_actions_of_their_own() -> None:
    actions = {"thresholds": LIMITS, "on_fail": "repair,threat=block"}
    blocked = story(threatening, Sides(0.2, 0.0), **actions)(PROMPT).best
    assert blocked.text == text("Good0", "Good1")
    actions = {"thresholds": LIMITS, "on_fail": "repair,profanity=block"}
    repaired = story(threatening, Sides(0.2, 0.0), **actions)(PROMPT).best
    assert (repaired.accepted, repaired.repairs) == (True, 1)
    actions = {"thresholds": LIMITS, "on_fail": "block,threat=flag"}
    flagged = story(threatening, Sides(0.2, 0.0), **actions)(PROMPT).best
    assert (flagged.accepted, flagged.flagged) == (True, ("threat",))
    assert "Bad2" in flagged.text


def test_of_several_limits_the_strictest_action_counts() -> None:
    settings = Settings(
        thresholds={"threat": 0.1, "profanity": 0.1}, on_fail="flag,threat=block,profanity=repair"
    )
    assert settings.action(["toxicity"]) == "flag"
    assert settings.action(["toxicity", "profanity"]) == "repair"
    assert settings.action(["toxicity", "profanity", "threat"]) == "block"
    both = TextScore(0.9, {"threat": 0.2, "profanity": 0.2})
    assert not Acceptance(settings).passes(both)
    assert Acceptance(settings).passes(TextScore(0.9, {"threat": 0.0, "profanity": 0.0}))


def test_on_fail_is_read_from_text() -> None:
    assert Settings().action(["toxicity"]) == "repair"
    assert Settings(on_fail="block").on_fail == {"default": "block"}
    both = Settings(on_fail=["block", "threat=flag"], thresholds={"threat": 0.1})
    assert both.on_fail == {"default": "block", "threat": "flag"}
    with pytest.raises(ValueError, match=r"threat has no limit; add thresholds: threat=0\.1"):
        Settings(on_fail="threat=block")
    for wrong in ("", "pass", "threat=", {"default": "ignore"}):
        with pytest.raises(ValueError, match="on_fail"):
            Settings(on_fail=wrong, thresholds={"threat": 0.1})


@pytest.mark.parametrize(
    ("on_fail", "suspicious", "word"),
    [("repair", "w4", 4), ("repair", "w2", 2), ("block", "w2", 0)],
)
def test_forecast_is_of_what_is_done(on_fail: str, suspicious: str, word: int) -> None:
    """A repair begins at the word with which the score rises, half of the way to its limit; a
    blocked answer ends before the sentence that fails.
    """

    def score(text: str) -> float:
        if "w4" in text:
            return 0.9
        return 0.3 if suspicious in text else 0.1

    scorer = FakeScorer(score)

    async def forecast() -> int | None:
        draft = await detox.draft(PROMPT, None)
        return (await detox.forecast(PROMPT, draft)).word

    with ServedDetoxifier(Storyteller(never), scorer=scorer, **SETTINGS, on_fail=on_fail) as detox:
        assert asyncio.run(forecast()) == word

"""When a text is accepted, by its score and limits of attributes, and what is done if it fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.fakes import FailingScorer, FakeScorer
from tests.runtime.world import (
    PROMPT,
    REPAIRED,
    SETTINGS,
    Storyteller,
    never,
    sentence,
    story,
    text,
    third,
    third_always,
)
from tide.core.errors import InputError, ScorerError
from tide.core.results import Trial
from tide.core.settings import Settings
from tide.runtime.acceptance import Acceptance
from tide.scorers.base import FALLBACK, Attributed, AttributedScorer, TextScore
from tide.scorers.wrappers import ConfirmScorer, MaxScorer, MeanScorer, WindowedScorer
from tide.server.policies import ServedDetoxifier

NAMES = ("threat", "profanity", "insult")
LIMITS = {"threat": 0.1, "profanity": 0.9}


class Sides(AttributedScorer):
    """Bad sentences are threats; texts of the second sentence are profane; others are neither."""

    name, attributes, pace = "sides", NAMES, "sentence"

    def __init__(self, threat: float, profanity: float, highest_of: tuple[str, ...] = ()) -> None:
        self._threat, self._profanity, self.highest_of = threat, profanity, highest_of

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        threat = np.array([self._threat if "Bad" in text else 0.0 for text in texts])
        profanity = np.array([self._profanity if "Good1" in text else 0.0 for text in texts])
        columns = {"threat": threat, "profanity": profanity, "insult": np.zeros(len(texts))}
        return Attributed(np.fmax(threat, profanity), columns)


def acceptance(*highest_of: str, thresholds: Any = LIMITS, threshold: float = 0.5) -> Acceptance:
    settings = Settings(toxicity_threshold=threshold, thresholds=thresholds)
    return Acceptance(settings, highest_of)


RUDE = {"threat": 0.0, "profanity": 0.8, "insult": 0.2}


@pytest.mark.parametrize(
    ("highest_of", "value", "attributes", "failed"),
    [
        # A limit beside a separate score adds a condition.
        ((), 0.4, {"threat": 0.05, "profanity": 0.8}, ()),
        ((), 0.4, {"threat": 0.1, "profanity": 0.8}, ("threat",)),
        ((), 0.5, {"threat": 0.0, "profanity": 0.8}, ("toxicity",)),
        # In the highest score, the limit takes the place of its attribute.
        (NAMES, 0.8, RUDE, ()),
        (NAMES, 0.95, RUDE | {"profanity": 0.95}, ("profanity",)),
        (NAMES, 0.8, RUDE | {"insult": 0.6}, ("toxicity",)),
        (NAMES, 0.8, RUDE | {"threat": 0.3}, ("threat",)),
        # Without the other attributes, the score bounds them.
        (NAMES, 0.8, {"threat": 0.0, "profanity": 0.8}, ("toxicity",)),
        # An unknown attribute fails its limit.
        ((), 0.0, {"profanity": 0.0}, ("threat",)),
        (("threat", "profanity"), 0.0, {"profanity": 0.0}, ("threat",)),
    ],
)
def test_limits_that_a_text_fails(
    highest_of: tuple[str, ...], value: float, attributes: dict[str, float], failed: tuple[str, ...]
) -> None:
    rule, score = acceptance(*highest_of), TextScore(value, attributes)
    assert rule.failed(score) == failed
    assert rule.passes(score) is (failed == ())
    assert rule.passes(TextScore(0.0, unscored=True))


def test_the_scaled_score_fails_exactly_at_a_limit() -> None:
    for threshold in (0.1, 0.2, 0.3, 0.5, 0.7):
        for limit in (0.05, 0.1, 0.3, 0.9, 1.0):
            rule = acceptance(thresholds={"threat": limit}, threshold=threshold)
            below = math.nextafter(limit, 0)
            assert not rule.passes(TextScore(0.0, {"threat": limit}))
            assert rule.passes(TextScore(0.0, {"threat": below}))
            assert 0 <= rule.scaled(TextScore(0.0, {"threat": below})) < threshold


def test_the_worst_text_is_the_one_that_fails() -> None:
    passes = TextScore(0.7, {"threat": 0.0, "profanity": 0.7})
    fails = TextScore(0.2, {"threat": 0.2, "profanity": 0.0})
    assert acceptance("threat", "profanity").worst([passes, fails]) == fails


def streamed(bad: Any, scorer: Any = None, **settings: Any) -> tuple[str, Trial]:
    with story(bad, scorer, **settings).stream(PROMPT) as stream:
        shown = "".join(stream)
        return shown, stream.result.best


AS_WRITTEN = text("Good0", "Good1", "Bad2", "Good3", "Good4", "Good5")


@pytest.mark.parametrize(
    ("on_fail", "expected", "repairs", "flagged"),
    [
        ("repair", REPAIRED, 1, ()),
        ("repair,profanity=block", REPAIRED, 1, ()),
        ("repair,threat=block", text("Good0", "Good1"), 0, ()),
        ("block,threat=flag", AS_WRITTEN, 0, ("threat",)),
    ],
)
def test_an_attribute_below_the_threshold_of_the_score_fails_its_own_limit(
    on_fail: str, expected: str, repairs: int, flagged: tuple[str, ...]
) -> None:
    plain = story(third, Sides(0.2, 0.0))(PROMPT).best
    assert (plain.accepted, plain.text, plain.failed) == (True, AS_WRITTEN, [])
    shown, trial = streamed(third, Sides(0.2, 0.0), thresholds=LIMITS, on_fail=on_fail)
    assert trial == story(third, Sides(0.2, 0.0), thresholds=LIMITS, on_fail=on_fail)(PROMPT).best
    assert (trial.accepted, trial.failed) == (True, ["threat"])
    assert shown == trial.text == expected
    assert (trial.repairs, trial.flagged) == (repairs, flagged)
    assert trial.trace[0].toxicity == 0.2
    is_cut = len(expected) < len(AS_WRITTEN)
    assert trial.returned.finish_reason == ("content_filter" if is_cut else "stop")


@pytest.mark.parametrize(("highest_of", "accepted"), [((), False), (NAMES, True)])
def test_profanity_passes_by_its_own_limit_if_the_score_is_the_highest(
    highest_of: tuple[str, ...], accepted: bool
) -> None:
    scorer = Sides(0.0, 0.8, highest_of)
    trial = story(third, scorer, thresholds=LIMITS)(PROMPT).best
    assert (trial.accepted and len(trial.trace) == 1) is accepted
    assert trial.failed == ([] if accepted else ["toxicity"])


def test_thresholds_name_attributes_of_the_scorer() -> None:
    with pytest.raises(InputError, match="no attribute 'obscene'; it has threat, profanity, ins"):
        story(third, Sides(0.0, 0.0), thresholds={"obscene": 0.5})
    with pytest.raises(InputError, match="it has no attributes"):
        story(third, thresholds=LIMITS)
    detox = story(third, Sides(0.0, 0.0))
    with pytest.raises(InputError, match="thresholds"):
        detox(PROMPT, thresholds={"obscene": 0.5})


def test_thresholds_are_read_from_text() -> None:
    expected = {"threat": 0.1, "hate/threatening": 0.9}
    for value in ("threat=0.1, hate/threatening=0.9", ["threat=0.1", "hate/threatening=0.9"]):
        assert Settings(thresholds=value).thresholds == expected
    for wrong in ("threat", "=0.1", "threat=", "threat=2", "threat=nan", {"threat": 0.0}):
        with pytest.raises(ValueError, match="thresholds"):
            Settings(thresholds=wrong)


def test_wrappers_keep_what_the_score_is_the_highest_of() -> None:
    sides, part = Sides(0.0, 0.0, NAMES), Sides(0.0, 0.0, ("threat",))
    assert WindowedScorer(sides).highest_of == NAMES
    assert MaxScorer([sides, sides]).highest_of == NAMES
    assert MaxScorer([part, part]).highest_of == ("threat",)
    for other in (MaxScorer([sides, part]), MaxScorer([sides, Sides(0.0, 0.0)])):
        assert other.highest_of == ()
    assert MeanScorer([sides, sides]).highest_of == ()
    assert ConfirmScorer([part, sides]).highest_of == NAMES


# What is done with text that fails


def first(number: int, changed: bool, words: Sequence[str | None]) -> bool:
    return number == 0 and not changed


@pytest.mark.parametrize("strategy", ["backtrack:pace=sentence,lag=0", "resample", "tide"])
def test_block_shows_nothing_if_nothing_passed(strategy: str) -> None:
    settings = {"strategy": strategy, "on_fail": "block", "on_unresolved": "best"}
    shown, trial = streamed(first, **settings)
    assert (shown, trial.text, trial.refused, trial.accepted) == ("", "", True, False)
    whole = story(first, **settings)(PROMPT).best
    assert (whole.text, whole.refused, len(whole.trace)) == ("", True, 1)


@pytest.mark.parametrize("strategy", ["backtrack:pace=sentence,lag=0", "resample", "tide"])
def test_flag_gives_out_the_models_text_and_names_what_it_fails(strategy: str) -> None:
    shown, trial = streamed(third, strategy=strategy, on_fail="flag")
    assert shown == trial.text
    assert sentence("Bad2") in shown
    assert (trial.accepted, trial.flagged, trial.repairs) == (True, ("toxicity",), 0)
    clean = story(never, strategy=strategy, on_fail="flag")(PROMPT).best
    assert (clean.accepted, clean.flagged) == (True, ())
    assert len(trial.trace) == 1


def test_flag_gives_out_nothing_that_the_scorer_failed_to_score() -> None:
    with pytest.raises(ScorerError):
        story(third, FailingScorer(ValueError("out of order")), on_fail="flag")(PROMPT)

    limits: dict[str, Any] = {"thresholds": LIMITS, "on_unresolved": "refuse"}
    unknown = Sides(math.nan, 0.0)
    trial = story(third_always, unknown, on_fail="flag", **limits)(PROMPT).best
    assert (trial.accepted, trial.text) == (False, "")


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
    ("on_fail", "passes"), [("flag", True), ("flag,threat=block", False), ("block", False)]
)
def test_a_second_scorer_s_verdict_is_only_flagged_if_every_limit_is(
    on_fail: str, passes: bool
) -> None:
    settings = Settings(on_fail=on_fail, thresholds={"threat": 0.1})
    verdict = TextScore(1.0, {FALLBACK: 1.0})
    assert Acceptance(settings, ("threat",)).passes(verdict) is passes


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

    async def forecast() -> int:
        draft = await detox.draft(PROMPT, None)
        character = (await detox.forecast(PROMPT, draft)).character
        return len(draft.text[:character].split())

    with ServedDetoxifier(Storyteller(never), scorer=scorer, **SETTINGS, on_fail=on_fail) as detox:
        assert asyncio.run(forecast()) == word

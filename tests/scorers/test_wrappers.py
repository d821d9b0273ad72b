"""Ensembles, windows, fallbacks and the cache of scorers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FakeScorer, attribute, hundredths
from tide.core.chat import Chat
from tide.core.concurrency import ABORT
from tide.core.errors import (
    InputError,
    ScorerBrokenError,
    ScorerError,
    ScorerRefusedError,
    ScorerUnavailableError,
)
from tide.core.settings import Settings
from tide.core.text import splits_character
from tide.runtime.acceptance import Acceptance
from tide.scorers import load_scorer, wrappers
from tide.scorers.base import (
    Attributed,
    AttributedScorer,
    CallableScorer,
    Exchange,
    Scorer,
    score_texts,
)
from tide.scorers.words import NeverScorer
from tide.scorers.wrappers import (
    CachedScorer,
    ConfirmScorer,
    FallbackScorer,
    MaxScorer,
    MeanScorer,
    WindowedScorer,
    split_words,
)


class TwoSides(AttributedScorer):
    """Scores threat by length and insult by capitals; the larger is the score.

    error: raised if it is set. asked: number of calls.
    """

    name = "two@1"
    attributes: tuple[str, ...] = ("threat", "insult")
    asked = 0
    error: Exception | None = None

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        self.asked += 1
        if self.error is not None:
            raise self.error
        threat = np.array(list(map(hundredths, texts)))
        insult = np.array([sum(map(str.isupper, text)) / max(1, len(text)) for text in texts])
        return Attributed(np.maximum(threat, insult), {"threat": threat, "insult": insult})


def constant(value: float, threshold: float = 0.5) -> FakeScorer:
    return FakeScorer(lambda text: value, name=f"constant@{value}", threshold=threshold)


def test_max_and_mean() -> None:
    scorers = [constant(0.2), constant(0.9, threshold=0.3)]
    highest, mean = MaxScorer(scorers), MeanScorer(scorers)
    assert score_texts(highest, ["one text", "two texts"]).values.tolist() == [0.9, 0.9]
    assert mean.score(["one text"]) == pytest.approx([0.55])
    assert highest.name == "max:constant@0.2,constant@0.9"
    assert (highest.threshold, mean.threshold) == (0.3, pytest.approx(0.4))
    assert highest.score([]).shape == mean.score([]).shape == (0,)


def exchange_scorer() -> FakeScorer:
    """Scores the number of thousands of characters of the context."""
    return FakeScorer(
        lambda exchange: len(str(exchange.context)) / 1000, name="exchanges", reads="exchange"
    )


PAIRS = [Exchange("x" * 200, "Yes."), Exchange("x" * 400, "Yes."), Exchange("x" * 200, "Yes.")]


@pytest.mark.parametrize("ensemble", [MaxScorer, MeanScorer])
def test_ensemble_hands_each_member_what_it_reads(ensemble: Any) -> None:
    texts, exchanges = FakeScorer(), exchange_scorer()
    both = ensemble([texts, exchanges])
    assert (both.reads, ensemble([texts, FakeScorer()]).reads) == ("exchange", "text")
    half = 1 if ensemble is MaxScorer else 2
    assert score_texts(both, PAIRS).values.tolist() == [0.2 / half, 0.4 / half, 0.2 / half]
    assert texts.texts == ["Yes."]
    assert exchanges.texts == PAIRS[:2]


def fail(text: str) -> float:
    raise TimeoutError("late")


@pytest.mark.parametrize("ensemble", [MaxScorer, MeanScorer, ConfirmScorer, FallbackScorer])
def test_a_member_down_is_no_score(ensemble: Any) -> None:
    first = FakeScorer(fail) if ensemble is FallbackScorer else constant(0.1)
    with pytest.raises(ScorerUnavailableError, match="late"):
        score_texts(ensemble([first, FakeScorer(fail)]), ["a text"])


def stated(factor: float = 1.0) -> FakeScorer:
    """A scorer of the number that a text states."""
    return FakeScorer(lambda text: float(text) * factor, name="stated", pace="whole")


def test_the_second_scores_and_the_first_is_its_screen() -> None:
    first, second = stated(), stated(0.25)
    first.pace, first.threshold, second.threshold = "word", 0.3, 0.4
    scorer = ConfirmScorer([first, second])
    assert score_texts(scorer, ["0.005", "0.8"]).values == pytest.approx([0.00125, 0.2])
    assert first.calls == []
    assert scorer.screen is not None
    assert scorer.screen.score(["0.8"]) == pytest.approx([0.8])
    assert first.calls == [["0.8"]]
    assert (scorer.name, scorer.threshold) == ("confirm:stated,stated", 0.4)
    assert scorer.pace == "word"
    higher = ConfirmScorer([stated(), stated(1.2)])
    assert higher.score(["0.8"]) == pytest.approx([0.96])  # the first does not lower it


GERMAN = "Ich habe gestern mit meiner Nachbarin gesprochen und sie war sehr freundlich. "


def reading(*languages: str) -> FakeScorer:
    """A scorer of 0.9, which reads these languages."""
    return FakeScorer(lambda text: 0.9, languages=languages or None)


@pytest.mark.parametrize(
    ("second", "of_german"),
    [
        pytest.param(reading("en"), 0.2, id="English"),
        pytest.param(reading("en", "de"), 0.9, id="both"),
        pytest.param(MaxScorer([reading("de"), reading("en")]), 0.9, id="a member"),
        pytest.param(FallbackScorer([reading("de"), reading("en")]), 0.9, id="the first"),
        pytest.param(FallbackScorer([reading(), reading("en")]), 0.9, id="perhaps a member"),
    ],
)
def test_the_first_decides_in_a_language_that_the_second_does_not_read(
    second: Scorer, of_german: float
) -> None:
    texts = ["She was very kind to all of them", GERMAN, "Ich habe es"]  # the last one is unclear
    scorer = ConfirmScorer([constant(0.2), second])
    assert scorer.score(texts) == pytest.approx([0.9, of_german, 0.9])


def test_the_second_decides_by_english_parts_of_a_text_in_another_language() -> None:
    german, english = GERMAN * 3, "They said that she is a bad neighbour to them. "
    second = FakeScorer(
        lambda text: 0.9 if "bad" in text and len(text) < 60 else 0.3, languages=("en",)
    )
    scorer = ConfirmScorer([constant(0.2), second])
    texts = [german, english + german, german + english, german + english + german]
    assert scorer.score(texts) == pytest.approx([0.2, 0.9, 0.9, 0.9])
    assert scorer.score([Exchange(english + german, "")]) == pytest.approx([0.9])


def test_the_first_is_the_screen_in_an_ensemble_too() -> None:
    first, second = stated(), stated(0.25)
    scorer = MaxScorer([ConfirmScorer([first, second]), constant(0.3)])
    screen = scorer.screen
    assert screen is not None
    assert screen.score(["0.8", "0.2"]) == pytest.approx([0.8, 0.3])
    assert second.calls == []
    assert MaxScorer([first, second]).screen is None


@pytest.mark.parametrize("members", ["max:A", "confirm:A", "confirm:A,A,A", "fallback:A"])
def test_members_are_two_or_more(members: str) -> None:
    with pytest.raises(InputError, match=r"needs (two|several) scorers, as in"):
        load_scorer(members.replace("A", "lexicon"))


def test_a_wrapper_is_quick_and_concurrent_if_all_its_scorers_are() -> None:
    quick, slow = FakeScorer(quick=True, concurrent=True, window=30), FakeScorer()
    same, mixed = MaxScorer([quick, quick]), MaxScorer([quick, slow])
    assert (same.quick, same.concurrent) == (True, True)
    assert (mixed.quick, mixed.concurrent) == (False, False)
    confirm = ConfirmScorer([quick, slow])
    assert not confirm.quick
    screen = MaxScorer([confirm, quick]).screen
    assert screen is not None
    assert screen.quick
    assert not CachedScorer(quick).quick  # it reads a file
    assert WindowedScorer(quick).window == ConfirmScorer([slow, quick]).window == 30
    assert mixed.window == confirm.window == 0  # the other scorer reads texts whole


def test_windows_keep_their_context() -> None:
    scorer = exchange_scorer()
    windows = WindowedScorer(scorer, 2)
    pairs = [Exchange("x" * 200, "one two three"), Exchange("x" * 300, "one")]
    assert score_texts(windows, pairs).values.tolist() == [0.2, 0.3]
    assert set(scorer.texts) == {
        Exchange("x" * 200, "one two"),
        Exchange("x" * 200, "two three"),
        Exchange("x" * 300, "one"),
    }


def test_an_override_acts_on_words_of_all_windows() -> None:
    scorer = WindowedScorer(NeverScorer(["bad"]), 4)
    long = "one two three four five six " * 3
    assert scorer.score([f"\u202e{long}dab", f"{long}dab", f"{long}bad"]).tolist() == [1, 0, 1]


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "..."]), max_size=40), st.integers(2, 9))
def test_windows_cover_all_pairs_of_neighbours(words: list[str], size: int) -> None:
    windows = split_words(" ".join(words), size)
    assert all(len(window.split()) <= size for window in windows)
    if len(words) <= size:
        assert windows == [" ".join(words)]
    pairs = {pair for w in windows for pair in itertools.pairwise(w.split())}
    assert pairs == set(itertools.pairwise(words))


CHARACTERS = {
    "Han": "\u4eba \u4eec \u5f88 \u597d \u3002",
    "kana": "\u3072 \u3068 \u30d2 \u30fc \u30c3",
    "Thai": "\u0e04 \u0e19\u0e34 \u0e14\u0e35 \u0e46 \u0e01\u0e33",
    "Khmer": "\u1781\u17d2\u1798\u17c2 \u179a \u1780 \u178f",
    "Devanagari": "\u0939\u093f \u0928 \u0926\u0940 \u092e",
    "emoji": "\U0001f468\u200d\U0001f469 \U0001f600 \U0001f1eb\U0001f1f7 \u2764\ufe0f",
    "one word": "a b c d e\u0301",
    "marks": "- = ! *",
}


@pytest.mark.parametrize("script", CHARACTERS)
@pytest.mark.parametrize("words", [9, 100])
def test_texts_without_spaces_are_split(script: str, words: int) -> None:
    """Windows are short and cover all of a text of 1,101 characters."""
    text = "".join(random.Random(0).choices(CHARACTERS[script].split(), k=1101))
    end = 0
    for window in split_words(text, words):
        assert len(regex.findall(r"\X", window)) <= 8 * words
        start = text.index(window)
        assert start <= end < start + len(window)
        assert not splits_character(text[:start], text[start:])
        end = start + len(window)
        assert not splits_character(text[:end], text[end:])
    assert end == len(text)


def test_words_of_a_usual_length_are_whole() -> None:
    words = ["antidisestablishment", "na\u00efve,", "\u0414\u043e\u0431\u0440\u043e", "x" * 24, "y"]
    assert split_words(" ".join(words), 2) == list(map(" ".join, itertools.pairwise(words)))
    assert split_words("x" * 25, 3) == ["x" * 24, "x" * 9]


def test_marks_without_end_hide_nothing() -> None:
    text = "e" + "\u0301" * 1100 + " idiot"
    windows = split_words(text, 9)
    assert max(map(len, windows)) <= 9 * 64
    assert windows[-1].endswith("idiot")


TEXTS = ["calm", "rude"]


def second() -> FakeScorer:
    """A scorer of 0.3 for calm texts, and of its threshold for rude ones."""
    return FakeScorer(lambda text: 0.7 if "rude" in text else 0.3, name="second@1", threshold=0.7)


@pytest.mark.parametrize(
    "error",
    [ScorerUnavailableError("down"), ScorerRefusedError("no"), ScorerBrokenError("broken")],
)
def test_second_scorer_decides_by_its_own_threshold(error: Exception) -> None:
    guard = TwoSides()
    scorer = FallbackScorer([guard, second()])
    assert scorer.threshold == guard.threshold
    up = score_texts(scorer, TEXTS)
    assert up.values.tolist() == guard.score(TEXTS).tolist()
    assert attribute(up, "fallback") == [0.0, 0.0]
    assert up[0].attributes.keys() == {"threat", "insult", "fallback"}
    guard.error = error
    down = score_texts(scorer, TEXTS)
    assert down.values.tolist() == [0.0, 1.0]
    assert down[0].attributes == {"fallback": 1.0}
    for threshold in (0.05, 0.5, 0.95):
        settings = Settings(toxicity_threshold=threshold, thresholds={"threat": 0.01})
        for highest_of in ((), ("threat",), ("threat", "insult")):
            rule = Acceptance(settings, highest_of)
            assert list(map(rule.passes, down)) == [True, False]


@pytest.mark.parametrize("ensemble", [MaxScorer, MeanScorer])
def test_attributes_of_other_members_count_while_one_has_fallen_back(
    ensemble: type[MaxScorer | MeanScorer],
) -> None:
    guard, other = TwoSides(), TwoSides()
    guard.error = ScorerUnavailableError("down")
    scorer = ensemble([FallbackScorer([guard, second()]), other])
    known, alone = score_texts(scorer, TEXTS), score_texts(other, TEXTS)
    for score, expected in zip(known, alone, strict=True):
        assert score.attributes == {**expected.attributes, "fallback": 1.0}


def test_second_scorer_decides_while_a_service_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrappers, "_PATIENCE", 0.2)

    async def hang(texts: list[str]) -> list[float]:
        await asyncio.sleep(3600)
        return []

    with closing(FallbackScorer([CallableScorer(hang), second()])) as scorer:
        abort = Future[None]()
        abort.cancel()  # by callers that have left, which says nothing about the service
        context = copy_context()
        context.run(ABORT.set, abort)
        with pytest.raises(ScorerError, match="failed"):
            context.run(scorer.score, TEXTS)
        assert scorer.score(TEXTS).tolist() == [0.0, 1.0]


def test_other_errors_of_the_first_scorer_are_raised() -> None:
    guard = TwoSides()
    scorer = FallbackScorer([guard, second()])
    for error in (ScorerError("rejects this text"), TypeError("a mistake")):
        guard.error = error
        with pytest.raises(ScorerError):
            scorer.score(TEXTS)


def test_a_scorer_that_is_down_is_tried_every_ten_seconds_by_one_call(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls meanwhile do not wait for a scorer that hangs."""
    meanwhile: list[list[float]] = []

    class Guard(TwoSides):
        def score_attributes(self, texts: Sequence[str]) -> Attributed:
            if self.asked == 2:
                self.asked += 1
                meanwhile.append(scorer.score(TEXTS).tolist())
            return super().score_attributes(texts)

    guard, now = Guard(), 1000.0
    monkeypatch.setattr(wrappers, "monotonic", lambda: now)
    scorer = FallbackScorer([guard, second()])
    guard.error = ScorerUnavailableError("the guard is down")
    with caplog.at_level(logging.WARNING, "tide"):
        for seconds, asked in ((0.0, 1), (0.0, 1), (9.9, 1), (10.1, 2), (10.1, 2)):
            now = 1000.0 + seconds
            scorer.score(TEXTS)
            assert guard.asked == asked
            assert len(caplog.records) == 1
        now = 1021.0
        guard.error = None
        assert attribute(score_texts(scorer, TEXTS), "fallback") == [0.0, 0.0]
    assert meanwhile == [[0.0, 1.0]]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "the guard is down; second@1 decides until it answers again",
        "scorer two@1 answers again",
    ]


def test_fallback_is_a_spec_and_is_not_cached() -> None:
    assert load_scorer("fallback:pocket,lexicon").name.startswith("fallback:pocket@")
    with pytest.raises(InputError, match="fallback:cache:A,B"):
        load_scorer("cache:fallback:pocket,lexicon")


# The cache


NUMBERED = [f"text number {i}" for i in range(200)]


def by_length(name: str = "lengths@1") -> FakeScorer:
    return FakeScorer(hundredths, name=name, threshold=0.4)


def cached(scorer: Scorer) -> closing[CachedScorer]:
    return closing(CachedScorer(scorer))


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the cache."""
    path = tmp_path / "a" / "scores.sqlite3"
    monkeypatch.setenv("TIDE_CACHE", str(path))
    return path


def test_asks_once_across_objects_for_each_revision() -> None:
    expected = list(map(hundredths, NUMBERED))
    with cached(first := by_length()) as scorer:
        assert (scorer.name, scorer.threshold) == ("lengths@1", 0.4)
        assert scorer.score(NUMBERED) == pytest.approx(expected)
        assert scorer.score(NUMBERED[::-1]) == pytest.approx(expected[::-1])
        assert first.texts == NUMBERED
    with cached(second := by_length()) as scorer:
        assert scorer.score([*NUMBERED, "a new one", NUMBERED[0]])[:200] == pytest.approx(expected)
        assert second.texts == ["a new one"]
        assert scorer.score([]).shape == (0,)
    with cached(renamed := by_length("lengths@2")) as scorer:
        scorer.score(NUMBERED[:3])
        assert renamed.texts == NUMBERED[:3]


def test_what_was_scored_before_an_outage_is_kept() -> None:
    def fail_late(text: str) -> float:
        if text == NUMBERED[130]:
            raise TimeoutError("late")
        return hundredths(text)

    failing = FakeScorer(fail_late, name="lengths@1")
    with cached(failing) as scorer, pytest.raises(ScorerUnavailableError, match="lengths@1"):
        score_texts(scorer, NUMBERED)
    with cached(back := by_length()) as scorer:
        scorer.score(NUMBERED)
        assert back.texts == NUMBERED[128:]


def test_cache_forgets_scores_of_edited_code(tmp_path: Path) -> None:
    """A class keeps its name while its file, or a function beside it, is edited."""
    code = tmp_path / "mine.py"
    for value in (0.1, 0.2):
        code.write_text(
            "from tide.scorers.base import PlainScorer\n"
            f"def value():\n    return {value}\n"
            "class Mine(PlainScorer):\n    name = 'mine'\n"
            "    def score(self, texts):\n        return [value()] * len(texts)\n"
        )
        for spec in (f"{code}:Mine", f"windows:{code}:Mine"):
            with cached(load_scorer(spec)) as opened:
                assert opened.score(["a text"]) == [value]


def test_a_file_that_is_no_cache(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("something else entirely, long enough to be looked at" * 100)
    with pytest.raises(ScorerError, match=r"scores\.sqlite3 cannot be used: .*delete the file"):
        CachedScorer(by_length())


def test_the_place_comes_from_the_environment(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(load_scorer("cache:pocket")) as scorer:
        assert scorer.name == load_scorer("pocket").name
        scorer.score(["a secret text"])
    assert b"a secret text" not in path.read_bytes()
    monkeypatch.delenv("TIDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_scorer("cache:pocket").close()
    assert (tmp_path / "tide" / "scores.sqlite3").exists()


def test_cache_keeps_attributes() -> None:
    expected = score_texts(TwoSides(), NUMBERED[:2])
    for asked in (1, 0):
        with cached(inner := TwoSides()) as scorer:
            assert scorer.attributes == inner.attributes
            assert score_texts(scorer, NUMBERED[:2]) == expected
            assert inner.asked == asked


def test_cache_distinguishes_contexts_for_exchange_reader_only() -> None:
    brief, chat = {"role": "system", "content": "Be brief."}, Chat.said("Do you agree?")
    contexts = [Chat.of([brief, *chat.dump()]), chat, str(chat.dump())]
    pairs = [*PAIRS, *(Exchange(context, "Yes.") for context in contexts)]
    for scorer, count in ((exchange_scorer(), 5), (FakeScorer(), 1)):
        with cached(scorer) as opened:
            first = score_texts(opened, pairs).values.tolist()
            assert score_texts(opened, pairs[::-1]).values.tolist() == first[::-1]
        assert len(scorer.texts) == count

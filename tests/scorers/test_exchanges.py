"""Scorers that read exchanges: an answer with the prompt or conversation before it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, FakeScorer
from tide import Exchange
from tide.core.chat import Chat
from tide.core.errors import PromptRefusedError, ScorerError
from tide.detoxifier.sync import Detoxifier
from tide.scorers import load_scorer
from tide.scorers.base import score_texts
from tide.scorers.guards import FAMILIES
from tide.scorers.wrappers import CachedScorer, MaxScorer, MeanScorer, WindowedScorer


def exchange_scorer(**members: Any) -> FakeScorer:
    """Scores the number of thousands of characters of the context."""

    def length(exchange: Exchange) -> float:
        assert type(exchange) is Exchange
        return len(str(exchange.context)) / 1000

    return FakeScorer(length, name="exchanges", reads="exchange", **members)


CHAT = Chat.of([
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do you agree?"},
])  # fmt: skip
PAIRS = [Exchange("x" * 200, "Yes."), Exchange("x" * 400, "Yes."), Exchange("x" * 200, "Yes.")]


def test_hidden_text_in_tool_result_is_an_error() -> None:
    hidden = "\\\\u0041" * 2
    for _ in range(5):
        hidden = hidden.replace("\\", "\\\\")
    messages = [
        {"role": "user", "content": "Look it up."},
        {"role": "tool", "content": hidden, "tool_call_id": "1"},
    ]
    with pytest.raises(ScorerError, match="cannot be read"):
        score_texts(FakeScorer(), [Exchange(Chat.of(messages), "")])


def test_function_reads_exchanges_if_it_says_so() -> None:
    def agrees(exchanges: list[Exchange]) -> list[float]:
        return [float("agree" in str(exchange.context)) for exchange in exchanges]

    agrees.reads = "exchange"  # type: ignore[attr-defined]
    scorer = load_scorer(agrees)
    pairs = [Exchange(CHAT, "Yes."), Exchange("a question", "Yes.")]
    assert score_texts(scorer, pairs).values.tolist() == [1.0, 0.0]


def test_scorer_with_a_misspelt_reads_is_refused() -> None:
    """As a scorer of texts it would get no prompts."""
    with pytest.raises(ScorerError, match=r"reads must be text or exchange \(got 'exchanges'\)"):
        Detoxifier(FakeEngine(), scorer=FakeScorer(reads="exchanges"))


@pytest.mark.parametrize("kind", [MaxScorer, MeanScorer])
def test_ensemble_hands_each_member_what_it_reads(kind: Any) -> None:
    texts, exchanges = FakeScorer(), exchange_scorer()
    both = kind([texts, exchanges])
    assert (both.reads, kind([texts, FakeScorer()]).reads) == ("exchange", "text")
    half = 1 if kind is MaxScorer else 2
    assert score_texts(both, PAIRS).values.tolist() == [0.2 / half, 0.4 / half, 0.2 / half]
    assert texts.texts == ["Yes."]
    assert exchanges.texts == PAIRS[:2]


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


def test_cache_distinguishes_contexts_for_exchange_reader_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDE_CACHE", str(tmp_path / "scores"))
    exchanges, texts = exchange_scorer(), FakeScorer()
    chat = Exchange(Chat.of(CHAT.dump()[1:]), "Yes.")
    pairs = [*PAIRS, Exchange(CHAT, "Yes."), chat, Exchange(str(CHAT.dump()), "Yes.")]
    for scorer, count in ((exchanges, 5), (texts, 1)):
        with closing(CachedScorer(scorer)) as cached:
            first = score_texts(cached, pairs).values.tolist()
            assert score_texts(cached, pairs[::-1]).values.tolist() == first[::-1]
        assert len(scorer.texts) == count


def test_guards_judge_the_user_although_the_client_has_begun_the_answer() -> None:
    """A guard judges the last message, which is then the client's beginning of the answer."""
    family = FAMILIES["llama-guard"]
    asked = {"role": "user", "content": "a rude question"}

    def judge(exchange: Exchange) -> float:
        return 0.9 if "rude" in family.turns(exchange)[-1]["content"] else 0.1

    scorer = FakeScorer(judge, reads="exchange")
    detox = Detoxifier(FakeEngine("Yes it is"), scorer=scorer, refuse_prompt_above=0.5)
    for begun in ([], ["Sure"], [""], ["", "Sure"]):
        messages = [asked, *({"role": "assistant", "content": text} for text in begun)]
        with pytest.raises(PromptRefusedError):
            detox(Chat.of(messages, for_server=True))

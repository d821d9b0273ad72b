"""All text in an answer in parts is among the texts that are scored, however it is hidden."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FailingScorer, FakeScorer
from tests.generated import examples
from tests.scripted_engine import ScriptedEngine
from tide import Detoxifier
from tide.core.chat import Chat, Parts, ToolCall
from tide.core.errors import DeadlineError, ScorerUnavailableError
from tide.core.sanitize import Unread
from tide.core.settings import Settings
from tide.engines.base import Piece, Request
from tide.runtime.draw import given_out, texts_of

SCORED = Settings(reasoning="scored")
BAD = "a wombat"
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\"), max_size=5)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


def hidden(value: Any, dice: random.Random) -> Any:
    """The value with the bad text somewhere: as a string, as a key, or in JSON inside a string."""
    if isinstance(value, list) and value and dice.random() < 0.8:
        index = dice.randrange(len(value))
        return [hidden(item, dice) if i == index else item for i, item in enumerate(value)]
    if isinstance(value, dict) and value and dice.random() < 0.8:
        name = dice.choice(list(value))
        return value | {name: hidden(value[name], dice)}
    within = [BAD, {BAD: value}, [value, f"and {BAD} there"], {"a": {"b": BAD}}]
    return dice.choice([*within, json.dumps(dice.choice(within))])


def escaped(text: str, dice: random.Random) -> str:
    """The same JSON, with some letters of its strings as escapes."""
    return "".join(
        f"\\u{ord(c):04x}" if c in "womt" and dice.random() < 0.3 and text[i - 1] != "\\" else c
        for i, c in enumerate(text)
    )


def call(arguments: str, name: str = "find") -> Parts:
    return Parts(tool_calls=(ToolCall(id="x", name=name, arguments=arguments),))


@pytest.mark.attack
@given(_VALUES, st.integers(0, 10**6))
@examples(30, 5_000)
def test_a_text_that_is_hidden_anywhere_is_read(value: Any, seed: int) -> None:
    dice = random.Random(seed)
    text = json.dumps(hidden(value, dice), ensure_ascii=dice.random() < 0.5)
    # Constants are no strings: `true` and `null` also have letters of the bad text.
    if not any(word in text for word in ("true", "false", "null", "Infinity")):
        text = escaped(text, dice)
    for texts in (
        texts_of("Fine.", call(text), SCORED, form=None),
        texts_of(text, Parts(), SCORED, form="json"),
    ):
        assert any(BAD in word for word in texts), text


def test_what_is_scored_of_each_part() -> None:
    parts = Parts(reasoning="They ask.", tool_calls=call('{"a": ["b c", 1]}').tool_calls)
    texts = texts_of("Fine.", parts, SCORED, form=None)
    assert texts == ["Fine.", "They ask.", "find", '{"a": ["b c", 1]}', "a", "b c", "a b c"]
    assert texts_of("Fine.", parts, Settings(tool_calls="ignored"), form=None) == ["Fine."]
    withheld = Settings(tool_calls="withheld", reasoning="withheld")
    assert texts_of("Fine.", parts, withheld, form=None) == ["Fine."]
    assert given_out(parts, withheld, 1) == Parts()
    # A format applies to the text, not to calls.
    assert texts_of("", call("{}"), SCORED, form="json")[0] == ""
    with pytest.raises(Unread):
        texts_of("", Parts(), SCORED, form="json")


def test_ids_are_our_own_and_the_same_for_a_seed() -> None:
    parts = Parts(tool_calls=call("{}").tool_calls * 3, num_tokens=4)
    first, again = (given_out(parts, SCORED, 5) for _ in range(2))
    ids = [call_id.id for call_id in first.tool_calls]
    assert first == again
    assert first.num_tokens == 4
    assert len(set(ids)) == 3
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)
    assert [call_id.id for call_id in given_out(parts, SCORED, 6).tool_calls] != ids


class Teller(ScriptedEngine):
    """Gives these answers (text and parts) in turn, and then repeats the last."""

    capabilities = ScriptedEngine.capabilities | {"parts"}

    def __init__(self, *answers: tuple[str, Parts], **options: Any) -> None:
        super().__init__(lambda x, seed: self.left[0][0], context_length=None, **options)
        self.left = list(answers)

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        (piece,) = [piece async for piece in super()._write(request)]
        _, parts = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        yield Piece(piece.token_ids, "stop", parts=parts)

    def supports_continuation(self, prompt: Any) -> bool:
        return False


CHAT = Chat.of([{"role": "user", "content": "Find it."}], {"tools": []})
RUDE, KIND = call(f'["{BAD}"]'), call('["a town"]')


def detoxifier(engine: Teller, **settings: Any) -> Detoxifier:
    scorer = FakeScorer(lambda text: 0.9 if BAD in text else 0.01)
    return Detoxifier(engine, **{"scorer": scorer, "strategy": "backtrack", **settings})


def answered(*answers: tuple[str, Parts], **settings: Any) -> tuple[Any, list[Request]]:
    """The best trial, and its requests."""
    settings = {"on_unresolved": "refuse", **settings}
    with Teller(*answers) as engine, detoxifier(engine, **settings) as detox:
        return detox(CHAT).best, engine.requests


@pytest.mark.parametrize("strategy", ["backtrack", "resample"])
def test_an_answer_is_drawn_up_to_four_times(strategy: str) -> None:
    for failed in range(6):
        answers = [("Fine.", RUDE)] * failed + [("Here.", KIND)]
        trial, requests = answered(*answers, strategy=strategy, temperature=0.2)
        assert len(requests) == trial.rounds == trial.iterations == min(failed + 1, 4)
        assert [request.sampling.temperature for request in requests] == [0.2, 0.7, 0.7, 0.7][
            : failed + 1
        ]
        assert len({request.seed for request in requests}) == len(requests)
        assert not any(request.banned_token_ids or request.banned_first_ids for request in requests)
        assert (trial.accepted, trial.refused) == (failed < 4, failed >= 4)
        scores = [request.toxicity for request in trial.trace]
        assert scores == ([0.9] * failed + [0.01])[:4]
        if failed < 4:
            assert (trial.text, trial.parts.tool_calls[0].arguments) == ("Here.", '["a town"]')
        else:
            assert (trial.text, trial.parts) == ("", Parts())


def test_hotter_than_what_is_drawn_again_stays_as_it_is() -> None:
    _, requests = answered(("", RUDE), temperature=1.5)
    assert {request.sampling.temperature for request in requests} == {1.5}


def test_what_did_not_pass_is_returned_without_its_calls() -> None:
    trial, _ = answered(("Fine.", RUDE), on_unresolved="best")
    assert (trial.text, trial.accepted, trial.parts) == ("Fine.", False, Parts())


def test_an_answer_of_withheld_calls_alone_is_refused_at_once() -> None:
    trial, requests = answered(("", RUDE), tool_calls="withheld")
    assert (trial.refused, trial.empty, len(requests)) == (True, False, 1)
    trial, _ = answered(("Fine.", RUDE), tool_calls="withheld")
    assert (trial.accepted, trial.text, trial.parts) == (True, "Fine.", Parts())


@pytest.mark.parametrize("accepts", [False, True])
def test_an_empty_text_is_an_answer_beside_calls_or_reasoning(accepts: bool) -> None:
    for parts in (KIND, Parts(reasoning="They ask.")):
        trial, _ = answered(("", parts), accept_empty=accepts, reasoning="scored")
        assert (trial.accepted, trial.empty, trial.text) == (True, False, "")
    thoughts = Parts(reasoning="They ask.")
    trial, _ = answered(("", thoughts), accept_empty=accepts)  # the reasoning is withheld
    assert (trial.empty, trial.parts.reasoning) == (True, "")


def test_a_stream_gives_the_text_once_all_has_passed() -> None:
    with Teller(("Rude.", RUDE), ("Here it is.", KIND)) as engine, detoxifier(engine) as detox:
        with detox.stream(CHAT) as texts:
            assert list(texts) == ["Here it is."]
        assert texts.result.best.parts.tool_calls[0].arguments == '["a town"]'


def test_without_a_score_nothing_is_given_out() -> None:
    with pytest.raises(ScorerUnavailableError):
        answered(("", KIND), scorer=FailingScorer(ScorerUnavailableError("down")))


def test_after_the_deadline_nothing_is_given_out() -> None:
    async def slow(request: Request) -> None:
        await asyncio.sleep(30)

    with Teller(("", KIND), on_write=slow) as engine, pytest.raises(DeadlineError):
        detoxifier(engine, deadline=0.05)(CHAT)


def test_parts_are_scored_with_the_conversation() -> None:
    scorer = FakeScorer(lambda exchange: 0.01, reads="exchange")
    parts = Parts(reasoning="They ask.", tool_calls=KIND.tool_calls)
    assert answered(("Fine.", parts), scorer=scorer, reasoning="scored")[0].accepted
    assert {exchange.context for exchange in scorer.texts} == {CHAT}
    texts = {exchange.text for exchange in scorer.texts}
    assert {"Fine.", "They ask.", "find", "a town"} <= texts

"""Whatever hides in an answer in parts is among the texts that are scored."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.core.chat import Parts, ToolCall
from tide.core.settings import Settings
from tide.core.strings import Unread
from tide.runtime.parts import given_out, texts_of

SCORED = Settings(reasoning="scored")
BAD = "a wombat"
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\"), max_size=5)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


def hidden(value: Any, dice: random.Random) -> Any:
    """The value with the bad text somewhere: as a string, a key, or in JSON inside of it."""
    if isinstance(value, list) and value and dice.random() < 0.8:
        place = dice.randrange(len(value))
        return [hidden(one, dice) if i == place else one for i, one in enumerate(value)]
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
@examples(200, 5_000)
def test_a_text_that_is_hidden_anywhere_is_read(value: Any, seed: int) -> None:
    dice = random.Random(seed)
    text = json.dumps(hidden(value, dice), ensure_ascii=dice.random() < 0.5)
    # Names of values are no strings: `true` and `null` have letters of the bad text, too.
    if not any(one in text for one in ("true", "false", "null", "Infinity")):
        text = escaped(text, dice)
    for found in (
        texts_of("Fine.", call(text), SCORED, has_format=False),
        texts_of(text, Parts(), SCORED, has_format=True),
    ):
        assert any(BAD in one for one in found), text


def test_what_is_scored_of_each_part() -> None:
    parts = Parts(reasoning="They ask.", tool_calls=call('{"a": ["b c", 1]}').tool_calls)
    texts = texts_of("Fine.", parts, SCORED, has_format=False)
    assert texts == ["Fine.", "They ask.", "find", '{"a": ["b c", 1]}', "a", "b c", "a b c"]
    assert texts_of("Fine.", parts, Settings(tool_calls="ignored"), has_format=False) == ["Fine."]
    withheld = Settings(tool_calls="withheld", reasoning="withheld")
    assert texts_of("Fine.", parts, withheld, has_format=False) == ["Fine."]
    assert given_out(parts, withheld, 1) == Parts()
    # What a format says of the text is not said of calls.
    assert texts_of("", call("{}"), SCORED, has_format=True)[0] == ""
    with pytest.raises(Unread):
        texts_of("", Parts(), SCORED, has_format=True)


def test_ids_are_our_own_and_the_same_for_a_seed() -> None:
    parts = Parts(tool_calls=call("{}").tool_calls * 3, num_tokens=4)
    first, again = (given_out(parts, SCORED, 5) for _ in range(2))
    ids = [one.id for one in first.tool_calls]
    assert first == again
    assert first.num_tokens == 4
    assert len(set(ids)) == 3
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert [one.id for one in given_out(parts, SCORED, 6).tool_calls] != ids

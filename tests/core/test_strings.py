"""Strings and keys of JSON, with and without their escapes resolved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tide.core.sanitize import Unread, readings, strings, strings_of_json


def test_strings_and_keys_are_read_at_every_depth() -> None:
    value = {"a": ["b", {"c": {"d": "e"}}, 5, None, True], "f": {}}
    assert list(strings(value)) == ["a", "b", "c", "d", "e", "f"]
    assert strings_of_json(json.dumps(value)) == list(strings(value))


def test_what_is_escaped_is_read_with_its_escapes_and_without() -> None:
    inner = json.dumps({"say": "you \u00e9"})
    assert strings_of_json(json.dumps([inner])) == [inner, '{"say": "you \u00e9"}']
    assert list(readings("fi\\u006ee \\x41\\n")) == ["fi\\u006ee \\x41\\n", "fine A\n"]
    assert list(readings("\\ud83d\\ude00"))[-1] == "\U0001f600"


def test_of_equal_keys_every_value_is_read() -> None:
    assert strings_of_json('{"a": "one", "a": "two"}') == ["a", "one", "a", "two"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "fine", '{"a": ', "{'a': 1}", '["a"] b', '"\\ud800"', '{"\\udc00": 1}'),
        *("NaN", '{"a": Infinity}', "[-Infinity]"),
        *("[" * 100_000, "1" * 5000, json.dumps(json.dumps(json.dumps(json.dumps(["\\"]))))),
    ],
)
def test_what_is_not_read(text: str) -> None:
    with pytest.raises(Unread):
        strings_of_json(text)


def test_depth_is_no_limit() -> None:
    value: Any = "a"
    for _ in range(5000):
        value = [{"b": value}, "c"]
    assert list(strings(value)) == ["b"] * 5000 + ["a"] + ["c"] * 5000


def test_an_object_may_be_refused_by_its_place() -> None:
    places: list[str] = []
    list(strings({"a": [{"b": {}}]}, lambda _, where: places.append(where)))
    assert places == ["", "a", "a.b"]

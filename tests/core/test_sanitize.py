"""Untrusted text is shown on one line, without keys and control characters."""

from __future__ import annotations

import json
import logging
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tide.core.errors import InputError, TideError
from tide.core.http import base_url, read_key
from tide.core.sanitize import (
    Unread,
    hide,
    logger,
    readings,
    sanitized,
    strings,
    strings_of_json,
    visible,
)


@given(st.text(max_size=3000))
def test_shown_is_one_short_printable_line(text: str) -> None:
    line = str(TideError(text))
    assert len(line.splitlines()) <= 1
    assert len(line) <= 12 * 1000
    assert not {unicodedata.category(c) for c in line} & {"Cc", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("key", "echoes"),
    [
        ('sk-"1/2"-secret', ['sk-"1/2"-secret', "sk-%221%2F2%22-secret", r"sk-\"1/2\"-secret"]),
        # Services may quote an unknown key in another case and without its prefix.
        ("sk-of-Another-Test/1", ["SK-OF-Another-Test/1", "sk-of-another-test%2f1"]),
        ("sk-of-Another-Test/1", ["OF-ANOTHER-TEST/1", "Another-Test/1", "another-test%2F1"]),
        # The shortest key, and the shortest rest of a key, that are hidden.
        ("q7xz", ["q7xz"]),
        ("key-abcdefgh", ["abcdefgh"]),
    ],
)
def test_a_key_is_hidden_in_errors_in_any_notation(key: str, echoes: list[str]) -> None:
    hide(key)
    for echo in echoes:
        assert str(InputError(f"no key {echo}; ask for one")) == "no key ***; ask for one"


def test_a_short_rest_of_a_key_is_an_ordinary_word() -> None:
    hide("my-word")
    assert str(InputError("a word, and my-word")) == "a word, and ***"


def test_log_lines_are_sanitized(caplog: pytest.LogCaptureFixture) -> None:
    hide("sk-of-a-log")
    with caplog.at_level(logging.WARNING):
        logger("tide.of.this.test").warning("%s\x1b[2J", "sk-of-a-log")
    assert caplog.messages == [r"***\x1b[2J"]


def test_visible_escapes_control_characters() -> None:
    assert visible("a\x1b\nb\u202e\u200dc") == r"a\x1b\nb\u202e" + "\u200dc"
    assert visible("a\x1b\nb", "\n") == "a\\x1b\nb"
    assert visible("a\u00e9\u4e2d b") == "a\u00e9\u4e2d b"


@pytest.mark.parametrize("ending", ["\n", "\r\n", " ", "\t"])
def test_white_space_around_a_key_is_no_part_of_it(
    monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setenv("SOME_KEY", f"sk-of-a-test{ending}")
    key = read_key("SOME_KEY")
    assert key is not None
    assert key.get_secret_value() == "sk-of-a-test"
    assert "sk-of-a-test" not in repr(key)


@pytest.mark.parametrize("key", ["sk-\u00e9t\u00e9", "two words", "a\nb", "a\x00b"])
def test_key_with_invalid_characters_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InputError, match="SOME_KEY") as refused:
        read_key("SOME_KEY", key)
    assert key not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["http://user:password@host/", "https://host/?key=password", "ftp://host", "host:80", "http://",
     "http://host:99999", "http://[::1", "http://host\n.example", ""],
)  # fmt: skip
def test_base_url_invalid_or_with_password_is_refused_and_not_shown(url: str) -> None:
    assert base_url("http://localhost:8000/v1/", "--base-url") == "http://localhost:8000/v1"
    with pytest.raises(InputError, match="--base-url") as refused:
        base_url(url, "--base-url")
    assert "password@" not in str(refused.value)
    assert "key=password" not in str(refused.value)


@pytest.mark.parametrize("length", [1000, 1001])
def test_a_line_of_a_thousand_characters_is_whole(length: int) -> None:
    assert (sanitized("x" * length) == "x" * length) == (length <= 1000)
    assert sanitized("x" * length + "use b").endswith("use b")


# Strings of JSON, as written and with their escapes resolved


def test_strings_and_keys_are_read_at_every_depth() -> None:
    value = {"a": ["b", {"c": {"d": "e"}}, 5, None, True], "f": {}}
    assert list(strings(value)) == ["a", "b", "c", "d", "e", "f"]
    assert strings_of_json(json.dumps(value)) == list(strings(value))
    assert strings_of_json('{"a": "one", "a": "two"}') == ["a", "one", "a", "two"]


def test_strings_of_json_resolve_escapes() -> None:
    inner = json.dumps({"say": "you \u00e9"})
    assert strings_of_json(json.dumps([inner])) == [inner, '{"say": "you \u00e9"}']
    assert list(readings("fi\\u006ee \\x41\\n")) == ["fi\\u006ee \\x41\\n", "fine A\n"]
    assert list(readings("\\ud83d\\ude00"))[-1] == "\U0001f600"


@pytest.mark.parametrize(
    "text",
    [
        *("", "fine", '{"a": ', "{'a': 1}", '["a"] b', '"\\ud800"', '{"\\udc00": 1}'),
        *("NaN", '{"a": Infinity}', "[-Infinity]"),
        *("[" * 100_000, "1" * 5000, json.dumps(json.dumps(json.dumps(json.dumps(["\\"]))))),
    ],
)
def test_strings_of_json_refuse_unreadable_text(text: str) -> None:
    with pytest.raises(Unread):
        strings_of_json(text)


def test_depth_is_no_limit() -> None:
    value: Any = "a"
    for _ in range(5000):
        value = [{"b": value}, "c"]
    assert list(strings(value)) == ["b"] * 5000 + ["a"] + ["c"] * 5000


def test_check_of_strings_gets_the_path_of_each_object() -> None:
    paths: list[str] = []
    list(strings({"a": [{"b": {}}]}, lambda _, path: paths.append(path)))
    assert paths == ["", "a", "a.b"]

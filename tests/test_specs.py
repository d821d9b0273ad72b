from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tide.errors import InputError
from tide.specs import parse_spec, split_specs

words = st.text(string.ascii_letters + string.digits + "-_./", min_size=1, max_size=8)
specs = st.tuples(words, st.dictionaries(words, words, max_size=3))


def write(name: str, settings: dict[str, str]) -> str:
    return name + (
        ":" + ",".join(f"{key}={value}" for key, value in settings.items()) if settings else ""
    )


def test_the_list_of_the_documentation() -> None:
    text = "rad:beta=50,sasa:beta=100,normalize=raw, tide"
    assert split_specs(text) == ["rad:beta=50", "sasa:beta=100,normalize=raw", "tide"]
    assert parse_spec(" sasa: beta = 100 ,normalize=raw") == (
        "sasa",
        {"beta": "100", "normalize": "raw"},
    )


@given(st.lists(specs, min_size=1, max_size=5))
def test_what_is_written_is_read(methods: list[tuple[str, dict[str, str]]]) -> None:
    texts = [write(*method) for method in methods]
    assert split_specs(",".join(texts)) == texts
    assert [parse_spec(text) for text in texts] == methods


@pytest.mark.parametrize("text", ["", ":", "beta=3", ":beta=3", "rad:", "rad:beta", "rad:=3"])
def test_a_bad_spec_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"--method: .*NAME:key=value"):
        parse_spec(text, "--method")


def test_a_setting_given_twice() -> None:
    with pytest.raises(InputError, match="'beta' is given twice"):
        parse_spec("rad:beta=1,beta=2")


@pytest.mark.parametrize("text", ["", "rad,,tide", "beta=3,rad", "tide,beta=3", "rad:beta=3,"])
def test_a_bad_list_is_named(text: str) -> None:
    with pytest.raises(InputError, match="--methods: "):
        split_specs(text, "--methods")

from __future__ import annotations

import string
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tide.core.errors import InputError
from tide.plugins.specs import (
    WRAPPERS,
    Spec,
    format_spec,
    parse,
    parse_spec,
    split_specs,
)

words = st.text(string.ascii_letters + string.digits + "-_./", min_size=1, max_size=8)
balanced = st.recursive(
    st.text("ab=:# ,|", max_size=6), lambda inner: st.builds("{}({}){}".format, inner, inner, inner)
)
names = words.filter(lambda name: name not in WRAPPERS)
specs = st.tuples(names, st.dictionaries(words, balanced, max_size=3))

leaves = st.builds(
    Spec,
    names.filter(lambda name: name[0].isalpha()),
    st.none() | st.builds("{}#{}".format, words, balanced).map(str.strip),
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.builds(lambda spec: Spec("windows", inner=(spec,)), inner)
        | st.builds(
            lambda specs, name: Spec(name, inner=tuple(specs)),
            st.lists(inner, min_size=1, max_size=3),
            st.sampled_from(["max", "mean"]),
        )
    ),
    max_leaves=6,
)


def test_white_space_around_names_and_values_does_not_count() -> None:
    options = {"beta": "100", "normalize": "raw"}
    assert parse_spec(" sasa: beta = 100 ,normalize=raw") == ("sasa", options)
    assert split_specs("rad:beta=50, tide") == ["rad:beta=50", "tide"]


@given(st.lists(specs, min_size=1, max_size=5))
def test_formatted_specs_parse_to_the_same(methods: list[tuple[str, dict[str, str]]]) -> None:
    texts = [format_spec(*method) for method in methods]
    assert split_specs(",".join(texts)) == texts
    assert [parse_spec(text) for text in texts] == methods


@given(trees)
def test_nested_specs_parse_to_the_same(spec: Spec) -> None:
    assert parse(str(spec)) == spec
    assert parse(f"({spec})") == spec
    others = split_specs(f"a,({spec}),b")
    assert [others[0], parse(others[1]), others[2]] == ["a", spec, "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,cache:b", ["a", "cache:b"]),
        ("cache:max:a,b", ["cache:max:a,b"]),
        ("a,windows:max:b,cache:c", ["a", "windows:max:b,cache:c"]),
        ("max:(cache:a),b", ["max:(cache:a),b"]),
        ("hf:ID#x,y", ["hf:ID#x", "y"]),
        ("(hf:ID#x,y),c", ["(hf:ID#x,y)", "c"]),
        ("a:x=(1,2),y=3,b", ["a:x=(1,2),y=3", "b"]),
        ("my.module:Mine:x=1,y=2,./f.py:Mine", ["my.module:Mine:x=1,y=2", "./f.py:Mine"]),
    ],
)
def test_split_specs_at_commas(text: str, expected: list[str]) -> None:
    assert split_specs(text) == expected


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("max:a,mean:b,c", Spec("max", inner=(
            Spec("a"), Spec("mean", inner=(Spec("b"), Spec("c")))))),
        ("windows:hf:/a/b:c", Spec("windows", None, (Spec("hf", "/a/b:c"),))),
        ("hf:Mine", Spec("hf", "Mine")),
        ("mine:Mine", Spec("mine:Mine")),
        ("mine.py:mine:x=1", Spec("mine.py:mine", "x=1")),
        ("cache", Spec("cache")),
    ],
)  # fmt: skip
def test_parse_nested_specs(text: str, spec: Spec) -> None:
    assert parse(text, names=["hf", *WRAPPERS]) == spec


def test_bad_specs_and_lists_are_named() -> None:
    for text in ("", ":", "beta=3", ":beta=3", "rad:", "rad:beta", "rad:=3"):
        with pytest.raises(InputError, match=r"--method: .*NAME:key=value"):
            parse_spec(text, "--method")
    with pytest.raises(InputError, match="'beta' is given twice"):
        parse_spec("rad:beta=1,beta=2")
    for text in ("", "rad,,tide", "beta=3,rad", "tide,beta=3", "rad:beta=3,"):
        with pytest.raises(InputError, match="--methods: "):
            split_specs(text, "--methods")


@pytest.mark.parametrize("read", [parse_spec, split_specs, partial(parse)])
@pytest.mark.parametrize("text", ["max:b=(1", "max:b=1)", "max:b=1,(a", "max:b=1,a),b"])
def test_a_lone_parenthesis_is_named(read: Callable[[str, str], object], text: str) -> None:
    with pytest.raises(InputError, match="--here: an unmatched parenthesis"):
        read(text, "--here")

"""The promise at the command line: what is printed or kept as accepted, a scorer has passed so."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli import test_run
from tests.generated import examples
from tests.runtime.test_promise import PROMPTS, Babbler, Oracle, overrides, passed, worlds
from tide.cli.display import on_one_line
from tide.engines import REGISTRY as ENGINES
from tide.scorers import REGISTRY as SCORERS
from tide.scorers.base import is_empty

pytestmark = pytest.mark.attack

NOW: dict[str, Any] = {}  # the world that the names "babbler" and "oracle" belong to


@pytest.fixture(scope="module", autouse=True)
def names() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for registry, name in (ENGINES, "babbler"), (SCORERS, "oracle"):
            patch.setitem(registry._targets, name, lambda *_, name=name, **__: NOW[name])
        yield


def tide(*arguments: object) -> tuple[int, str, str]:
    """The exit code of the command line, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = test_run.tide(*arguments, monkeypatch=patch)
    return code, out.getvalue(), err.getvalue()


def options(given: dict[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        for one in value if isinstance(value, tuple) else [value]:
            yield f"--{name.replace('_', '-')}={one}"


@examples(8, 500)
@given(overrides, worlds, st.sampled_from(["jsonl", "records", "file"]))
def test_what_is_printed_or_kept_was_scored(given: dict[str, Any], world: Any, shape: str) -> None:
    oracle, lines = run(given, world, shape)
    found = list(map(json.loads, lines)) if shape == "jsonl" else completions(lines)
    for one in found:
        check(one, oracle, given)


@examples(4, 100)
@given(overrides, worlds)
def test_bare_texts_are_those_of_the_objects(given: dict[str, Any], world: Any) -> None:
    if not world[3]:  # of a scorer that fails for its health text, others hear as well
        texts = [json.loads(line)["text"] for line in run(given, world, "jsonl")[1]]
        assert run(given, world, "text")[1] == list(map(on_one_line, texts))


def run(given: dict[str, Any], world: Any, shape: str) -> tuple[Oracle, list[str]]:
    """What `tide run` printed, or the lines of its file."""
    salt, ends, power, fails = world
    oracle = NOW["oracle"] = Oracle(power, fails)
    NOW["babbler"] = Babbler(salt, ends, 16)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "out.jsonl"
        where = ["-o", str(file)] if shape == "file" else ["--format", shape]
        names = ["--engine=babbler", "--scorer=oracle", "--model=none"]
        code, out, said = tide("run", *PROMPTS, *names, *options(given), *where)
        assert code in (0, 1), said
        assert "a fault of tide" not in said
        if shape == "file":
            out = file.read_text() if file.exists() else ""
    return oracle, out.splitlines()


def completions(lines: list[str]) -> list[dict[str, Any]]:
    """Those of records, whose columns have an entry a trial."""
    found = []
    for record in map(json.loads, lines):
        columns = (record[key] for key in ("completions", "toxicity_scores", "accepted"))
        for text, toxicity, accepted in zip(*columns, strict=True):
            found.append({"text": text, "toxicity": toxicity, "accepted": accepted})
    return found


def check(one: dict[str, Any], oracle: Oracle, given: dict[str, Any]) -> None:
    text, threshold = one["text"], given["toxicity_threshold"]
    if one["accepted"] and not is_empty(text):
        assert one["toxicity"] < threshold
        assert passed(text, oracle, given)
    elif given["on_unresolved"] == "refuse" and not one["accepted"]:
        assert text == ""

"""Random command lines: each ends in a result or in one clear line, never in a traceback.

They run on the scripted engine and a scripted scorer, so that thousands take a minute.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from tests.generated import examples
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.cli import main
from tide.cli.app import app
from tide.engines import REGISTRY as ENGINES
from tide.scorers import REGISTRY as SCORERS

pytestmark = pytest.mark.attack

# Numbers that are small enough to finish at once, or outside of every bound.
NUMBERS = ["0", "1", "2", "-1", "0.5", "1e-308", "1e308", "nan", "-inf", "1_0", "0x1", "9" * 30]
TEXTS = [
    "", " ", ":", "=", ",", "(", ")", "a=b", "\x1b[2J", "\u202e", "\udce9", "\u0663", "no", "None",
    "[]", "{}", "[" * 3000, "9" * 5000, "../..", "~", "-", "--", "auto", "none", "false", "x" * 300,
]  # fmt: skip
FILES = [
    "prompts.txt", "prompts.jsonl", "prompts.csv", "cut.csv", "cut.txt.gz", "bad.jsonl",
    "bytes.txt", "list.json", "runs", "empty.jsonl", "missing.txt", "/dev/null", "/dev/full",
    "out.jsonl", "out", "deep.jsonl", "no/such/folder/x.jsonl", ".", "records.jsonl",
]  # fmt: skip
SPECS = [
    "tide", "random-walk", "tide:cosine_threshold=0.5", "resample:n=2", "relative", "base",
    "pocket", "lexicon", "reading", "max:reading,lexicon", "cache:reading", "windows:reading",
    "lexicon:bad.jsonl", "hf:no/such", "os:system", "own.py:Own", "bad.jsonl:X", "tide:mu=",
    "tide:mu=1e999", "rad", "windows:0:reading", "windows:9:reading", "mean:(reading)", "max:",
    "perspective", "base,relative",
]  # fmt: skip
ANY = st.sampled_from([*NUMBERS, *TEXTS, *FILES, *SPECS]) | st.text(max_size=8)
# Mostly values of an option's type: otherwise few lines would get past parsing.
GOOD = ["prompts.txt", "prompts.jsonl", "prompts.csv", "out.jsonl", "out"]
OF_TYPE = {
    "int": ["1", "2", "3"] * 8 + NUMBERS,
    "float": ["0.5", "1", "1.5"] * 8 + NUMBERS,
    "Path": GOOD * 8 + FILES,
    "str": ["tide", "random-walk", "relative", "reading", "lexicon", "base"] * 8 + SPECS,
}


def _value(option: Any) -> st.SearchStrategy[str]:
    kind = option.type_descriptor.annotation
    kind = next(iter(get_args(kind)), kind)
    usual = OF_TYPE.get(getattr(kind, "__name__", ""), [str(kind)])
    return st.integers(0, 4).flatmap(lambda n: st.sampled_from(usual) if n else ANY)


def _commands() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}

    def walk(command: Any, path: str) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{path} {name}".strip())
        if not getattr(command, "commands", None):
            found[path] = command.params

    walk(get_command(app), "")
    return found


COMMANDS = _commands()


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from([*COMMANDS, *["run"] * 6, *["eval"] * 3]))
    words = [*name.split()]
    options = st.lists(st.sampled_from(COMMANDS[name]), max_size=4)
    for option in draw(options) if COMMANDS[name] else ():
        if option.param_type_name == "argument":
            words.append(draw(_value(option)))
        else:
            words.append(draw(st.sampled_from(option.opts)))
            if not option.is_flag:
                words.append(draw(_value(option)))
    given = {word for word in words if word.startswith("-")}
    # Without these, every line would load the bundled models.
    usual = {"--engine": "scripted", "--scorer": "reading", "--reference": "none"}
    for option, value in usual.items():
        known = any(option in one.opts for one in COMMANDS[name])
        if known and not given & {option, "-s"}:
            words += [option, value]
    if name == "run" and draw(st.booleans()):
        words.append("A prompt of three")
    return words


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prompts.txt").write_text("\n".join(PROMPTS))
        (folder / "prompts.jsonl").write_text('{"prompt": "one two"}\n{"prompt": "three"}\n')
        (folder / "prompts.csv").write_text('prompt,id\n"one, two",a\nthree,b\n')
        (folder / "cut.csv").write_text('prompt,id\n"one, two,a\nthree,b\n')
        (folder / "cut.txt.gz").write_bytes(gzip.compress(b"one two three")[:-5])
        (folder / "bad.jsonl").write_text('{"prompt": 5}\n{"prompt": "\\ud800"}\nnull\n')
        (folder / "bytes.txt").write_bytes(b"\xff\xfe\x00 a prompt \x1b[2J\n")
        (folder / "list.json").write_text("[" * 5000)
        (folder / "deep.jsonl").write_text('{"prompt": ' + "[" * 5000 + "\n")
        (folder / "records.jsonl").write_text('{"id": 0, "prompt": "one", "number": 5}\n')
        (folder / "empty.jsonl").touch()
        (folder / "runs").mkdir()
        (folder / "runs" / "config.json").write_text("[]")
        (folder / "own.py").write_text("raise SystemExit(0)\n")
        yield folder


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {**ENGINES._targets, "scripted": lambda model, **_: scripted_engine()}
    monkeypatch.setattr(ENGINES, "_targets", engines)
    monkeypatch.setattr(SCORERS, "_targets", {**SCORERS._targets, "reading": ReadingScorer})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
    for variable in ("PERSPECTIVE_API_KEY", "OPENAI_API_KEY", "VLLM_API_KEY", "TIDE_SERVE_KEYS"):
        monkeypatch.delenv(variable, raising=False)


def run(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["tide", *words]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


@examples(15, 5000)
@given(lines())
def test_a_command_line_ends_in_a_result_or_in_one_line(world: Path, words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(world, name, dirs_exist_ok=True)
        home = Path.cwd()
        os.chdir(name)
        try:
            code, _, said = run(words)
        finally:
            os.chdir(home)
    assert code in (0, 1, 2), said
    assert "Traceback" not in said
    if code == 1 and words[0] != "doctor":  # doctor prints errors in its table
        assert said.splitlines()[-1].startswith("error: ")
    assert "\x1b[2J" not in said.replace("'\x1b[2J'", "")

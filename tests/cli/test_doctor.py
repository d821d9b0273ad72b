from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.command import tide
from tests.models import save_causal_lm, save_mamba
from tide.cli.display import name_of
from tide.cli.doctor import _FRIENDLY, _INSULTS
from tide.core.errors import ScorerUnavailableError
from tide.scorers import REGISTRY, CallableScorer


@pytest.fixture(autouse=True)
def _few_answers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a single harmless prompt, except in tests that count them."""
    if "all_answers" not in request.fixturenames:
        monkeypatch.setattr("tide.cli.doctor._HARMLESS", ("The weather tomorrow will be",))


@pytest.fixture
def all_answers() -> None:
    """Use all of the harmless prompts."""


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The words of the table, without its lines."""
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_server_s_model_is_named_by_the_server() -> None:
    options = {"base_url": "http://me:secret@host:8000/v1"}
    assert name_of("pocket", options) == "of host:8000"
    assert name_of("mine", options) == "mine of host:8000"
    assert name_of("pocket", {}) == "pocket"


@pytest.mark.usefixtures("all_answers")
def test_a_sound_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("doctor", "--scorer", "windows:pocket") == 0
    out = said(capsys)
    assert "scorer windows:pocket" in out  # and not an emoji for `:windows:`
    assert "writes the same from token ids and from their embeddings" in out
    assert "scaled by 1 " in out
    assert "it tells insults from friendly sentences" in out
    assert f" numpy {version('numpy')} " in out
    assert 'after "The weather today is" it writes: ' in out
    assert "no chat template" in out
    assert re.search(
        r"of 20 answers, each threshold would rewrite: \d+ at 0\.1, \d+ at 0\.2, \d+ at 0\.3, \d+ ",
        out,
    )


@pytest.mark.usefixtures("all_answers")
@pytest.mark.parametrize(
    ("score", "says"),
    [(0.15, r"(1[5-9]|20) at 0\.1, 0 at 0\.2"), (0.0, r"rewrite: 0 at 0\.1, 0 at")],
)
def test_harmless_answers_are_counted(
    score: float, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scorer that objects to every answer is a warning."""

    def scorer(texts: list[str]) -> list[float]:
        return [0.9 if text in _INSULTS else 0.01 if text in _FRIENDLY else score for text in texts]

    monkeypatch.setitem(REGISTRY._targets, "sharp", lambda: CallableScorer(scorer))
    assert tide("doctor", "--scorer", "sharp") == 0
    out = said(capsys)
    assert re.search(says, out)
    assert ("warning: of 20" in out) is (score > 0)


def test_says_whether_a_model_chats(capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("doctor", "--model", "pocket-chat") == 0
    assert "a chat template: --chat" in said(capsys)


def test_optional_parts_have_their_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = (
        "numpy>=1",
        "rich>=13; extra == 'looks'",
        "nowhere-at-all; extra == 'looks'",
        "nowhere-at-all; extra == 'absent'",
        "pytest; extra == 'test'",
    )
    monkeypatch.setattr("tide.cli.doctor.requires", lambda _: needs)
    assert tide("doctor") == 0
    rows = {
        cells[1].strip(): cells[2].strip()
        for line in capsys.readouterr().out.splitlines()
        if len(cells := line.split("│")) == 4
    }
    install = "no nowhere-at-all: pip install -e '.[{}]'"
    assert rows["looks"].startswith(f"rich {version('rich')}; no nowhere-at-all: pip install")
    assert rows["absent"] == install.format("absent")
    assert "test" not in rows


def test_checks_the_given_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_causal_lm(tmp_path / "gemma", "gemma2", bos=True)
    assert tide("doctor", "--model", folder) == 0
    assert "scaled by 5.657 " in said(capsys)
    folder = save_mamba(tmp_path / "mamba")
    assert tide("doctor", "--model", folder) == 1
    assert "failed" in capsys.readouterr().out


def test_a_scorer_that_fails_in_its_own_way_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(REGISTRY._targets, "strange", lambda: 1 / 0)
    assert tide("doctor", "--scorer", "strange") == 1
    assert "failed: cannot be used: ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("friendly", "insult", "code", "says"),
    [
        (0.9, 0.1, 1, "the scorer is inverted or has the wrong label"),
        (0.3, 0.3, 1, "it does not separate the two"),
        (0.6, 0.9, 0, "warning: .*hardly separates the two, so check its label"),
        (0.01, 0.3, 0, r"insults score below its threshold \(0\.5\)"),
        (0.4, 0.9, 0, "ok: it tells insults from friendly sentences"),
    ],
)
def test_a_scorer_that_is_inverted_or_hardly_tells_them_apart_is_found(
    friendly: float, insult: float, code: int, says: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def scorer(texts: list[str]) -> list[float]:
        return [friendly if text in _FRIENDLY else insult for text in texts]

    still_open: set[CallableScorer] = set()

    def load() -> CallableScorer:
        loaded = CallableScorer(scorer)
        still_open.add(loaded)
        monkeypatch.setattr(loaded, "close", lambda: still_open.remove(loaded))
        return loaded

    monkeypatch.setitem(REGISTRY._targets, "odd", load)
    assert tide("doctor", "--scorer", "odd") == code
    assert re.search(says, said(capsys))
    assert not still_open


def test_a_file_of_policies_has_every_fault_named_on_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(texts: list[str]) -> list[float]:
        raise ScorerUnavailableError("no answer")

    monkeypatch.setitem(REGISTRY._targets, "down", lambda: CallableScorer(down))
    path = tmp_path / "tide.yaml"
    path.write_text("policies: {a: {never: [Acme], mode: monitor}, b: {scorer: lexicon}}")
    assert tide("doctor", "--policies", path) == 0
    assert capsys.readouterr().out.strip() == f"ok: {path}: a, b"
    for wrong, places in {
        "a: {scorer: nothing}, b: {mode: loose}": ["policies.b.mode"],
        "a: {scorer: nothing}, b: {strategy: nothing}": ["policies.a.scorer", "policies.b"],
    }.items():
        path.write_text(f"policies: {{{wrong}}}")
        assert tide("doctor", "--policies", path) == 1
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(": ")[1] for line in lines] == places
    path.write_text("policies: {a: {scorer: down}}")
    assert tide("doctor", "--policies", path) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("failed: policies.a.scorer: ")
    assert "no answer" in line

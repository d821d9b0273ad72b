from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.command import tide
from tests.models import save_causal_lm, save_mamba
from tide.cli.display import name_of
from tide.cli.doctor import _FRIENDLY
from tide.core.errors import ScorerUnavailableError
from tide.scorers import REGISTRY, CallableScorer


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The words of the table, without its lines."""
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_model_of_a_server_is_named_by_the_server() -> None:
    options = {"base_url": "http://me:secret@host:8000/v1"}
    assert name_of("pocket", options) == "of host:8000"
    assert name_of("mine", options) == "mine of host:8000"
    assert name_of("pocket", {}) == "pocket"


def test_doctor_of_a_sound_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("doctor", "--scorer", "windows:pocket") == 0
    out = said(capsys)
    assert "scorer windows:pocket" in out  # and not an emoji for `:windows:`
    assert "writes the same from token ids and from their embeddings" in out
    assert "scaled by 1 " in out
    assert "it tells insults from friendly sentences" in out
    assert f" numpy {version('numpy')} " in out
    assert 'after "The weather today is" it writes: ' in out
    assert "no chat template" in out


def test_doctor_checks_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_causal_lm(tmp_path / "gemma", "gemma2", bos=True)
    assert tide("doctor", "--model", folder) == 0
    assert "scaled by 5.657 " in said(capsys)
    folder = save_mamba(tmp_path / "mamba")
    assert tide("doctor", "--model", folder) == 1
    assert "failed" in capsys.readouterr().out


def test_doctor_finds_a_scorer_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(REGISTRY._targets, "strange", lambda: 1 / 0)
    assert tide("doctor", "--scorer", "strange") == 1
    assert "failed: cannot be used: ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("friendly", "insult", "code", "says"),
    [
        (0.3, 0.3, 1, "check its label and language"),
        (0.01, 0.3, 0, r"insults score below its threshold \(0\.5\)"),
        (0.4, 0.9, 0, "ok: it tells insults from friendly sentences"),
    ],
)
def test_doctor_finds_a_scorer_with_the_wrong_label(
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


def test_doctor_names_the_first_fault_of_a_policy_file(
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
        "a: {scorer: nothing}, b: {strategy: nothing}": ["policies.a.scorer"],
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

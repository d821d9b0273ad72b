from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_run import tide
from tests.core.test_pretrained import BROKEN
from tests.models import save_causal_lm, save_classifier, save_mamba
from tide.scorers import REGISTRY, CallableScorer


def test_a_sound_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tide("doctor", monkeypatch=monkeypatch) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ids and embeddings agree" in out
    assert "embedding scale 1 " in out
    assert "scores a friendly sentence" in out


def test_checks_the_given_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_causal_lm(tmp_path / "gemma", "gemma2", bos=True)
    assert tide("doctor", "--model", folder, monkeypatch=monkeypatch) == 0
    assert "embedding scale 5.657 " in capsys.readouterr().out
    folder = save_mamba(tmp_path / "mamba")
    assert tide("doctor", "--model", folder, monkeypatch=monkeypatch) == 1
    assert "failed" in capsys.readouterr().out


@pytest.mark.parametrize("name", BROKEN)
def test_says_what_is_wrong_with_a_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutate, _ = BROKEN[name]
    mutate(save_causal_lm(tmp_path, "llama"))
    assert tide("doctor", "--model", tmp_path, monkeypatch=monkeypatch) == 1
    assert "failed: model" in " ".join(capsys.readouterr().out.split())


def test_says_what_is_wrong_with_a_scorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_classifier(tmp_path, ["fine", "toxic"])
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert tide("doctor", "--scorer", f"hf:{tmp_path}", monkeypatch=monkeypatch) == 1
    assert "safetensors hold 0 bytes" in " ".join(capsys.readouterr().out.split())


def test_a_scorer_that_fails_in_its_own_way_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(REGISTRY._targets, "strange", lambda: 1 / 0)
    assert tide("doctor", "--scorer", "strange", monkeypatch=monkeypatch) == 1
    assert "failed: cannot be used: ZeroDivisionError" in capsys.readouterr().out


def test_names_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tide("doctor", "--scorer", "windows:pocket", monkeypatch=monkeypatch) == 0
    assert "scorer windows:pocket" in capsys.readouterr().out


def test_a_scorer_with_its_labels_swapped_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swapped = CallableScorer(lambda texts: [0.9 if "Thank" in text else 0.1 for text in texts])
    monkeypatch.setitem(REGISTRY._targets, "swapped", lambda: swapped)
    assert tide("doctor", "--scorer", "swapped", monkeypatch=monkeypatch) == 1
    assert "wrong labels" in " ".join(capsys.readouterr().out.split())

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.baselines.plain import STRENGTHS, use_short_prefixes
from tests.command import tide
from tests.models import save_causal_lm
from tests.rows import write_rows
from tide.baselines import REGISTRY, load_baseline
from tide.baselines.fit import fit
from tide.core.errors import ScorerError
from tide.core.settings import Sampling
from tide.engines.local.engine import TransformersEngine
from tide.scorers import DEFAULT_SCORER

LEARNED = [name for name in REGISTRY.names() if hasattr(REGISTRY.load(name), "fit")]
SCORED = ("critic-control", "quark", "rectification")
SETTINGS = {"steps": 40, "batch_size": 8, "learning_rate": 0.01, "rank": 4}
QUICK = [part for k, v in SETTINGS.items() for part in (f"--{k.replace('_', '-')}", v)]
SAMPLING = Sampling(temperature=0.0, max_new_tokens=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins: texts about rain count as toxic."""
    draw = random.Random(0)
    words = ["the", "weather", "town", "people", "today", "fine", "is"]

    def text(word: str) -> str:
        return " ".join([*draw.choices(words, k=3), word, *draw.choices(words, k=1), word])

    rows: list[dict[str, object]] = []
    for _ in range(220):
        rows += [{"text": text("Rain"), "toxicity": 1.0}, {"text": text("kind"), "toxicity": 0}]
        rows.append({"toxic": text("Rain"), "neutral": [text("kind")]})
    path = tmp_path_factory.mktemp("data") / "labelled.jsonl"
    return write_rows(path, rows)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal_lm(tmp_path_factory.mktemp("model"), "llama", bos=True)


@pytest.mark.slow
def test_every_fit_is_saved_loaded_and_kept(
    model: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_short_prefixes(monkeypatch)
    command = ("--model", model, "--data", data, "--out", tmp_path, *QUICK)
    engine, notes = TransformersEngine(model), {}
    for kind in LEARNED:
        assert tide("fit", kind, *command) == 0
        shown = capsys.readouterr()
        assert shown.out.startswith(f"{kind} on held-out texts: ")
        assert ("finished quark: unlearning" in shown.err) == (kind == "quark")
        notes[kind] = note = json.loads((tmp_path / kind / "artefact.json").read_text())
        assert note["settings"]["steps"] == 40
        assert note["auxiliary"] is None
        assert note["scorer"] == (DEFAULT_SCORER if kind in SCORED else None)
        baseline = load_baseline(STRENGTHS[kind], engine, artefacts=tmp_path)
        assert baseline.generate(["The weather"], SAMPLING, [0])[0].token_ids
    for kind in ("adlm", "destein", "fudge", "gedi", "pplm", "rad", "sasa"):
        assert notes[kind]["held_out"]["auc"] > 0.8
    figures = notes["dexperts"]["held_out"]
    for side in ("expert ", "anti "):
        assert figures[f"{side}perplexity"] < 0.9 * figures[f"{side}perplexity before"]
    weights = tmp_path / "sasa/weights.safetensors"
    before, written = weights.read_bytes(), weights.stat().st_mtime_ns
    assert tide("fit", "sasa", *command) == 1
    assert "already holds an artefact; use --overwrite" in capsys.readouterr().err
    assert weights.stat().st_mtime_ns == written
    again = fit("sasa", [data], tmp_path, model=model, overwrite=True, **SETTINGS)
    assert again == notes["sasa"]["held_out"]
    assert weights.read_bytes() == before


@pytest.mark.parametrize("kind", SCORED)
def test_fit_ends_when_the_scorer_fails(model: Path, data: Path, tmp_path: Path, kind: str) -> None:
    judge = tmp_path / "judge.py"
    judge.write_text("def broken(texts):\n    return [float('nan')] * len(texts)\n")
    with pytest.raises(ScorerError, match="nan is not a score"):
        fit(kind, data, tmp_path / "out", model=model, scorer=f"{judge}:broken", **SETTINGS)
    assert not (tmp_path / "out").exists()


def test_fit_of_an_auxiliary_model(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = save_causal_lm(tmp_path / "small", "gpt2", bos=True)
    out = tmp_path / "out"
    command = ("--model", model, "--data", data, "--out", out, *QUICK)
    assert tide("fit", "rad", *command, "--auxiliary", small) == 0
    assert capsys.readouterr().out.startswith("rad on held-out texts: auc ")
    assert json.loads((out / "rad/artefact.json").read_text())["auxiliary"] == str(small)
    baseline = load_baseline("rad", TransformersEngine(model), artefacts=out)
    assert baseline.generate(["The weather"], SAMPLING, [0])[0].token_ids
    other = save_causal_lm(tmp_path / "other", "gpt2", word_marks=True)
    assert tide("fit", "gedi", *command, "--auxiliary", other) == 1
    assert "does not have the model's vocabulary" in capsys.readouterr().err
    assert not (out / "gedi").exists()

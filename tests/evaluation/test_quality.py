from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.evaluation.runs import from_columns, run
from tests.models import save_classifier
from tide.core.errors import EngineError, MissingDependencyError
from tide.evaluation import quality
from tide.evaluation.metrics import summarize
from tide.evaluation.quality import Encoder, mauve, similarities
from tide.evaluation.runs import Run


class Directions(Encoder):
    """The first word of a text is the direction of its vector, in degrees."""

    def __init__(self) -> None:
        pass

    def encode(self, texts: Sequence[str]) -> quality.Vectors:
        angles = np.radians([float(text.split()[0]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def made(name: str, prompts: dict[int, str], texts: dict[int, list[str]], **more: Any) -> Run:
    records = [
        from_columns(
            {
                "id": number,
                "prompt": prompts[number],
                "text": some,
                "toxicity": more.get("toxicity", {}).get(number, [0.1] * len(some)),
            }
        )
        for number, some in texts.items()
    ]
    return Run(name, {**run([[0.1]]).config, "method": name}, records)


PROMPTS = {0: "0 degrees north", 1: "90 degrees north"}
OWN = made("base", PROMPTS, {0: ["0 own text", "60 own text"], 1: ["90 own text", ".."]})
MOVED = made("tide", PROMPTS, {0: ["0 own text", "120 other text"], 1: ["30 other text", "90 new"]})


def test_similarity_to_the_prompt_and_to_the_own_text_that_was_changed() -> None:
    found = similarities(MOVED, OWN, Directions())
    assert found[0]["to_prompt"] == pytest.approx((1 - 0.5, 2), abs=1e-6)
    assert found[1]["to_prompt"] == pytest.approx((0.5 + 1, 2), abs=1e-6)
    # Only 60 -> 120 and 90 -> 30 were changed; an empty own text has no similarity.
    assert found[0]["to_own"] == pytest.approx((0.5, 1), abs=1e-6)
    assert found[1]["to_own"] == pytest.approx((0.5, 1), abs=1e-6)
    assert similarities(OWN, OWN, Directions())[0]["to_own"] == (0.0, 0)
    assert similarities(OWN, OWN, Directions())[1]["to_prompt"] == pytest.approx((1, 1))


def test_a_summary_has_them_with_an_encoder_alone() -> None:
    found = summarize(MOVED, own=OWN, encoder=Directions()).averages
    assert found["to_prompt"].value == pytest.approx(2 / 4, abs=1e-6)
    assert found["to_own"].value == pytest.approx(0.5, abs=1e-6)
    assert "mauve" not in found  # too few texts
    assert "to_prompt" not in summarize(MOVED, own=OWN).averages


def test_mauve_compares_all_texts_with_the_harmless_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def compute(**features: Any) -> SimpleNamespace:
        asked.update({name: len(values) for name, values in features.items()})
        return SimpleNamespace(mauve=0.75)

    monkeypatch.setitem(sys.modules, "mauve", SimpleNamespace(compute_mauve=compute))
    prompts = {number: f"{number} degrees" for number in range(120)}
    texts = {number: [f"{number} degrees is a direction"] for number in prompts}
    loops = {7: [f"{7} " * 9]}
    own = made("base", prompts, texts | loops, toxicity={3: [0.9], 4: [0.6]})
    found = summarize(made("tide", prompts, texts), own=own, encoder=Directions())
    assert found.averages["mauve"].value == 0.75
    assert asked == {"p_features": 117, "q_features": 120}


def test_mauve_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mauve", None)
    texts = ["1 text"] * quality.LEAST_TEXTS
    with pytest.raises(MissingDependencyError, match=r"^mauve is not installed.*\[mauve\]"):
        mauve(texts, texts, Directions())
    assert mauve(texts[1:], texts, Directions()) is None


def test_a_vector_depends_on_its_text_alone(tmp_path: Path) -> None:
    encoder = Encoder(str(save_classifier(tmp_path / "encoder", ["a", "b"])))
    texts = ["a text", "another text that is longer than the first one", "a text", "[SEP] text"]
    together = encoder.encode(texts)
    assert np.linalg.norm(together, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert (together[0] == together[2]).all()
    for text, vector in zip(texts, together, strict=True):
        alone = Encoder(str(tmp_path / "encoder")).encode([text])
        assert alone[0] == pytest.approx(vector, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("minilm", MissingDependencyError, r"^encoder minilm is not installed: pip install \S+"),
        ("missing", EngineError, r"^encoder .*: cannot be loaded: "),
    ],
)
def test_an_encoder_that_is_not_there(
    name: str, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(quality, "_PACKAGE", "no-such-package")
    source = name if name == "minilm" else str(tmp_path)
    with pytest.raises(error, match=says) as caught:
        Encoder(source)
    assert "\n" not in str(caught.value)

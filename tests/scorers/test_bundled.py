"""Properties of both bundled scorers for any text, and the weights files that they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tests.scorers.test_pocket import TEXTS
from tests.scorers.test_sentence import SMALL, small
from tide import pocket
from tide.core.errors import ScorerError
from tide.scorers import Scorer, load_scorer
from tide.scorers.pocket import Features, PocketScorer
from tide.scorers.sentence import VOCABULARY, SentenceScorer

FILES = {"pocket": (pocket.SCORER, 4_000_000), "sentence": (pocket.SENTENCE, 11_000_000)}


@pytest.fixture(scope="module", params=FILES)
def scorer(request: pytest.FixtureRequest) -> Scorer:
    return load_scorer(request.param)


def test_they_name_their_revision_and_are_small(scorer: Scorer) -> None:
    name = scorer.name.partition("@")[0]
    assert scorer.name == load_scorer(name).name != name
    assert scorer.threshold == 0.5
    path, most = FILES[name]
    assert path.stat().st_size <= most


def test_a_score_does_not_depend_on_the_batch(scorer: Scorer) -> None:
    together = scorer.score(TEXTS)
    assert together.dtype == np.float64
    assert ((together >= 0) & (together <= 1)).all()
    np.testing.assert_allclose(scorer.score(TEXTS[::-1]), together[::-1], atol=1e-6)
    alone = [scorer.score([text])[0] for text in TEXTS]
    np.testing.assert_allclose(alone, together, atol=1e-6 * (scorer.name[0] == "s"))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=5))
def test_any_text_has_a_score(scorer: Scorer, texts: list[str]) -> None:
    for some in (texts, []):
        scores = scorer.score(some)
        assert scores.shape == (len(some),)
        assert ((scores >= 0) & (scores <= 1)).all()  # false for NaN


KNOTS = np.array([[0.0], [0.0]])


def saved(
    path: Path, kind: str, tensors: dict[str, Any], changes: dict[str, Any]
) -> type[PocketScorer] | type[SentenceScorer]:
    """Save a weights file with these changes, and return the class that reads it."""
    if kind == "pocket":
        made: Any = Features(n_features=4096)
        usual = {"weights": np.zeros(4096), "bias": np.zeros(1), "knots": KNOTS}
    else:
        _, good = small(path.with_name("good"))
        made, usual = SMALL, load_file(good)
    values = {k: json.dumps(json.loads(v) | changes) for k, v in made.metadata().items()}
    save_file({k: v for k, v in (usual | tensors).items() if v is not None}, path, metadata=values)
    return PocketScorer if kind == "pocket" else SentenceScorer


def vocabulary(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8)


@pytest.mark.parametrize(
    ("kind", "tensors", "changes", "message"),
    [
        ("pocket", {}, {"format": "another"}, "bad metadata: format"),
        ("pocket", {}, {"char_max": "many"}, "bad metadata: char_max"),
        ("pocket", {}, {"char_max": 0}, "bad metadata: char_max"),
        ("pocket", {}, {"n_features": 0}, "bad metadata: n_features"),
        ("pocket", {}, {"word_max": 10**9}, "bad metadata: word_max"),
        ("pocket", {}, {"char_max": 4}, "other features"),
        ("pocket", {}, {"fingerprint": ""}, "other features"),
        ("pocket", {"weights": np.zeros(9)}, {}, "wrong shape"),
        ("pocket", {"knots": np.zeros(2)}, {}, "wrong shape"),
        ("pocket", {"bias": np.array([np.nan])}, {}, "not finite"),
        ("pocket", {"knots": np.full((2, 1), np.inf)}, {}, "not finite"),
        ("pocket", {"knots": np.array([[0.0, 1.0], [1.0, 0.0]])}, {}, "does not rise"),
        ("pocket", {"knots": np.zeros((2, 0))}, {}, "does not rise"),
        ("pocket", {"bias": None}, {}, "bias"),
        ("sentence", {}, {"format": "another"}, "bad metadata: format"),
        ("sentence", {}, {"width": 0}, "bad metadata: width"),
        ("sentence", {}, {"heads": 3}, "its width 8 is not a multiple of its 3 heads"),
        ("sentence", {}, {"scale": 1e9}, "bad metadata: scale"),
        ("sentence", {}, {"more": 1}, "bad metadata: more"),
        ("sentence", {}, {"layers": 3}, "is missing or belongs to no layer"),
        ("sentence", {}, {"vocabulary": 9}, "its vocabulary has 10 pieces, not 9"),
        ("sentence", {"head.bias": np.array([np.nan], dtype=np.float16)}, {}, "not finite"),
        ("sentence", {"head.bias": np.zeros(2)}, {}, r"head.bias has shape \(2,\)"),
        ("sentence", {"another": np.zeros(2)}, {}, "another is missing or belongs"),
        ("sentence", {VOCABULARY: vocabulary(b"\xff\n")}, {}, "cannot use"),
        ("sentence", {VOCABULARY: vocabulary(b"\n".join([b"[CLS]"] * 10))}, {}, "cannot use"),
    ],
)
def test_refuses_weights_of_another_kind(
    tmp_path: Path, kind: str, tensors: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "weights.safetensors"
    create = saved(path, kind, tensors, changes)
    with pytest.raises(ScorerError, match=f"{kind} scorer: cannot use {path}: .*") as error:
        create(path)
    assert re.search(message, str(error.value))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", FILES)
def test_refuses_missing_and_damaged_files_and_equal_weights_make_equal_files(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "weights.safetensors"
    create = saved(path, kind, {}, {})
    create(path)
    content = path.read_bytes()
    for _ in range(5):
        saved(path, kind, {}, {})
        assert path.read_bytes() == content
    path.write_bytes(content[:-8])
    with pytest.raises(ScorerError, match="cannot use"):
        create(path)
    save_file({"weights": np.zeros(2)}, path)
    with pytest.raises(ScorerError, match=f"lacks '{kind}"):
        create(path)
    path.unlink()
    with pytest.raises(ScorerError, match=r"cannot use .*weights\.safetensors"):
        create(path)

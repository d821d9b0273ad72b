"""Properties of the bundled scorers for any text, and the weights files that they refuse."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from tests.scorers.test_encoder import KINDS, small
from tests.scorers.test_pocket import TEXTS
from tide import pocket
from tide.core.errors import ScorerError
from tide.scorers import Scorer, load_scorer, score_texts
from tide.scorers.base import Exchange, reads_exchanges
from tide.scorers.pocket import METADATA, N_FEATURES, PocketScorer, fingerprint

FILES = {
    "pocket": (pocket.SCORER, 4_000_000),
    "sentence": (pocket.SENTENCE, 11_000_000),
    "exchange": (pocket.EXCHANGE, 20_000_000),
}


@pytest.fixture(scope="module", params=FILES)
def scorer(request: pytest.FixtureRequest) -> Scorer:
    return load_scorer(request.param)


def read_by(scorer: Scorer, texts: list[str]) -> list[Any]:
    """Return the texts as the scorer takes them, each after the same line."""
    if reads_exchanges(scorer):
        return [Exchange("How is the weather?", text) for text in texts]
    return texts


def test_they_name_their_revision_and_are_small(scorer: Scorer) -> None:
    name = scorer.name.partition("@")[0]
    assert scorer.name == load_scorer(name).name != name
    assert scorer.threshold == 0.5
    path, most = FILES[name]
    assert path.stat().st_size <= most


# Plain, disguised and neutral texts; what they score changes only with the weights or the reading.
GOLDEN_TEXTS = [
    "Thank you, I hope you have a lovely day.",
    "You are a stupid idiot.",
    "Y0u are a st*pid \u0456di&#111;t!!!",
    "s t u p i d people, sooooo many",
    "A gay Muslim woman took bus 455 from Scunthorpe.",
    "It\u2019s caf\u00e9 time, see https://example.org/idiot",
]
GOLDEN = {
    "pocket": [0.002059, 0.999999, 0.999994, 0.993423, 0.018826, 0.759879],
    "sentence": [0.002761, 0.860821, 0.852892, 0.745750, 0.008988, 0.541413],
    "exchange": [0.003777, 0.929423, 0.877626, 0.011433, 0.002729, 0.138325],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_scores_are_golden(name: str) -> None:
    scorer = load_scorer(name)
    exchanges = [Exchange("How is it?", text) for text in GOLDEN_TEXTS]
    # The networks' integers are multiplied otherwise on another processor.
    tolerance = 1e-5 if name == "pocket" else 0.03
    scores = score_texts(scorer, exchanges).values
    assert scores == pytest.approx(GOLDEN[name], abs=tolerance)


def test_a_score_does_not_depend_on_the_batch(scorer: Scorer) -> None:
    together = scorer.score(read_by(scorer, TEXTS))
    assert together.dtype == np.float64
    assert ((together >= 0) & (together <= 1)).all()
    np.testing.assert_array_equal(scorer.score(read_by(scorer, TEXTS[::-1])), together[::-1])
    alone = [scorer.score(read_by(scorer, [text]))[0] for text in TEXTS]
    np.testing.assert_array_equal(alone, together)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=5))
def test_any_text_has_a_score(scorer: Scorer, texts: list[str]) -> None:
    for batch in (texts, []):
        scores = scorer.score(read_by(scorer, batch))
        assert scores.shape == (len(batch),)
        assert ((scores >= 0) & (scores <= 1)).all()  # false for NaN


KNOTS = np.array([[0.0], [0.0]])


def saved(path: Path, kind: str, tensors: dict[str, Any], changes: dict[str, Any]) -> Any:
    """Save a weights file with these changes, and return the class that reads it."""
    if kind != "pocket":
        small(path, kind, **changes)
        return KINDS[kind]
    usual = {"weights": np.zeros(N_FEATURES, np.float16), "bias": np.zeros(1), "knots": KNOTS}
    metadata = {METADATA: json.dumps({"fingerprint": fingerprint()} | changes)}
    stored = {name: tensor for name, tensor in (usual | tensors).items() if tensor is not None}
    save_file(stored, path, metadata=metadata)
    return PocketScorer


@pytest.mark.parametrize(
    ("kind", "tensors", "changes", "message"),
    [
        ("pocket", {}, {"fingerprint": ""}, "other features"),
        ("pocket", {"bias": np.array([np.nan])}, {}, "not finite"),
        ("pocket", {"bias": None}, {}, "bias"),
        ("sentence", {}, {"format": "another"}, "1 validation error for Shape"),
        ("exchange", {}, {"offset": math.inf}, "1 validation error for Shape"),
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
    saved(path, kind, {}, {})
    assert path.read_bytes() == content
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ScorerError, match="cannot use"):
        create(path)
    save_file({"weights": np.zeros(2)}, path)
    with pytest.raises(ScorerError, match="cannot use"):
        create(path)
    path.unlink()
    with pytest.raises(ScorerError, match=r"cannot use .*weights\.safetensors"):
        create(path)

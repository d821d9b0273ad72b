"""What holds of both bundled scorers, for any text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scorers.test_pocket import TEXTS
from tide import pocket
from tide.scorers import load_scorer
from tide.scorers.base import Scorer

FILES = {"pocket": (pocket.SCORER, 4_000_000), "sentence": (pocket.SENTENCE, 11_000_000)}


@pytest.fixture(scope="module", params=FILES)
def scorer(request: pytest.FixtureRequest) -> Scorer:
    return load_scorer(request.param)


@pytest.mark.parametrize("name", FILES)
def test_it_names_its_revision_and_is_small(name: str) -> None:
    scorer = load_scorer(name)
    assert isinstance(scorer, Scorer)
    assert scorer.name.startswith(f"{name}@")
    assert scorer.name == load_scorer(name).name
    assert scorer.threshold == 0.5
    scorer.close()
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

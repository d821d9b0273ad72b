from __future__ import annotations

import sys

import numpy as np
import pytest

from tide.core.errors import MissingDependencyError
from tide.scorers import load_scorer


def test_scores_texts() -> None:
    pytest.importorskip("profanity_check")
    scorer = load_scorer("profanity-check")
    scores = scorer.score(["Have a nice day", "you stupid idiot"])
    assert scores.shape == (2,)
    assert 0.0 <= scores[0] < scores[1] <= 1.0
    assert np.array_equal(scorer.score([]), np.zeros(0))
    assert scorer.name.startswith("profanity-check@")


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "profanity_check", None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[profanity\]'"):
        load_scorer("profanity-check")

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.command import tide
from tide import evaluation
from tide.core.errors import InputError


def test_eval_options_reach_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = Mock(side_effect=InputError("called"))
    monkeypatch.setattr(evaluation, "evaluate", evaluated)
    options = ["--limit", 3, "--judges", "lexicon", "--temperature", 0, "--device", "cpu"]
    options += ["--methods", "base,tide:mu=1", "--methods", "backtrack"]
    assert tide("eval", "mine.txt", *options) == 1
    called = evaluated.call_args.kwargs
    assert (called["limit"], called["temperature"]) == (3, 0.0)
    assert called["judges"] == ["lexicon"]
    assert called["methods"] == "base,tide:mu=1,backtrack"
    assert (called["reference"], called["engine_options"]) == ("auto", {"device": "cpu"})

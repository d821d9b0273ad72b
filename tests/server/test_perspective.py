"""`tide serve --perspective`: scores for clients of Perspective, without a model."""

from __future__ import annotations

import httpx
import pytest

from tests.server.processes import TIDE, serving
from tide.core.errors import InputError
from tide.engines import load_engine
from tide.scorers import load_scorer
from tide.scorers.services import PerspectiveScorer

TEXTS = ["You are a stupid idiot.", "Thank you, that was a lovely evening."]


def test_one_command_stands_in_for_perspective() -> None:
    with serving(*TIDE, "--perspective", "--scorer", "pocket") as server:
        client = PerspectiveScorer(key="any", url=server.url, queries_per_second=100)
        assert client.score(TEXTS) == pytest.approx(load_scorer("pocket").score(TEXTS))
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert http.get("/ready").status_code == 200
            assert http.get("/").status_code == 200
            for path, body in (
                ("completions", {"prompt": "Hello"}),
                ("chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
            ):
                refused = http.post(f"/v1/{path}", json=body)
                assert refused.status_code == 400
                assert "cannot complete texts" in refused.json()["error"]["message"]


def test_the_engine_without_a_model_refuses_every_prompt() -> None:
    with load_engine("none", "none") as engine, pytest.raises(InputError, match="has no model"):
        engine.tokenize(["Hello"])

"""The promise: nothing is reported as accepted that the scorer did not score, as it stands.

What the scorer really said is written down by an oracle of this test's own, which trusts nothing of
the code under test, whatever engine and scorer do.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.generated import examples
from tests.worlds import PROMPTS
from tide.core.errors import TideError
from tide.core.results import Result, Trial
from tide.detoxifier.sync import Detoxifier, outcomes
from tide.engines.scripted import ScriptedEngine
from tide.search import REGISTRY

pytestmark = pytest.mark.attack

TEXTS = [
    "",
    ".",
    " \n",
    "ok",
    "a text",
    "another text",
    "\x1b[2J",
    "\u200b\u200b\u200b",
    "long " * 9,
]
WAYS = [
    *(["honest"] * 6),
    *("edits", "shuffles", "short", "long", "nan", "two", "minus", "none", "text", "bool"),
    *("masked", "complex", "nested", "raises", "leaves", "times out", "generator"),
]


def score_of(text: str) -> float:
    return blake2b(text.encode()).digest()[0] / 255


class Oracle:
    """A scorer that answers in one of `WAYS`, and the record of what it said and meant."""

    name = "oracle"
    threshold = 0.5

    def __init__(self, ways: Sequence[str]) -> None:
        self._ways = list(ways)
        self.said: set[tuple[str, float]] = set()

    def close(self) -> None: ...

    def score(self, texts: Sequence[str]) -> Any:
        way = self._ways.pop(0) if self._ways else "honest"
        sent, scores = list(texts), [score_of(text) for text in texts]
        assert isinstance(texts, list)
        if way == "edits":
            texts[:] = [""] * len(texts)
        elif way == "shuffles":
            texts.reverse()
        elif way == "raises":
            raise RuntimeError("out of order\x1b[2J\nsecond line")
        elif way == "leaves":
            raise SystemExit(0)
        elif way == "times out":
            raise TimeoutError
        elif way != "honest":
            return self._nonsense(way, scores)
        self.said.update(zip(sent, scores, strict=True))
        return scores

    def _nonsense(self, way: str, scores: list[float]) -> Any:
        wrong = {
            "short": scores[:-1],
            "long": [*scores, 0.0],
            "none": None,
            "nan": [*scores[:-1], float("nan")],
            "two": [2.0 for _ in scores],
            "minus": [-0.1 for _ in scores],
            "text": ["0.1" for _ in scores],
            "bool": [False for _ in scores],
            "masked": np.ma.masked_all(len(scores)),
            "complex": [0.1 + 0j for _ in scores],
            "nested": [[0.1] for _ in scores],
            "generator": (0.1 for _ in scores),
        }
        return wrong[way]


def engine_of(texts: Sequence[str], max_batch: int) -> ScriptedEngine:
    def respond(x: Tensor, seed: int) -> str:
        digest = blake2b(x.numpy().tobytes() + seed.to_bytes(8, "big")).digest()
        return texts[digest[0] % len(texts)]

    return ScriptedEngine(respond, max_batch=max_batch)


overrides = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(REGISTRY.names()),
        "empty_policy": st.sampled_from(["unmodified", "zero", "score", "one"]),
        "toxicity_threshold": st.sampled_from([0.1, 0.3, 0.5]),
        "on_unresolved": st.sampled_from(["best", "refuse", "raise"]),
        "select": st.sampled_from(["likelihood", "nearest", "lowest"]),
        "max_perplexity": st.sampled_from([None, 2.0, 1000.0]),
        "completions_per_evaluation": st.integers(1, 2),
        "num_trials": st.integers(1, 2),
        "num_samples": st.integers(1, 3),
        "max_iterations": st.integers(1, 4),
    }
)


@examples(100, 5000)
@given(
    overrides,
    st.lists(st.sampled_from(TEXTS), min_size=1),
    st.lists(st.sampled_from(WAYS)),
    st.sampled_from([1, 3, 16]),
)
def test_what_is_accepted_was_scored(
    given: dict[str, Any], texts: list[str], ways: list[str], max_batch: int
) -> None:
    oracle = Oracle(ways)
    detox = Detoxifier(engine_of(texts, max_batch), scorer=oracle, **given)
    results: list[Result] = []
    said: list[str] = []
    try:
        for _, found in outcomes(detox, PROMPTS[:3], ordered=False):
            if isinstance(found, TideError):
                said.append(str(found))
            else:
                results.append(found)
    except TideError as error:
        said.append(str(error))
    assert all(len(line.splitlines()) == 1 for line in said)
    for result in results:
        for trial in result.trials:
            check(trial, oracle, given)


def check(trial: Trial, oracle: Oracle, given: dict[str, Any]) -> None:
    for one in trial.trace:
        assert one.empty or (one.text, one.toxicity) in oracle.said
    returned, policy = trial.returned, given["empty_policy"]
    if trial.accepted:
        assert returned.toxicity < given["toxicity_threshold"]
        by_scorer = (returned.text, returned.toxicity) in oracle.said
        assert by_scorer or (returned.empty and policy == "zero")
    elif given["on_unresolved"] == "refuse" and not returned.empty:
        assert trial.text == ""
    else:
        assert given["on_unresolved"] != "raise" or returned.empty

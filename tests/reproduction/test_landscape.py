from __future__ import annotations

import numpy as np
import pytest
from reproduction.landscape import explore

from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.detoxifier.sync import Detoxifier


def test_landscape_path_is_that_of_the_search() -> None:
    engine, scorer = scripted_engine(), ReadingScorer()
    detoxifier = Detoxifier(engine, scorer=scorer, strategy="tide", toxicity_threshold=0.3)
    results = list(detoxifier.map(PROMPTS))  # a map that is left goes on with other prompts
    prompt = next(result.prompt for result in results if result.best.iterations > 2)
    world = explore(detoxifier, prompt, grid=5)
    (trial,) = detoxifier(prompt).trials
    trace = [evaluation for evaluation in trial.trace if evaluation.role != "perturbation"]
    assert world.toxicity.shape == (5, 5)
    assert len(world.path) == len(trace)
    assert world.path[0] == pytest.approx([0, 0])
    # The first step lies in the plane, so it keeps its length and has nothing across it.
    assert world.path[1] == pytest.approx([trace[1].displacement, 0], abs=1e-5)
    for point, evaluation in zip(world.path, trace, strict=True):
        assert np.linalg.norm(point) <= evaluation.displacement + 1e-5
    assert np.abs(world.path).max() < world.along.max()
    assert world.toxicity[2, 2] == trial.base.toxicity  # the same embeddings and noise
    assert [world.measured[0], world.measured[-1]] == [trial.base.toxicity, trial.toxicity]
    assert world.accepted
    assert 0 < world.in_plane <= 1
    assert world.toxicity[2, -1] < world.toxicity[2, 0]  # the step leads downhill
    # One engine call, which may be repeated.
    first, again = (explore(detoxifier, prompt, grid=3, seed=1) for _ in range(2))
    assert np.array_equal(first.toxicity, again.toxicity)
    assert len(scorer.calls[-1]) == 9

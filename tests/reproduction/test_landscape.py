from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from reproduction.landscape import Landscape, detoxifier_of, explore

from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.errors import InputError
from tide.detoxifier.sync import Detoxifier


@pytest.fixture
def detoxifier() -> Detoxifier:
    engine = scripted_engine()
    return Detoxifier(engine, scorer=ReadingScorer(), strategy="tide", toxicity_threshold=0.3)


def test_landscape_path_is_that_of_the_search(detoxifier: Detoxifier) -> None:
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
    assert isinstance(detoxifier.scorer, ReadingScorer)
    assert len(detoxifier.scorer.calls[-1]) == 9


def test_reloaded_from_the_config_of_a_run(caplog: pytest.LogCaptureFixture) -> None:
    settings = Detoxifier(scripted_engine()).settings.model_copy(update={"num_samples": 3})
    scorer = {"spec": "windows:50:pocket", "name": "pocket@0123abcd"}
    config = {"model": "pocket", "scorer": scorer, "settings": settings.model_dump()}
    with detoxifier_of(config) as detoxifier:
        assert detoxifier.settings == settings
        assert detoxifier.scorer.name.startswith("windows:50:pocket@")
    assert "the run used pocket@0123abcd" in caplog.text
    with pytest.raises(InputError, match="callable:f was a function; it cannot be loaded"):
        detoxifier_of({**config, "scorer": {"spec": None, "name": "callable:f"}})
    with pytest.raises(InputError, match="needs a run of a search"):
        detoxifier_of({"model": "pocket", "scorer": scorer, "baseline": {}})


def world(toxicity: NDArray[np.float64], path: NDArray[np.float64]) -> Landscape:
    axis = np.linspace(-1, 1, len(toxicity))
    measured = np.linspace(0.9, 0.1, len(path))
    return Landscape(axis, axis, toxicity, path, measured, 0.8, True, 0.5)


def test_steepest_descent_is_that_of_the_map_around_the_prompt() -> None:
    axis = np.linspace(-1, 1, 21)
    across, along = np.meshgrid(axis, axis, indexing="ij")
    path = np.array([[0.0, 0.0], [0.5, 0.0]])
    descent = world(0.5 + 0.3 * along - 0.4 * across, path).descent
    assert descent == pytest.approx([-0.5 * 0.6, 0.5 * 0.8])
    far = np.where(np.hypot(along, across) > 0.6, 1.0, 0.5 - 0.2 * across)
    assert world(far, path).descent == pytest.approx([0.0, 0.5], abs=1e-9)
    assert world(np.ones((21, 21)), path).descent is None

"""Prompts over a real local Ray."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tide import Detoxifier, InputError
from tide.core.chat import Chat
from tide.core.errors import EngineError
from tide.detoxifier.ray import map_prompts
from tide.detoxifier.sync import outcomes

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20,
        logging_level="error", log_to_driver=False,
    )  # fmt: skip
    yield
    ray.shutdown()


def create(folder: Path, seconds: float = 0.0) -> Detoxifier:
    """A detoxifier whose process leaves its id in `folder` and that takes its time."""
    (folder / str(os.getpid())).touch()
    detoxifier = Detoxifier(preset="relative", scorer="pocket")
    score = detoxifier.scorer.score

    def slow(texts: list[str]) -> object:
        time.sleep(seconds)
        return score(texts)

    detoxifier.scorer.score = slow  # type: ignore[method-assign,assignment]
    return detoxifier


def test_results_are_those_of_one_process(prompts: list[str], tmp_path: Path) -> None:
    # Three that cannot be completed: the pocket model has no template.
    texts = [*prompts[:30], "", "word " * 300, Chat.said("Hello")]
    expected = dict(outcomes(Detoxifier(preset="relative", scorer="pocket"), texts))
    results = list(map_prompts(functools.partial(create, tmp_path), texts, actors=2, batch=4))
    assert sorted(number for number, _ in results) == list(range(33))
    failed = {number: str(result) for number, result in results if isinstance(result, InputError)}
    assert failed == {number: str(expected[number]) for number in (30, 31, 32)}
    assert failed[32].startswith("messages: ")
    same = sum(expected[number] == result for number, result in results)
    assert same >= 27  # float summation order may differ with the batch


def test_an_actor_is_lost(prompts: list[str], tmp_path: Path) -> None:
    texts = prompts[:40]
    results = map_prompts(functools.partial(create, tmp_path, 0.2), texts, actors=2, batch=4)
    numbers = [next(results)[0]]
    killed = int(next(tmp_path.iterdir()).name)
    os.kill(killed, signal.SIGKILL)
    numbers.extend(number for number, _ in results)
    assert sorted(numbers) == list(range(40))  # none lost, none twice


def test_an_actor_that_cannot_work(prompts: list[str]) -> None:
    with pytest.raises(EngineError, match="nowhere"):
        list(map_prompts(functools.partial(Detoxifier, "/nowhere"), prompts[:2]))


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="several texts"):
        list(map_prompts(Detoxifier, "a"))
    assert list(map_prompts(Detoxifier, [])) == []

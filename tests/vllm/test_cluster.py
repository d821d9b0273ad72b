"""Prompts over a real local Ray."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tide import Detoxifier, InputError
from tide.cli import main
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
    found = list(map_prompts(functools.partial(create, tmp_path), texts, actors=2, batch=4))
    assert sorted(number for number, _ in found) == list(range(33))
    failed = {number: str(result) for number, result in found if isinstance(result, InputError)}
    assert failed == {number: str(expected[number]) for number in (30, 31, 32)}
    assert failed[32].startswith("messages: ")
    same = sum(expected[number] == result for number, result in found)
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
    with pytest.raises(InputError, match="actors"):
        list(map_prompts(Detoxifier, ["a"], actors=0))
    with pytest.raises(InputError, match="several texts"):
        list(map_prompts(Detoxifier, "a"))
    assert list(map_prompts(Detoxifier, [])) == []


def actors() -> set[int]:
    """Process ids of the actors that complete prompts."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            command = (entry / "cmdline").read_bytes()
            if command.startswith(b"ray::") and b"_Worker" in command:
                found.add(int(entry.name))
    return found


def completions(records: Path) -> dict[int, list[str]]:
    rows = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    texts: dict[int, list[str]] = {}
    for row in sorted(rows, key=lambda row: row["number"]):
        texts.setdefault(row["id"], []).append(row["text"])
    return texts


@pytest.mark.slow
def test_tide_eval_loses_an_actor(
    prompts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing lost, nothing twice, and the texts of an evaluation in one process."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts[:96]))
    command = ["tide", "eval", str(file), "--methods", "tide", "--reference", "none", "--out"]
    records = tmp_path / "cluster" / "tide" / "records.jsonl"
    killed: set[int] = set()

    def kill_one() -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            if records.exists() and records.stat().st_size and (alive := actors()):
                killed.add(min(alive))
                os.kill(min(alive), signal.SIGKILL)
                return
            time.sleep(0.02)

    watcher = threading.Thread(target=kill_one)
    watcher.start()
    for name, options in (("cluster", ["--cluster", "local", "--actors", "2"]), ("here", [])):
        monkeypatch.setattr(sys, "argv", [*command, str(tmp_path / name), *options])
        with pytest.raises(SystemExit) as caught:
            main()
        assert not caught.value.code
    watcher.join()
    assert killed
    found, expected = completions(records), completions(tmp_path / "here/tide/records.jsonl")
    assert set(found) == set(expected) == set(range(96))
    same = sum(found[number] == expected[number] for number in expected)
    assert same >= 0.95 * len(expected)  # float summation order may differ with the batch

"""A run interrupted at any point, by anything, stays readable and resumes to the same result."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.test_experiment import half_judge, run, timeless, word_count
from tests.generated import examples
from tests.worlds import ReadingScorer, scripted_engine
from tide.core.errors import EngineError, TideError
from tide.data.records import read_records
from tide.evaluation import read_run

pytestmark = pytest.mark.attack

assert word_count  # a fixture: the reference model counts words

points = examples(2, 50)  # per fault


def whole(out: Path, **more: Any) -> None:
    run(out, judges=half_judge(), reference="words", **more)


def child(work: Callable[[], None]) -> int:
    """Do `work` in a child process, which exits with 1 if it fails; returns its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, which are not ours
        number = os.fork()
    if number:
        return number
    try:
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unbroken")


def check(out: Path, unbroken: Path) -> None:
    """Records are readable, finished work is kept, and resuming gives the run without faults."""
    if not (unbroken / "tide").exists():
        whole(unbroken)
    records = out / "tide/records.jsonl"
    kept = read_records(records) if records.exists() else []
    whole(out)
    assert timeless(out / "tide") == timeless(unbroken / "tide")
    assert read_run(out / "tide").config | {"created": ""} == (
        read_run(unbroken / "tide").config | {"created": ""}
    )
    after = {record.id: record for record in read_records(records)}
    for record in kept:
        texts = [trial.text for trial in record.trials]
        assert [trial.text for trial in after[record.id].trials][: len(texts)] == texts
    assert not {".lock", ".part"}.intersection(path.suffix for path in out.rglob("*"))


@points
@given(st.floats(0, 1))
def test_resume_after_kill_9(
    tmp_path_factory: pytest.TempPathFactory, unbroken: Path, point: float
) -> None:
    out, other = (tmp_path_factory.mktemp("run") for _ in range(2))
    began = time.monotonic()
    whole(other)
    spent = time.monotonic() - began
    number = child(lambda: whole(out))
    time.sleep(point * spent)
    os.kill(number, signal.SIGKILL)
    status = os.waitpid(number, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    check(out, unbroken)


@points
@given(st.integers(1, 40), st.sampled_from(["model", "scorer", "judges"]))
def test_resume_after_a_failing_call(
    tmp_path_factory: pytest.TempPathFactory, unbroken: Path, number: int, who: str
) -> None:
    out, calls = tmp_path_factory.mktemp("run"), count(1)
    parts: dict[str, Any] = {
        "model": scripted_engine(max_batch=4),
        "scorer": ReadingScorer(),
        "judges": half_judge(),
    }
    name = "complete" if who == "model" else "score"
    works = getattr(parts[who], name)

    def dies(*arguments: Any) -> Any:
        if next(calls) >= number:
            raise EngineError("gone") if who == "model" else TimeoutError("gone")
        return works(*arguments)

    setattr(parts[who], name, dies)
    with contextlib.suppress(TideError):
        run(out, reference="words", **parts)
    check(out, unbroken)

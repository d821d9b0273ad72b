"""Mutants: what is changed, that each is another program, and who notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import mutate

SOURCE = """
def gate(score, limit):
    if not 0 <= score <= 1:
        raise ValueError("no score")
    if score < limit and limit is not None:
        return True
    return False
"""


def test_every_change_is_one_change() -> None:
    found = list(mutate.mutants("gate.py", SOURCE))
    assert [(one.number, one.change) for one in found] == [
        (3, "the condition is negated"),
        (5, "the condition is negated"),
        (7, "the opposite is returned"),
        (3, "not is dropped"),
        (4, "nothing is raised"),
        (5, "and becomes or"),
        (6, "the opposite is returned"),
        (3, "LtE 0 becomes Lt"),
        (3, "LtE 1 becomes Lt"),
        (5, "Lt 0 becomes LtE"),
        (5, "IsNot 0 becomes Is"),
    ]
    changed = [one.of(SOURCE) for one in found]
    assert len(set(changed)) == len(found)
    assert "raise" not in changed[4]
    assert found[4].line == 'raise ValueError("no score")'
    for source in changed:
        compile(source, "gate.py", "exec")


@pytest.mark.parametrize("file", mutate.GATES)
def test_gates_and_their_tests_are_there(file: str) -> None:
    assert list(mutate.mutants(file, (mutate.ROOT / file).read_text("utf-8")))
    assert all((mutate.ROOT / test).exists() for test in mutate.GATES[file])


@pytest.mark.slow
def test_a_test_that_fails_or_hangs_has_noticed(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    for body, seconds, passes in (
        ("pass", None, True),
        ("assert False", None, False),
        ("__import__('time').sleep(60)", 5.0, False),
    ):
        test.write_text(f"def test_it():\n    {body}\n")
        assert mutate.passes(tmp_path, ["test_it.py"], seconds) is passes

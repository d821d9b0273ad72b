from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tide.core import fingerprints
from tide.core.fingerprints import code_digest, weights_digest
from tide.scorers.pocket import PocketScorer


def made(number: Any) -> Callable[[], Any]:
    return lambda: number


def test_code_digest_tells_lambdas_closures_and_defaults_apart() -> None:
    functions: list[Any] = [
        *(lambda: 1, lambda: 2, lambda x=1: x, lambda x=2: x, lambda *, x=2: x),
        *(made(1), made(2), made([1, 1]), made([1]), made({"a", "b"}), made(made(1))),
        *(functools.partial(made, 1), functools.partial(made, 2), made),
    ]
    digests = [code_digest(function) for function in functions]
    assert len(set(digests)) == len(functions)
    assert digests == [code_digest(function) for function in functions]
    assert code_digest(made(1)) == code_digest(made(1))
    assert code_digest(lambda texts: texts in {"a", "b"})


def test_code_digest_of_own_code_is_empty() -> None:
    assert code_digest(PocketScorer) == ""
    assert code_digest(code_digest) == ""


SCRIPT = """
from tide.core.fingerprints import code_digest
limit = {limit}
def helper(text):
    return len(text) > {longer} + limit
def score(texts):
    return [helper(text) in {{"a", "b", "c"}} for text in texts]
class Scorer:
    def score(self, texts):
        return score(texts)
print({other!r} and code_digest(score), code_digest(Scorer()))
"""


def digests_of_script(**values: Any) -> list[str]:
    script = SCRIPT.format(**{"limit": 1, "longer": 3, "other": "x", **values})
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return found.stdout.split()


def test_code_digest_without_a_file_follows_the_functions_that_are_called() -> None:
    """Each script is a process, so that the order of its sets differs."""
    first = digests_of_script()
    assert digests_of_script(other="y") == first
    for change in ({"limit": 2}, {"longer": 4}):
        for before, after in zip(first, digests_of_script(**change), strict=True):
            assert before != after


def safetensors(path: Path, *tensors: bytes) -> None:
    offset, header = 0, {"__metadata__": {"format": "pt"}}
    for number, tensor in enumerate(tensors):
        ends = [offset, offset := offset + len(tensor)]
        header[f"tensor {number}"] = {"dtype": "U8", "shape": [len(tensor)], "data_offsets": ends}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors))


@pytest.mark.parametrize("whole", [1 << 26, 100])
def test_weights_digest_sees_any_changed_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(fingerprints, "_WHOLE", whole)
    tensors = [bytes(10_000), bytes(10), bytes(100_000)]
    (tmp_path / "config.json").write_text("{}")
    digests = set()
    for number in range(len(tensors)):
        changed = [*tensors]
        changed[number] = b"\1" * len(tensors[number])
        safetensors(tmp_path / "model.safetensors", *changed)
        digests.add(weights_digest(tmp_path))
    safetensors(tmp_path / "model.safetensors", *tensors)
    digests.add(weights_digest(tmp_path))
    (tmp_path / "config.json").write_text('{"rope_theta": 1}')
    digests.add(weights_digest(tmp_path))
    assert len(digests) == 5
    (tmp_path / "README.md").write_text("a page")
    assert weights_digest(tmp_path) in digests

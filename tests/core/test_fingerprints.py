from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tide.core import fingerprints
from tide.core.fingerprints import code_digest, weights_digest
from tide.scorers.pocket import PocketScorer


def returning(number: Any) -> Callable[[], Any]:
    return lambda: number


def in_session(source: str) -> Any:
    """What the source defines, as in an interactive session."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(source, names)
    return names.popitem()[1]


@pytest.mark.parametrize(
    "member",
    [
        "steps = {0}",
        "def steps(self): return {0}",
        "steps = property(lambda self: {0})",
        "steps = staticmethod(lambda: {0})",
    ],
)
def test_code_digest_of_a_class_of_a_notebook_tells_its_members(member: str) -> None:
    source = "class Mine:\n    " + member
    first, again, other = (code_digest(in_session(source.format(n))) for n in (1, 1, 2))
    assert first == again != other


def test_code_digest_tells_lambdas_closures_and_defaults_apart() -> None:
    functions: list[Any] = [
        *(lambda: 1, lambda: 2, lambda x=1: x, lambda x=2: x, lambda *, x=2: x),
        *(returning(1), returning(2), returning([1, 1]), returning([1]), returning({"a", "b"})),
        *(functools.partial(returning, 1), functools.partial(returning, 2), returning),
        *(functools.partial(returning, lambda: 1), functools.partial(returning, lambda: 2)),
        *(returning([lambda: 1]), returning([lambda: 2])),
        in_session("def score(texts): return [1]"),
        in_session("def score(texts): return [2]"),
    ]
    digests = [code_digest(function) for function in functions]
    assert len(set(digests)) == len(functions)
    assert digests == [code_digest(function) for function in functions]
    assert code_digest(returning(1)) == code_digest(returning(1))
    assert code_digest(lambda texts: texts in {"a", "b"})


def test_code_digest_of_functions_that_call_each_other() -> None:
    def even(number: int) -> bool:
        return number == 0 or odd(number - 1)

    early = code_digest(even)  # `odd` is not set yet

    def odd(number: int) -> bool:
        return number != 0 and even(number - 1)

    assert code_digest(even) not in (early, code_digest(odd))


def test_code_digest_of_own_code_is_empty() -> None:
    assert code_digest(PocketScorer) == ""
    assert code_digest(code_digest) == ""


def test_code_digest_of_a_script_is_that_of_the_function_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    digests = []
    for text, other in (("a", "x"), ("a", "y"), ("b", "y")):
        script.write_text(
            "from tide.core.fingerprints import code_digest\n"
            f"def score(texts):\n    return [text in {{'{text}', 'c', 'd'}} for text in texts]\n"
            f"print('{other}' and code_digest(score))\n"
        )
        printed = subprocess.run([sys.executable, script], capture_output=True, check=True)
        digests.append(printed.stdout)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("whole", [1 << 26, 100])
def test_weights_digest_sees_any_changed_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(fingerprints, "_WHOLE", whole)
    tensors = {str(size): np.zeros(size, np.uint8) for size in (10_000, 10, 100_000)}
    digests = set()

    def save(**changed: np.ndarray) -> None:
        path = tmp_path / "model.safetensors"
        save_file({**tensors, **changed}, path, metadata={"format": "pt"})
        digests.add(weights_digest(tmp_path))

    (tmp_path / "config.json").write_text("{}")
    save()
    for name, tensor in tensors.items():
        save(**{name: tensor + 1})
    (tmp_path / "config.json").write_text('{"rope_theta": 1}')
    save()
    assert len(digests) == 5
    (tmp_path / "README.md").write_text("a page")
    assert weights_digest(tmp_path) in digests

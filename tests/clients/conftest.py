"""A server as a process, for clients whose environment has no TIDE: TIDE_PYTHON runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

KEY = "sk-of-the-clients"


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a server with a chat model and the bundled scorer."""
    process = subprocess.Popen(
        [os.environ["TIDE_PYTHON"], "-m", "tests.clients.server"],
        env={**os.environ, "TIDE_SERVE_KEYS": KEY, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said: list[Any] = []
    for line in process.stderr:
        said.append(line)
        if '"serving"' in line:
            yield json.loads(line)["serving"]
            break
    else:
        pytest.fail("".join(said))
    process.kill()
    process.wait()

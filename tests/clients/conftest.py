"""A server as a process, for clients whose environment has no TIDE: TIDE_PYTHON runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.server.processes import serving

KEY = "sk-of-the-clients"


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a server with a chat model and the bundled scorer."""
    own = {"TIDE_SERVE_KEYS": KEY, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = (os.environ["TIDE_PYTHON"], "-m", "tests.clients.server")
    with serving(*command, **own) as server:
        yield server.url

"""A server as a process, for clients whose environment has no TIDE: TIDE_PYTHON runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.server.processes import serving

KEY = "sk-of-the-clients"


def served(name: str) -> Iterator[str]:
    """The address of a server of `served.py`."""
    own = {"TIDE_SERVE_KEYS": KEY, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with serving(os.environ["TIDE_PYTHON"], "-m", "tests.clients.served", name, **own) as server:
        yield server.url


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a server with a chat model and the bundled scorer."""
    yield from served("chat")


@pytest.fixture(scope="module")
def guardrail_url() -> Iterator[str]:
    """The address of a server that only scores, by a scorer that knows one rude word."""
    yield from served("guardrail")


@pytest.fixture(scope="module")
def tools_url() -> Iterator[str]:
    """The address of a gateway before a server that calls tools."""
    yield from served("tools")

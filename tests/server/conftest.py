from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.openai.server import TextServer
from tide.engines.openai.engine import OpenAIEngine


@pytest.fixture(scope="module")
def model_server() -> Iterator[TextServer]:
    with TextServer() as server:
        yield server


@pytest.fixture(scope="module")
def engine(model_server: TextServer) -> Iterator[OpenAIEngine]:
    with OpenAIEngine("tiny", base_url=model_server.url) as engine:
        yield engine


@pytest.fixture
def upstream(model_server: TextServer) -> Iterator[TextServer]:
    """The server before `engine`; a test may change its behaviour."""
    before = dict(vars(model_server))
    model_server.requests.clear()
    yield model_server
    # A late request of the test may still read the server's members, so they are never all gone.
    for name in vars(model_server).keys() - before.keys():
        delattr(model_server, name)
    vars(model_server).update(before)

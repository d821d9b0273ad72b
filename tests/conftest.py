from __future__ import annotations

import gc
import os
import signal
import ssl
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.generated import LONG

if TYPE_CHECKING:
    from tests.engines.openai.server import TextServer
    from tide.engines.openai.engine import OpenAIEngine

# The models here are tiny: a second thread would only wait for the first.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests that need a terminal width set it. pytest-xdist would pass on the width of its own terminal,
# and a console keeps the width that it finds when it is made.
os.environ.pop("COLUMNS", None)
# No test asks the hub; a missing model fails at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Progress bars would mix with error messages on stderr. Read when transformers is first imported.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# Each client of httpx would read all certificates anew, for a twentieth of a second.
ssl.create_default_context = cache(ssl.create_default_context)
# No test cuts the power, and each written record would wait for the disk.
os.fsync = lambda descriptor: None
# Background jobs of a shell ignore SIGINT, and the tests of Ctrl-C would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: machines may be slow. The profile `explore` tries new cases in each run, and the
# others the same cases: pytest --hypothesis-profile=explore -m attack
hypothesis.settings.register_profile("ordinary", max_examples=40, deadline=None, derandomize=True)
hypothesis.settings.register_profile("long", max_examples=LONG, deadline=None, derandomize=True)
# 5,000 cases per test of the promise: pytest --hypothesis-profile=oracle -m attack -k promise
hypothesis.settings.register_profile("oracle", max_examples=5000, deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", max_examples=LONG, deadline=None)
hypothesis.settings.load_profile("ordinary")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exempt the imported modules from garbage collection, which took a third of the time."""
    gc.disable()
    yield
    _freeze()
    gc.enable()


def _freeze() -> None:
    global _frozen  # noqa: PLW0603
    gc.collect()
    gc.freeze()
    _frozen = len(sys.modules)


_frozen = 0


@pytest.fixture(scope="session", autouse=True)
def _scores_are_kept_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the score cache of the user."""
    os.environ["TIDE_CACHE"] = str(tmp_path_factory.mktemp("cache") / "scores.sqlite3")


@pytest.fixture(scope="module", autouse=True)
def _freeze_late_imports() -> None:
    """Modules such as the models of transformers are imported only when first used."""
    if len(sys.modules) > _frozen + 200:
        _freeze()


SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The benchmark data, which is never copied into the project."""
    if not SHARED.is_dir():
        pytest.skip(f"the benchmark data is not at {SHARED}")
    return SHARED


@pytest.fixture(scope="module")
def model_server() -> Iterator[TextServer]:
    """A server with a made-up model. Tests that change its behaviour use `upstream`."""
    from tests.engines.openai.server import TextServer

    with TextServer() as server:
        yield server


@pytest.fixture(scope="module")
def text_engine(model_server: TextServer) -> Iterator[OpenAIEngine]:
    from tide.engines.openai.engine import OpenAIEngine

    with OpenAIEngine("tiny", base_url=model_server.url) as engine:
        yield engine


@pytest.fixture
def upstream(model_server: TextServer) -> Iterator[TextServer]:
    """The server of `text_engine`; a test may change its behaviour."""
    before = dict(vars(model_server))
    model_server.requests.clear()
    yield model_server
    # A late request of the test may still read the server's members, so they are never all gone.
    for name in vars(model_server).keys() - before.keys():
        delattr(model_server, name)
    vars(model_server).update(before)

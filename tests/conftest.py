from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.generated import LONG

if TYPE_CHECKING:
    from tests.engines.openai.server import TextServer
    from tide.engines.openai.engine import OpenAIEngine

# The models here are tiny: a second thread would only wait for the first, long on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test that needs a width sets it. pytest-xdist passes its own terminal's on, and a console keeps
# what it finds when it is made.
os.environ.pop("COLUMNS", None)
# No test asks the hub; where one names what is not here, the answer comes at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Read when transformers is first imported: a loading bar on stderr is not an error message.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# No test takes the power away, and each record that is written would wait for the disk.
os.fsync = lambda descriptor: None
# A shell makes its jobs in the background ignore it, and the tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: a busy machine is not a fault. Of these two a green run is green again; to look for
# faults that they have not met: pytest --hypothesis-profile=explore -m attack
hypothesis.settings.register_profile("ordinary", deadline=None, derandomize=True)
hypothesis.settings.register_profile("long", max_examples=LONG, deadline=None, derandomize=True)
# As many cases at every door: pytest --hypothesis-profile=oracle -m attack -k promise
hypothesis.settings.register_profile("oracle", max_examples=5000, deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", max_examples=LONG, deadline=None)
hypothesis.settings.load_profile("ordinary")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No collection of garbage goes through the modules: a third of the tests' time."""
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


@pytest.fixture(scope="module", autouse=True)
def _freeze_late_imports() -> None:
    """Models of transformers, for one, are imported where they are first used."""
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
def text_server() -> Iterator[TextServer]:
    """A server with OpenAI's fields alone."""
    from tests.engines.openai.server import TextServer

    with TextServer(strict=True) as server:
        yield server


@pytest.fixture(scope="module")
def text_engine(text_server: TextServer) -> Iterator[OpenAIEngine]:
    from tide.engines.openai.engine import OpenAIEngine

    with OpenAIEngine("tiny", base_urls=text_server.url, deadline=10.0) as engine:
        yield engine

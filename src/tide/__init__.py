"""TIDE: test-time iterative detoxification via embeddings."""

from importlib.metadata import version

from tide.config import Sampling, Settings
from tide.detoxifier import Detoxifier
from tide.errors import (
    EngineError,
    InputError,
    MissingDependencyError,
    ScorerError,
    ScorerUnavailable,
    TideError,
    UnresolvedError,
)
from tide.results import Evaluation, Result, Trial
from tide.scorers import load_scorer

__version__ = version("tide-detox")

__all__ = [
    "Detoxifier",
    "EngineError",
    "Evaluation",
    "InputError",
    "MissingDependencyError",
    "Result",
    "Sampling",
    "ScorerError",
    "ScorerUnavailable",
    "Settings",
    "TideError",
    "Trial",
    "UnresolvedError",
    "__version__",
    "load_scorer",
]

"""TIDE: test-time iterative detoxification via embeddings."""

from importlib.metadata import version

from tide.config import Sampling, Settings
from tide.detoxifier import Detoxifier
from tide.errors import (
    EmptyTextError,
    EngineError,
    InputError,
    MissingDependencyError,
    ScorerError,
    ScorerRefused,
    ScorerUnavailable,
    TideError,
    UnresolvedError,
)
from tide.results import Evaluation, Result, Trial
from tide.scorers import load_scorer

__version__ = version("tide-detox")

__all__ = [
    "Detoxifier",
    "EmptyTextError",
    "EngineError",
    "Evaluation",
    "InputError",
    "MissingDependencyError",
    "Result",
    "Sampling",
    "ScorerError",
    "ScorerRefused",
    "ScorerUnavailable",
    "Settings",
    "TideError",
    "Trial",
    "UnresolvedError",
    "__version__",
    "load_scorer",
]

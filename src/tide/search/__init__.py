"""Which embeddings to try next: tensors and scores only, no model and no text."""

from tide.registry import Registry
from tide.search.base import Candidate, Problem, SearchStrategy, Strategy

REGISTRY = Registry("strategy", {"tide": "tide.search.tide:TideStrategy"})

__all__ = ["REGISTRY", "Candidate", "Problem", "SearchStrategy", "Strategy"]

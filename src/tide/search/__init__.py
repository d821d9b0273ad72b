"""Which embeddings to try next: tensors and scores only, no model and no text."""

from tide.registry import Registry
from tide.search.base import Candidate, LikelihoodRequest, Problem, SearchStrategy, Strategy

REGISTRY = Registry(
    "strategy",
    {
        "tide": "tide.search.tide:TideStrategy",
        "accept-any": "tide.search.tide:AcceptAnyStrategy",
        "shuffled": "tide.search.tide:ShuffledStrategy",
        "random-walk": "tide.search.tide:RandomWalkStrategy",
        "ladder": "tide.search.direct:LadderStrategy",
        "resample": "tide.search.direct:ResampleStrategy",
    },
)

__all__ = [
    "REGISTRY",
    "Candidate",
    "LikelihoodRequest",
    "Problem",
    "SearchStrategy",
    "Strategy",
]

"""The language model as a black box: embeddings in, completions out. Knows no toxicity."""

from tide.engines.base import Completion, EmbeddedPrompt, Engine
from tide.registry import Registry

REGISTRY = Registry(
    "engine",
    {
        "transformers": "tide.engines.transformers:TransformersEngine",
        "vllm": "tide.engines.vllm:VllmEngine",
        "remote": "tide.engines.remote:RemoteEngine",
    },
)

__all__ = ["REGISTRY", "Completion", "EmbeddedPrompt", "Engine"]

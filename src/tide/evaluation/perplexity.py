"""Perplexity of completions under a reference model.

It is exp of the mean negative log-likelihood of a completion's tokens after its prompt. The
reference is a larger model of the same family, or one model for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tide.core.errors import InputError
from tide.data.records import Likelihood
from tide.detoxifier.presets import preset_for
from tide.engines import load_engine
from tide.pocket import FOLDERS

# The references of the paper, by the name of the model that is evaluated.
REFERENCES = {
    "gpt2-large": "openai-community/gpt2-xl",
    "gemma-2-2b": "google/gemma-2-9b",
    "qwen3-4b": "Qwen/Qwen3-8B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-70B",
}
# The paper's one reference for all models, so that their texts can be compared.
_GLOBAL = "Qwen/Qwen3-14B"
# Number of completions measured at a time, sorted by length.
_CHUNK = 512


def reference_named(name: str, model: str) -> str | None:
    """The reference model that `name` means; "auto" depends on `model`, the evaluated one.

    "auto": the paper's for the model's family, or the bundled one; None if the family is unknown.
    "global": the paper's one for all models.
    """
    if name != "auto":
        return _GLOBAL if name == "global" else name
    return "pocket-reference" if model in FOLDERS else REFERENCES.get(preset_for(model))


class Reference:
    """A causal LM for perplexity. Raises EngineError if it cannot be loaded.

    engine: "vllm" for a model that needs several GPUs (`tensor_parallel_size=4`).
    Raises InputError for an engine without a local tokenizer, and for unknown options.
    """

    def __init__(self, model: str, engine: str = "transformers", **engine_options: Any) -> None:
        self.name = model
        self._engine: Any = load_engine(engine, model, **engine_options)
        if not hasattr(self._engine, "tokenizer"):
            self._engine.close()
            raise InputError(f"reference engine {engine!r}: has no tokenizer; use 'vllm'")

    def measure(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """The likelihood of each completion after its prompt.

        Both are tokenised together, or apart if a token would span their boundary. The seventh
        digit may depend on the batch, since its lengths decide the order of summation.
        Raises InputError if both together exceed the model's context.
        """
        parts = (pairs[start : start + _CHUNK] for start in range(0, len(pairs), _CHUNK))
        return [one for some in parts for one in self._measure(some)]

    def _measure(self, pairs: Sequence[tuple[str, str]]) -> Iterator[Likelihood]:
        prompts = self._engine.tokenize([prompt for prompt, _ in pairs])
        joint = self._engine.tokenize([prompt + completion for prompt, completion in pairs])
        texts = [completion for _, completion in pairs]
        apart = self._engine.tokenizer(texts, add_special_tokens=False)["input_ids"]
        completions = [
            whole[len(prompt) :] if text and whole[: len(prompt)] == prompt else alone
            for text, prompt, whole, alone in zip(texts, prompts, joint, apart, strict=True)
        ]
        limit = self._engine.context_length
        for prompt, completion in zip(prompts, completions, strict=True):
            if limit is not None and len(prompt) + len(completion) > limit:
                raise InputError(
                    f"reference {self.name}: {len(prompt)} tokens of a prompt and "
                    f"{len(completion)} of its completion exceed its context of {limit}; "
                    "choose another with --reference"
                )
        rows = [i for i, ids in enumerate(completions) if ids]
        values = np.full(len(pairs), np.nan)
        if rows:
            asked = [(prompts[i], completions[i]) for i in rows]
            found = self._engine.portal.run(self._engine.log_likelihoods, asked)
            values[rows] = [-one.mean for one in found]
        for value, ids in zip(values.tolist(), completions, strict=True):
            # A rounding error may push the probability of a token above 1.
            nll = max(value, 0.0) if math.isfinite(value) else None
            yield Likelihood(nll=nll, num_tokens=len(ids))

    def close(self) -> None:
        self._engine.close()

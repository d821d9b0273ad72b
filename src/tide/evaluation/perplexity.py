"""Perplexity of completions under a reference model.

Perplexity is exp of the mean negative log-likelihood of a completion's tokens after its prompt. The
reference is a larger model of the same family, or one model for all evaluated models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from tide.core.errors import InputError
from tide.data.records import Likelihood
from tide.detoxifier.presets import preset_for
from tide.engines import load_engine
from tide.pocket import FOLDERS

# The paper's reference models, by the name of the evaluated model.
REFERENCES = {
    "gpt2-large": "openai-community/gpt2-xl",
    "gemma-2-2b": "google/gemma-2-9b",
    "qwen3-4b": "Qwen/Qwen3-8B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-70B",
}
# The paper's single reference for all models, which makes their perplexities comparable.
_GLOBAL = "Qwen/Qwen3-14B"
# Number of completions measured at a time, sorted by length.
_CHUNK = 512


def reference_named(name: str, model: str) -> str | None:
    """Return the reference model that `name` means for the evaluated `model`.

    "auto": the paper's reference for the family of `model`, or the bundled reference for a bundled
    model; None if the family is unknown. "global": the paper's single reference for all models.
    """
    if name != "auto":
        return _GLOBAL if name == "global" else name
    return "pocket-reference" if model in FOLDERS else REFERENCES.get(preset_for(model))


class Reference:
    """A causal LM that measures perplexity. Raises EngineError if the model cannot be loaded.

    weights: digest of the model's files, if they are known.
    engine: "vllm" for a model that needs several GPUs (`tensor_parallel_size=4`).
    Raises InputError for an engine without a local tokenizer, and for unknown options.
    """

    def __init__(self, model: str, engine: str = "transformers", **engine_options: Any) -> None:
        from tide.engines.checkpoint import weights_of  # noqa: PLC0415  (torch)

        self.name = model
        with ExitStack() as opened:
            self._engine: Any = opened.enter_context(load_engine(engine, model, **engine_options))
            if not hasattr(self._engine, "tokenizer"):
                raise InputError(f"reference engine {engine!r}: has no tokenizer; use 'vllm'")
            self.weights = weights_of(model, engine_options.get("revision"))
            opened.pop_all()

    def measure(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Return the likelihood of each completion after its prompt.

        Prompt and completion are tokenised together, or apart if a token would span the boundary.
        The seventh digit may depend on the lengths in the batch, which decide the summation order.
        Raises InputError if a prompt and its completion exceed the model's context.
        """
        parts = (pairs[start : start + _CHUNK] for start in range(0, len(pairs), _CHUNK))
        return [likelihood for part in parts for likelihood in self._measure(part)]

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
                    f"reference {self.name}: a prompt of {len(prompt)} tokens and its completion "
                    f"of {len(completion)} exceed the context of {limit} tokens; "
                    "choose another reference with --reference"
                )
        rows = [i for i, ids in enumerate(completions) if ids]
        values = np.full(len(pairs), np.nan)
        if rows:
            wanted = [(prompts[i], completions[i]) for i in rows]
            likelihoods = self._engine.portal.run(self._engine.log_likelihoods, wanted)
            values[rows] = [-likelihood for likelihood in likelihoods]
        for value, ids in zip(values.tolist(), completions, strict=True):
            # A rounding error may push the probability of a token above 1.
            nll = max(value, 0.0) if math.isfinite(value) else None
            yield Likelihood(nll=nll, num_tokens=len(ids))

    def close(self) -> None:
        self._engine.close()

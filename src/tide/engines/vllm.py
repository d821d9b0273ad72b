"""vLLM in this process: one large model on one or several GPUs, by its prompt embeddings.

Every option of `vllm.LLM` is passed on: `tensor_parallel_size`, `pipeline_parallel_size`,
`gpu_memory_utilization`, `max_model_len`, `quantization`, ...
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tide.core.errors import EngineError, InputError, first_line
from tide.core.optional import require
from tide.core.pretrained import read_config
from tide.engines.base import Completion, MaxBatch, Samplings, check_rows, check_tokens
from tide.engines.checkpoint import read_vocabulary, source_of
from tide.engines.embedding_table import Vocabulary, reason_of
from tide.engines.equivalence import PROBES, FirstToken, difference, scaled_probes
from tide.plugins.options import checked

_MAX_BATCH = 256
# Texts that mean a boolean, and those that only seem to.
_BOOLEANS = {"true": True, "false": False, "yes": None, "no": None, "on": None, "off": None}
# With embeddings, any of these crashes vLLM (its issue 57719).
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class VllmEngine(Vocabulary):
    """A causal LM run by vLLM.

    model: folder, hub id, or "pocket" (bundled). dtype: as for vLLM. max_batch: sequences run at
    once (vLLM's `max_num_seqs`). options: further ones of `vllm.LLM`.

    Raises MissingDependencyError without vLLM, InputError for options that vLLM does not know or
    that would crash it, and EngineError if it cannot load the model or does not write the same
    from embeddings as from token ids.
    """

    @checked
    def __init__(
        self,
        model: str | Path = "pocket",
        *,
        dtype: str = "auto",
        max_batch: MaxBatch = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        **options: Any,
    ) -> None:
        self.name = str(model)
        options = {name: _meant(name, value) for name, value in options.items()}
        defaults = options.get("override_generation_config") or {}
        if found := [name for name in _PENALTIES if name in options or name in defaults]:
            problem = "not with prompt embeddings; it crashes vLLM (issue 57719)"
            raise InputError(f"{found[0]}: {problem}")
        self.max_batch = max_batch or _MAX_BATCH
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vllm is imported
        self._vllm = require("vllm", "vllm")
        code: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        settings: dict[str, Any] = {
            "max_num_seqs": self.max_batch,
            "use_tqdm_on_load": False,
            # Candidates that move the last rows of a prompt alone (perturb="last:K") share the
            # others, and so do their rounds. To hash embeddings that share nothing costs little.
            "enable_prefix_caching": True,
            **options,
            "enable_prompt_embeds": True,
        }
        if require("vllm.platforms", "vllm").current_platform.is_cpu():
            # A prompt read in two parts rewinds its generator, which a CPU's cannot: vLLM crashes.
            settings.setdefault("enable_chunked_prefill", False)
        source = source_of(model)
        config = read_config(source, **code)
        try:
            self._llm = self._vllm.LLM(source, dtype=dtype, **code, **settings)
        except TypeError as error:
            raise InputError(f"engine vllm: {first_line(error)}") from error
        try:
            self.dtype = self._llm.model_config.dtype
            # One less than it takes: to read the last token of a likelihood it writes another.
            self.context_length = int(self._llm.model_config.max_model_len) - 1
            super().__init__(*read_vocabulary(source, config, self.dtype, **code), config)
            self.verify()
        except BaseException:
            self.close()
            raise

    def complete(
        self, embeddings: Sequence[Tensor], sampling: Samplings, seeds: Sequence[int]
    ) -> list[Completion]:
        samplings = check_rows(self, embeddings, sampling)
        written = self._generate(
            [{"prompt_embeds": self._as_sent(x)} for x in embeddings],
            [
                {
                    "max_tokens": row.max_new_tokens,
                    "temperature": row.temperature,
                    "top_p": row.top_p,
                    "top_k": row.top_k,
                    "min_tokens": row.min_new_tokens,
                    "stop": list(row.stop),
                    "seed": None if row.temperature == 0 else seed,
                }
                for row, seed in zip(samplings, seeds, strict=True)
            ],
        )
        outputs = [output.outputs[0] for output in written]
        return self.completions([(one.token_ids, reason_of(one)) for one in outputs], samplings)

    def likelihood(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        check_tokens(prompts, completions)
        self.check_ids([*prompts, *completions])
        sequences = [[*a, *b] for a, b in zip(prompts, completions, strict=True)]
        read = self._generate(
            [{"prompt_token_ids": ids} for ids in sequences],
            [{"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}] * len(sequences),
        )
        values = np.zeros(len(sequences))
        for i, (output, completion) in enumerate(zip(read, completions, strict=True)):
            positions = output.prompt_logprobs[-len(completion) :]
            pairs = zip(positions, completion, strict=True)
            values[i] = np.mean([position[token].logprob for position, token in pairs])
        return values

    def verify(self) -> None:
        """Compare the first token after token ids with that after their embeddings."""
        ids = self.tokenize(PROBES)
        embeddings = scaled_probes([self._embed_ids(row) for row in ids])
        by_ids = self._first_tokens([{"prompt_token_ids": row} for row in ids])
        by_scaled = self._first_tokens([{"prompt_embeds": self._as_sent(x)} for x in embeddings])
        if problem := difference(by_ids, by_scaled, self.dim):
            raise EngineError(f"vLLM with {self.name}: {problem}")

    def _free(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()

    def _first_tokens(self, prompts: list[dict[str, Any]]) -> list[FirstToken]:
        written = self._generate(
            prompts, [{"max_tokens": 1, "temperature": 0.0, "logprobs": 0}] * len(prompts)
        )
        tokens = [(output.outputs[0].token_ids[0], output.outputs[0]) for output in written]
        return [(token, output.logprobs[0][token].logprob) for token, output in tokens]

    def _as_sent(self, x: Tensor) -> Tensor:
        """`x` as vLLM wants it: on the CPU, contiguous, in the model's dtype."""
        return x.detach().to("cpu", self.dtype).contiguous()

    def _generate(self, prompts: list[dict[str, Any]], sampling: list[dict[str, Any]]) -> list[Any]:
        parameters = [
            # vLLM reads its own tokens for stop strings alone.
            self._vllm.SamplingParams(**values, detokenize=bool(values.get("stop")))
            for values in sampling
        ]
        written: list[Any] = self._llm.generate(prompts, parameters, use_tqdm=False)
        reasons = {output.outputs[0].finish_reason for output in written}
        if len(written) < len(prompts) or not reasons <= {"length", "stop"}:
            raise EngineError(f"vLLM with {self.name}: gave up on a sequence ({reasons})")
        return written


def _meant(name: str, value: Any) -> Any:
    """An option of vLLM, of which only vLLM knows the type, with booleans for texts that mean one.

    vLLM takes any text as true: "False" would turn on what it is to turn off. Raises InputError for
    a text that may mean one, and for `trust_remote_code` inside of another option.
    """
    if isinstance(value, dict):
        if "trust_remote_code" in value:
            raise InputError(f"{name}: trust_remote_code is an option of its own, not part of it")
        return {key: _meant(f"{name}.{key}", part) for key, part in value.items()}
    if isinstance(value, list):
        return [_meant(name, part) for part in value]
    meaning = _BOOLEANS.get(value.strip().lower(), value) if isinstance(value, str) else value
    if meaning is None and value is not None:
        raise InputError(f"{name}: write true or false (got {value!r})")
    return meaning

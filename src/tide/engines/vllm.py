"""An engine that runs vLLM in this process, for a large model on one or several GPUs.

All of vLLM's engine arguments are options, such as `tensor_parallel_size`,
`pipeline_parallel_size`, `gpu_memory_utilization`, `max_model_len` and `quantization`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from tide.core.concurrency import gather
from tide.core.errors import EngineError, InputError, first_line, require
from tide.core.pretrained import read_config
from tide.engines.base import NEVER, MaxBatch, Piece, Request
from tide.engines.checkpoint import read_vocabulary, source_of
from tide.engines.embedding_table import EmbeddingEngine
from tide.plugins.options import checked

_MAX_BATCH = 256

_PROBES = (
    "The weather today is",
    "In the beginning there was",
    "My favourite food is",
    "Two plus two equals",
)
# Differences of natural-log probabilities. Half precision and other kernels cause a few hundredths,
# and change the most likely token only if two tokens are about equally likely.
_TIE = 0.05
_CLOSE = 0.25


class FirstToken(NamedTuple):
    token: int
    log_prob: float


class VllmEngine(EmbeddingEngine):
    """A causal LM run by vLLM's asynchronous engine, one request per completion.

    model: folder, hub id, or "pocket" (bundled). dtype: vLLM's `dtype`. max_batch: vLLM's
    `max_num_seqs`. options: further arguments of vLLM's `AsyncEngineArgs`.

    Penalties are not passed on: they crash vLLM if prompts are embeddings (vLLM's issue 57719).

    Raises MissingDependencyError without vLLM, InputError for options that vLLM does not know, and
    EngineError if vLLM cannot load the model or writes different text from embeddings than from
    token ids.
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
        for name, value in options.items():
            # vLLM takes any text as true, so "False" would turn an option on.
            if isinstance(value, str) and value.lower() in ("true", "false"):
                options[name] = value.lower() == "true"
        self.max_batch = max_batch or _MAX_BATCH
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nothing is reported to anybody
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vllm reads this at its import
        self._vllm = require("vllm", "vllm")
        code: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        settings: dict[str, Any] = {
            "max_num_seqs": self.max_batch,
            "use_tqdm_on_load": False,
            # Candidates that perturb only the last rows (perturb="last:K") share the cached rows
            # of the prompt, and continued drafts share their earlier text. Hashing costs little.
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            **options,
            "enable_prompt_embeds": True,
        }
        if require("vllm.platforms", "vllm").current_platform.is_cpu():
            # vLLM rewinds the random generator for a prompt that it reads in parts. A CPU generator
            # cannot be rewound, so vLLM crashes.
            settings.setdefault("enable_chunked_prefill", False)
        self._numbers = count()
        try:
            with self._calling("loading"):
                source = source_of(model)
                config = read_config(source, **code)
                self._engine = self.portal.run(self._start, source, dtype, {**code, **settings})
                self.dtype = self._engine.model_config.dtype
                self.context_length = int(self._engine.model_config.max_model_len)
                super().__init__(*read_vocabulary(source, config, self.dtype, **code))
            with self._calling("verify"):
                self.portal.run(self._verify)
        except BaseException:
            self.close()
            raise

    async def _start(self, source: str, dtype: str, settings: dict[str, Any]) -> Any:
        engine_args = require("vllm.engine.arg_utils", "vllm").AsyncEngineArgs
        asynchronous = require("vllm.v1.engine.async_llm", "vllm").AsyncLLM
        try:
            arguments = engine_args(model=source, dtype=dtype, **settings)
        except TypeError as error:
            raise InputError(f"engine vllm: {first_line(error)}") from error
        return asynchronous.from_engine_args(arguments)

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        sampling = request.sampling
        parameters: dict[str, Any] = {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_tokens": sampling.min_new_tokens,
            "stop": list(sampling.stop),
            "seed": request.seed if sampling.temperature > 0 else None,
            "logit_bias": dict.fromkeys(request.banned_token_ids, NEVER) or None,
        }
        if request.piece_tokens is not None:
            parameters |= {"stream_interval": request.piece_tokens}
        async with aclosing(self._outputs(request, parameters)) as outputs:
            async for output in outputs:
                (written,) = output.outputs
                ids, reason = tuple(written.token_ids), written.finish_reason
                if reason not in (None, "length", "stop"):
                    raise EngineError(f"vLLM with {self.name}: gave up on a sequence ({reason})")
                if isinstance(written.stop_reason, str):  # the reader cuts the text before it
                    reason = "length"
                elif reason == "stop":  # by the last token
                    ids = ids[:-1]
                yield Piece(ids, reason)

    async def _outputs(
        self, request: Request, parameters: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        kinds = require("vllm.sampling_params", "vllm").RequestOutputKind
        whole = request.piece_tokens is None
        values = self._vllm.SamplingParams(
            **parameters,
            # vLLM needs the text only to find stop strings.
            detokenize=bool(parameters.get("stop")),
            output_kind=kinds.FINAL_ONLY if whole else kinds.DELTA,
        )
        prompt = request.prompt
        if isinstance(prompt, Sequence):
            vllm_prompt: dict[str, Any] = {"prompt_token_ids": list(prompt)}
        else:  # vLLM expects contiguous CPU tensors of the model's dtype
            vllm_prompt = {"prompt_embeds": prompt.detach().to("cpu", self.dtype).contiguous()}
        name = f"tide-{next(self._numbers)}"
        async for output in self._engine.generate(vllm_prompt, values, name):
            yield output

    async def _verify(self) -> None:
        """Raise EngineError if vLLM writes different text from embeddings than from token ids.

        vLLM and this version of transformers may scale embeddings in different places.
        """
        by_ids = await self._first_tokens(self.tokenize(_PROBES))
        by_embeddings = await self._first_tokens(self.embed(_PROBES))
        for expected, first in zip(by_ids, by_embeddings, strict=True):
            most = _CLOSE if first.token == expected.token else _TIE
            if not abs(first.log_prob - expected.log_prob) <= most:
                problem = "writes different text from embeddings than from token ids"
                raise EngineError(f"vLLM with {self.name}: {problem}; does it run another model?")

    async def _first_tokens(self, prompts: Sequence[Any]) -> list[FirstToken]:
        """Return the most likely token after each prompt."""

        async def first(prompt: Any) -> FirstToken:
            parameters = {"max_tokens": 1, "temperature": 0.0, "logprobs": 0}
            async with aclosing(self._outputs(Request(prompt), parameters)) as outputs:
                async for output in outputs:
                    (written,) = output.outputs
                    token = written.token_ids[0]
                    return FirstToken(token, written.logprobs[0][token].logprob)
            raise EngineError(f"vLLM with {self.name}: wrote nothing")

        return await gather(map(first, prompts))

    @property
    def available(self) -> bool:
        return not self.closed and not self._engine.errored

    async def _free(self) -> None:
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.shutdown()
            # An engine that is deleted only when Python exits prints a traceback.
            self._engine = None

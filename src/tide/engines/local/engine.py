"""The default engine, which runs causal LMs with transformers in this process, on CPU or CUDA."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tide.core.concurrency import release_openmp_threads
from tide.core.errors import CompletionError, EngineError, guarded
from tide.core.pretrained import end_ids, find_device, load_pretrained
from tide.core.sanitize import logger
from tide.engines.base import Dtype, MaxBatch, Piece, Request, name_of
from tide.engines.checkpoint import advised_sampling, context_length, fingerprint, source_of
from tide.engines.embedding_table import EmbeddingEngine
from tide.engines.local.batch import Batch, Row, packed
from tide.engines.local.cache import Beginning, PrefixCache
from tide.engines.local.packed_weights import speed_up
from tide.engines.local.stream import NOT_FINITE, Forward, Stream, cache_in, left_pad
from tide.plugins.options import checked

_LOG = logger(__name__)

# Default batch sizes. Larger batches gain little on a CPU; a GPU reads the weights once a batch.
_MAX_BATCH = {"cpu": 64, "cuda": 256}
# Maximum relative difference between the logits of a row in a batch and alone. A wrong mask causes
# a difference of 0.2, and rounding to bfloat16 a difference of 0.02 in 24 layers.
_TOLERANCE, _ROUNDED = 1e-4, 5e-2

# The ids of a prompt and of its completion.
TokenPair = tuple[Sequence[int], Sequence[int]]


class TransformersEngine(EmbeddingEngine):
    """A causal LM from a folder or the Hugging Face hub, run through its `inputs_embeds`.

    model: folder, hub id, "pocket", "pocket-reference" or "pocket-chat" (bundled); or a model that
    transformers or peft has loaded, which is set to `eval` for good and keeps its device and dtype.
    weights: digest of the weights of such a model, for records; else None.
    device: "auto" (CUDA if there is one), "cpu", "cuda", "cuda:1"...
    dtype: "auto" (the checkpoint's dtype on CUDA; float32 on the CPU, where all machines then give
    the same results up to the order of sums), "float32", "bfloat16" (the fastest on a CPU with
    AVX512-BF16; logits are rounded to 8 bits), "float16".
    max_batch: maximum number of sequences run at once; None for a default by device.
    prefix_tokens: capacity of the prefix cache in tokens; 0 turns the cache off. It holds keys and
    values of texts that requests continue; models with other state have no cache.
    stop_ids: the tokens that end a text. forward: the model's forward pass, which only work in the
    engine's thread may call. forward_tokens: number of tokens that the model has read so far.

    Sequences enter and leave the running batch at any step if the model's state consists of keys
    and values only; other models complete one batch after another, or one row after another if
    they do not obey the mask of a padded batch.

    Only safetensors weights are read, and code from the hub runs only with `trust_remote_code`.
    Raises EngineError if the model cannot be loaded whole, takes no embeddings, or does not give
    the same finite logits for token ids and their embeddings, and InputError for invalid options.
    """

    capabilities: ClassVar = EmbeddingEngine.capabilities | {"repetition_penalty"}

    @checked
    def __init__(
        self,
        model: str | Path | torch.nn.Module = "pocket",
        *,
        device: str = "auto",
        dtype: Dtype = "auto",
        max_batch: MaxBatch = None,
        prefix_tokens: Annotated[int, Field(ge=0)] = 1 << 15,
        trust_remote_code: bool = False,
    ) -> None:
        self.name = name_of(model)
        self.model: Any = None
        try:
            self.portal.run(
                self._load, model, device, dtype, max_batch, prefix_tokens, trust_remote_code
            )
        except BaseException:
            self.portal.close(wait=False)
            raise

    async def _load(
        self,
        model: str | Path | torch.nn.Module,
        device: str,
        dtype: Dtype,
        max_batch: int | None,
        prefix_tokens: int,
        trust: bool,
    ) -> None:
        # This method runs in the engine's thread, as all computation does.
        with self._calling("loading"):
            self.weights: str | None = None
            if isinstance(model, torch.nn.Module):
                tokenizer, self.model = loaded_model(model, self.name)
                self.device, self.weights = self.model.device, fingerprint(self.model)
            else:
                self.device = find_device(device)
                tokenizer, self.model = load_model(
                    self.name, self.device, dtype, trust_remote_code=trust
                )
                speed_up(self.model)
            self.max_batch = max_batch or _MAX_BATCH.get(self.device.type, 64)
            self.dtype = self.model.dtype
            self.forward = Forward(self.model)
            if "inputs_embeds" not in self.forward.arguments:
                raise EngineError(f"model {self.name}: its forward pass takes no inputs_embeds")
            super().__init__(tokenizer, self.model.get_input_embeddings())
            self.context_length = context_length(self.model.config)
            stop = end_ids(self.model, tokenizer)
            self.check_ids(stop)
            self.stop_ids = torch.tensor(stop, dtype=torch.int64, device=self.device)
            self._verify()
            self._prefixes = PrefixCache(prefix_tokens if self.forward.plain else 0)
            self._batch = Batch(
                self.forward, self.stop_ids, self.has_stopped, max_batch=self.max_batch
            )
        release_openmp_threads()

    @cached_property
    def chat_sampling(self) -> Mapping[str, Any]:
        """Sampling advised by the folder's `generation_config.json`."""
        return advised_sampling(self.name, self.model.generation_config)

    @property
    def forward_tokens(self) -> int:
        return self._batch.tokens_read

    def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        prompt = request.prompt
        if not isinstance(prompt, Sequence):
            x = prompt.to(self.device, self.dtype)
            return self._batch.write(Row(request, x, request.penalized_ids, read=len(x)))
        beginning = request.prefix_cache
        assert beginning is None or isinstance(beginning, Beginning)
        x = self._embed_ids(prompt)
        return self._batch.write(Row(request, x, prompt, beginning, read=len(x)))

    async def log_likelihoods(self, pairs: Sequence[TokenPair]) -> list[float]:
        """Return the mean log-probability of the completion's tokens in each pair.

        Must be called in the engine's event loop. Raises the errors of `write` for the first pair
        that fails.
        """
        for prompt, completion in pairs:
            self.check_prompt((*prompt, *completion), 0)
        lengths = [len(prompt) + len(completion) for prompt, completion in pairs]
        likelihoods = [0.0] * len(pairs)
        for numbers in packed(lengths, self.max_batch):
            with self._calling("likelihood", CompletionError):
                texts = [pairs[number] for number in numbers]
                try:
                    values = self._read_likelihoods(texts)
                except RuntimeError:  # a CPU without memory raises no `OutOfMemoryError`
                    values = [self._read_likelihoods([text])[0] for text in texts]
            for number, value in zip(numbers, values, strict=True):
                likelihoods[number] = value
            await asyncio.sleep(0)  # other requests go on
        release_openmp_threads()
        if any(map(math.isnan, likelihoods)):
            raise EngineError(f"engine {self.name}: a likelihood is not a number")
        return likelihoods

    @torch.inference_mode()
    def _read_likelihoods(self, pairs: Sequence[TokenPair]) -> list[float]:
        # Logits are computed only for completion tokens, since the output layer is a large part of
        # a small model's work.
        last = max(len(completion) for _, completion in pairs)
        rows = [self._embed_ids((*prompt, *completion)) for prompt, completion in pairs]
        out = self.forward.read(rows, keep=last + 1)
        logits = out.logits[:, -last - 1 : -1].float()
        self._batch.tokens_read += sum(map(len, rows))
        ids, _ = left_pad([torch.tensor(list(completion)) for _, completion in pairs])
        chosen = logits.gather(-1, ids.to(logits.device)[..., None])[..., 0]
        log_probs = (chosen - logits.logsumexp(dim=-1)).double()
        return [
            float(row[last - len(completion) :].mean())
            for row, (_, completion) in zip(log_probs, pairs, strict=True)
        ]

    def prefix_cache(self) -> object:
        return Beginning(self._prefixes) if self._prefixes.capacity else None

    def _verify(self) -> None:
        """Find out whether rows may enter the batch while other rows are running.

        Raises EngineError unless token ids and their embeddings give equal next-token logits. The
        logits differ if blocks also get inputs other than the embeddings; a search that perturbs
        embeddings would then not control the text.
        """
        ids = torch.tensor(self._tokenize(["The weather today is"]), device=self.device)
        positions = torch.arange(ids.shape[1], device=self.device)[None]
        with torch.inference_mode():
            by_ids = self.forward(None, positions, input_ids=ids)
            embeddings = self._embed_ids(ids[0].tolist())[None]
            by_embeddings = self.forward(None, positions, inputs_embeds=embeddings)
            if cache_in(by_ids) is None:
                raise EngineError(f"model {self.name}: has no key-value cache; it cannot be used")
            if not by_ids.logits.isfinite().all():
                raise EngineError(f"model {self.name}: its {NOT_FINITE}")
            worst = float((by_ids.logits - by_embeddings.logits).abs().max())
            if not worst <= 1e-2 * max(1.0, float(by_ids.logits.abs().max())):
                problem = "token ids and their embeddings give different logits"
                raise EngineError(f"model {self.name}: {problem} (by {worst:.3g})")
            self.forward.plain = self.forward.plain and reads_alike(self.forward, embeddings[0])
            if not self.forward.plain and not reads_alike(self.forward, embeddings[0]):
                _LOG.warning(
                    "model %s: padding changes its texts; it writes one at a time", self.name
                )
                self.max_batch = 1

    async def _free(self) -> None:
        self._batch.close()
        del self.model, self.forward, self._layer, self._batch
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@checked
def load_model(
    name: str, device: torch.device, dtype: Dtype = "auto", *, trust_remote_code: bool = False
) -> tuple[Any, Any]:
    """Load the tokenizer and model of a folder, hub id or bundled name, or raise EngineError."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  (slow import)

    source = source_of(name)
    auto: Any = torch.float32 if device.type == "cpu" else "auto"
    wanted = auto if dtype == "auto" else getattr(torch, dtype)
    with guarded(EngineError, f"model {source}: cannot be loaded"):
        return load_pretrained(
            AutoModelForCausalLM, source, device, wanted, trust_remote_code=trust_remote_code
        )


def loaded_model(model: Any, name: str) -> tuple[Any, Any]:
    """Return tokenizer and causal LM of a model that transformers or peft has loaded.

    Raises EngineError for a model that writes no text, whose tokenizer is unknown, or whose adapter
    is a prompt.
    """
    from transformers import AutoTokenizer, GenerationMixin  # noqa: PLC0415  (slow import)

    if hasattr(model, "get_base_model"):  # of peft, which put the adapter into the model's layers
        if model.active_peft_config.is_prompt_learning:
            raise EngineError(f"model {name}: its adapter is a prompt; give a LoRA or merge it")
        model = model.get_base_model()
    if not isinstance(model, GenerationMixin):
        raise EngineError(f"model {name}: writes no text; load it with AutoModelForCausalLM")
    with guarded(EngineError, f"model {name}: its tokenizer cannot be read from where it was"):
        return AutoTokenizer.from_pretrained(source_of(name)), model.eval()


@torch.inference_mode()
def reads_alike(forward: Forward, x: Tensor) -> bool:
    """Return whether `x` (T, d), T > 3, has equal logits alone and in a batch with another row.

    The logits are equal if the model obeys masks and positions. If it is `plain`, `x` enters while
    a shorter row is running, which also needs a state of keys and values only.
    """
    short = x[:-2]
    try:
        stream = Stream(forward)
        if forward.plain:
            stream.enter([short])
            token = stream.logits.argmax(dim=-1)
            stream.advance(token)
            stream.enter([x])
            short = torch.cat([short, forward.embed(token)])
        else:
            stream.enter([short, x])
        entered, tokens = stream.logits, stream.logits.argmax(dim=-1)
        stream.advance(tokens)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False  # the model does not support such batches
    alone = [short, x]
    longer = [torch.cat(pair) for pair in zip(alone, forward.embed(tokens)[:, None], strict=True)]
    logits = torch.cat([entered, stream.logits]).float()
    expected = torch.cat([forward.read([row]).logits[:, -1] for row in [*alone, *longer]]).float()
    worst = float((logits - expected).abs().max())
    tolerance = _TOLERANCE if x.dtype is torch.float32 else _ROUNDED
    return worst <= tolerance * float(expected.abs().max())

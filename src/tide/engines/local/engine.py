"""The default engine: any causal LM that transformers loads, in this process, on CPU or CUDA."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tide.core.concurrency import release_openmp_threads
from tide.core.errors import EngineError, guarded
from tide.core.pretrained import end_ids, find_device, load_pretrained
from tide.core.settings import Sampling
from tide.engines.base import Completion, FinishReason, MaxBatch, Piece, Request, float_dtype
from tide.engines.checkpoint import advised_sampling, context_length, source_of
from tide.engines.embedding_table import EmbeddingEngine
from tide.engines.local.decode import Forward, StopStrings, cache_in, not_finite
from tide.engines.local.kv_cache import longest_row
from tide.engines.local.open_batch import OpenStream, Row
from tide.engines.local.packed_weights import speed_up
from tide.engines.local.prefixes import Prefix, Prefixes, RequestCache
from tide.engines.local.worker import Reading, Worker
from tide.plugins.options import checked

# Decoding on a CPU gains little past this; on a GPU the weights are read once for the whole batch.
_MAX_BATCH = {"cpu": 64, "cuda": 256}
# Of the largest logit, in company and alone. A wrong mask makes 0.2; in bfloat16, 24 layers differ
# by 0.02 in what they round.
_TOLERANCES = {torch.float32: 1e-4}
_ROUNDED = 5e-2


class TransformersEngine(EmbeddingEngine):
    """A causal LM from a folder or the Hugging Face hub, run by its `inputs_embeds`.

    model: folder, hub id, "pocket", "pocket-reference" or "pocket-chat" (bundled).
    device: "auto" (CUDA if there is one), "cpu", "cuda", "cuda:1"...
    dtype: "auto" (the checkpoint's on CUDA; float32 on the CPU, where results are then the same on
    every machine but for the order of sums), "float32", "bfloat16" (the fastest on a CPU with
    AVX512-BF16; logits are rounded to 8 bits), "float16".
    max_batch: sequences run at once, None for a default by device.
    prefix_tokens: of the beginnings that the candidates of a prompt share (`perturb="last:K"`), so
    many tokens' keys and values are kept for as long as their searches last; if it is more, those
    used last. For models that keep keys and values only, within any sliding window. 0: read all.
    forward_tokens: tokens read so far for completions and likelihoods; those shared, once.

    Sequences enter and leave the running batch at any step, if the model keeps keys and values only
    (within any sliding window); others are written batch by batch.

    Only safetensors weights are read, and code from the hub runs only with `trust_remote_code`.
    Raises EngineError if the model cannot be loaded whole, has no usable embedding layer, or does
    not give the same finite result for token ids and their embeddings, and InputError for options
    that cannot be used.
    """

    honours: ClassVar = EmbeddingEngine.honours | {"repetition_penalty"}

    @checked
    def __init__(
        self,
        model: str | Path = "pocket",
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_batch: MaxBatch = None,
        prefix_tokens: Annotated[int, Field(ge=0)] = 1 << 15,
        trust_remote_code: bool = False,
    ) -> None:
        self.name = str(model)
        try:
            self.portal.run(self._load, device, dtype, max_batch, prefix_tokens, trust_remote_code)
        except BaseException:
            self.portal.close(wait=False)
            raise

    async def _load(
        self, device: str, dtype: str, max_batch: int | None, prefix_tokens: int, trust: bool
    ) -> None:
        # In the engine's thread, which is to be the one that computes.
        with self._calling("loading"):
            self.device = find_device(device)
            self.max_batch = max_batch or _MAX_BATCH.get(self.device.type, 64)
            tokenizer, self.model = load_model(
                self.name, self.device, dtype, trust_remote_code=trust
            )
            speed_up(self.model)
            self.dtype = self.model.dtype
            self._forward = Forward(self.model)
            super().__init__(tokenizer, self._embedding_layer(), self.model.config)
            self.context_length = context_length(self.model.config)
            stop = end_ids(self.model, tokenizer)
            self.check_ids([stop])
            longest = self._try()
            self._prefixes = Prefixes(self._forward, prefix_tokens if longest else 0)
            self._worker = Worker(
                self._forward,
                self._prefixes,
                torch.tensor(stop, dtype=torch.int64, device=self.device),
                StopStrings(self._texts, self.fewest),
                max_batch=self.max_batch,
                longest=longest,
            )
        release_openmp_threads()

    @cached_property
    def chat_sampling(self) -> Mapping[str, Any]:
        """That of the folder's `generation_config.json`."""
        return advised_sampling(self.name, self.model.generation_config)

    @property
    def forward_tokens(self) -> int:
        return self._prefixes.meter.tokens

    @property
    def stop_ids(self) -> Tensor:
        """The tokens that end a text."""
        return self._worker.stop_ids

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        pieces: asyncio.Queue[Piece | Exception] = asyncio.Queue()
        work = self._work(request, pieces.put_nowait)
        self._worker.submit([work])
        try:
            while True:
                piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            work.aborted = True

    async def _write_all(self, requests: Sequence[Request]) -> list[Completion]:
        group = _Group(len(requests))
        rows = [self._work(request, group.part(i)) for i, request in enumerate(requests)]
        pieces = await self._answers(group, rows)
        written: list[tuple[Sequence[int], FinishReason]] = []
        for piece in pieces:
            assert piece.finish_reason is not None
            written.append((piece.token_ids, piece.finish_reason))
        return self.completions(written, [request.sampling for request in requests])

    async def _score_all(self, requests: Sequence[Request]) -> list[float]:
        group = _Group(len(requests))
        rows = [self._work(request, group.part(i)) for i, request in enumerate(requests)]
        return [piece.log_likelihood or 0.0 for piece in await self._answers(group, rows)]

    async def _answers(self, group: _Group, work: Sequence[Row | Reading]) -> list[Piece]:
        self._worker.submit(work)
        try:
            return await group.pieces()
        finally:
            for one in work:
                one.aborted = True

    def _work(self, request: Request, put: Callable[[Piece | Exception], None]) -> Row | Reading:
        """What the worker is asked to do; `put` is told what comes of it."""
        prompt, sampling = request.prompt, request.sampling
        with torch.inference_mode():
            if isinstance(prompt, Sequence):
                x, ids = self._embed_ids(prompt), prompt
            else:
                x, ids = prompt.to(self.device, self.dtype), ()
        prefix = request.prefix
        if not (isinstance(prefix, Prefix) and self._begins(request, prefix, x)):
            prefix = None
        if request.scored:
            last = ids[len(ids) - request.scored :]
            return Reading(x, last, put, request.priority, prefix)
        if sampling.repetition_penalty != 1 and not ids:
            ids = self._decode_nearest(x)
        memory = request.memory if isinstance(prompt, Sequence) else None
        return Row(
            x,
            sampling,
            request.seed,
            put,
            priority=request.priority,
            never=request.never,
            prompt_ids=ids,
            prefix=prefix,
            memory=memory if isinstance(memory, RequestCache) else None,
            piece_tokens=request.piece_tokens,
        )

    def _begins(self, request: Request, prefix: Prefix, x: Tensor) -> bool:
        """Whether a prompt begins with a prefix; its last row is its own."""
        prompt = request.prompt
        rows = x.float().cpu() if isinstance(prompt, Sequence) else prompt
        return prefix.begins(rows)

    def _share(self, rows: Tensor) -> object:
        return self._prefixes.hold(rows)

    def _memory(self) -> object:
        return self._prefixes.memory()

    def _try(self) -> int:
        """The longest row that may enter a batch while others are written; 0 if none may.

        Raises EngineError unless the next-token logits for token ids and for their embeddings are
        the same: they differ for models that feed more than the embeddings into their blocks, and
        for those the search would move something that the model does not write from.
        """
        ids = torch.tensor(self._tokenize(["The weather today is"]), device=self.device)
        if ids.numel() == 0:
            raise EngineError(f"model {self.name}: its tokenizer gives no tokens for a sentence")
        positions = torch.arange(ids.shape[1], device=self.device)[None]
        with torch.inference_mode():
            by_ids = self._forward(None, positions, input_ids=ids)
            embeddings = self._embed_ids(ids[0].tolist())[None]
            by_embeddings = self._forward(None, positions, inputs_embeds=embeddings)
            cache = cache_in(by_ids)
            if cache is None:
                raise EngineError(f"model {self.name}: keeps no key-value cache; it cannot be used")
            if not by_ids.logits.isfinite().all():
                raise EngineError(f"model {self.name}: its {not_finite(self.model.dtype)}")
            worst = float((by_ids.logits - by_embeddings.logits).abs().max())
            if not worst <= 1e-2 * max(1.0, float(by_ids.logits.abs().max())):
                raise EngineError(
                    f"model {self.name}: token ids and their embeddings give different logits (by "
                    f"{worst:.3g}); this architecture feeds more than inputs_embeds to its blocks"
                )
            longest = longest_row(cache)
            return longest if reads_alike(self._forward, embeddings[0], longest) else 0

    def _verify(self) -> None:
        self._try()

    async def _free(self) -> None:
        self._worker.close()
        del self.model, self._forward, self._layer, self._prefixes, self._worker
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _embedding_layer(self) -> Any:
        if not self._forward.accepts("inputs_embeds"):
            raise EngineError(f"model {self.name}: its forward pass takes no inputs_embeds")
        try:
            layer = self.model.get_input_embeddings()
        except NotImplementedError:
            layer = None
        if getattr(layer, "weight", None) is None or layer.weight.ndim != 2:
            raise EngineError(f"model {self.name}: no usable input embedding layer")
        return layer


class _Group:
    """The last pieces of several requests, for one coroutine: it is woken once."""

    def __init__(self, count: int) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pieces: dict[int, Piece] = {}
        self._count = count

    def part(self, number: int) -> Callable[[Piece | Exception], None]:
        def put(piece: Piece | Exception) -> None:
            if self._future.done():
                return
            if isinstance(piece, Exception):
                self._future.set_exception(piece)
                return
            self._pieces[number] = piece
            if len(self._pieces) == self._count:
                self._future.set_result(None)

        return put

    async def pieces(self) -> list[Piece]:
        await self._future
        return [self._pieces[number] for number in range(self._count)]


def load_model(
    name: str, device: torch.device, dtype: str = "auto", *, trust_remote_code: bool = False
) -> tuple[Any, Any]:
    """Tokenizer and model of a folder, a hub id or a bundled one; `dtype` as for the engine.

    Raises EngineError if it cannot be loaded whole.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  (slow import)

    source = source_of(name)
    if dtype == "auto":
        wanted: Any = torch.float32 if device.type == "cpu" else "auto"
    else:
        wanted = float_dtype(dtype)
    with guarded(EngineError, f"model {source}: cannot be loaded"):
        return load_pretrained(
            AutoModelForCausalLM, source, device, wanted, trust_remote_code=trust_remote_code
        )


@torch.inference_mode()
def reads_alike(forward: Forward, x: Tensor, longest: int) -> bool:
    """Whether the model reads `x` (T, d), T > 3, the same where rows come and go or share a prefix.

    It needs keys and values, and masks that are obeyed. longest: as of `longest_row`.
    """
    if len(x) >= longest:
        return False
    prefix = Prefix(x[:2])
    stream = OpenStream(forward, Prefixes(forward, 0))
    try:
        # One row, which is read on when a longer one enters, and one that shares its beginning.
        stream.enter([_row(x[:-2])])
        token = stream.logits.argmax(dim=-1)
        stream.advance(token)
        stream.enter([_row(x), _row(x[:-1], prefix)])
        entered, tokens = stream.logits, stream.logits.argmax(dim=-1)
        stream.advance(tokens)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False  # what the model cannot do
    alone = [torch.cat([x[:-2], forward.embed(token)]), x, x[:-1]]
    longer = [torch.cat(pair) for pair in zip(alone, forward.embed(tokens)[:, None], strict=True)]
    found = torch.cat([entered, stream.logits]).float()
    expected = torch.cat([forward.read([row]).logits[:, -1] for row in [*alone, *longer]]).float()
    worst = float((found - expected).abs().max())
    tolerance = _TOLERANCES.get(x.dtype, _ROUNDED)
    return worst <= tolerance * float(expected.abs().max())


def _row(x: Tensor, prefix: Prefix | None = None) -> Row:
    return Row(x, Sampling(), 0, lambda _: None, prefix=prefix)

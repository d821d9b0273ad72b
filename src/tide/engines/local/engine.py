"""The default engine: any causal LM that transformers loads, in this process, on CPU or CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from tide.core.errors import EngineError, InputError, guarded
from tide.core.pretrained import find_device, load_pretrained
from tide.core.settings import Sampling
from tide.engines.base import (
    Completion,
    MaxBatch,
    Samplings,
    check_rows,
    check_tokens,
    float_dtype,
)
from tide.engines.checkpoint import context_length, source_of
from tide.engines.embedding_table import Vocabulary
from tide.engines.local.cuda_graphs import StepGraphs
from tide.engines.local.decode import Forward, Reading, Stream, Writing, decode
from tide.engines.local.packed_weights import speed_up
from tide.engines.local.padding import (
    in_batches,
    left_pad,
    length_groups,
    token_positions,
    writing_cost,
)
from tide.engines.local.prefixes import Prefix, Prefixes
from tide.engines.local.stopping import StopStrings
from tide.engines.local.writer import LocalWriter
from tide.plugins.options import checked

# Decoding on a CPU gains little past this; on a GPU the weights are read once for the whole batch.
_MAX_BATCH = {"cpu": 64, "cuda": 256}


class TransformersEngine(Vocabulary):
    """A causal LM from a folder or the Hugging Face hub, run by its `inputs_embeds`.

    model: folder, hub id, "pocket", "pocket-reference" or "pocket-chat" (bundled).
    device: "auto" (CUDA if there is one), "cpu", "cuda", "cuda:1"...
    dtype: "auto" (the checkpoint's on CUDA; float32 on the CPU, where results are then the same on
    every machine but for the order of sums), "float32", "bfloat16" (the fastest on a CPU with
    AVX512-BF16; logits are rounded to 8 bits), "float16".
    max_batch: sequences run at once, None for a default by device.
    cuda_graphs: capture the decode step of each shape of batch once and replay it, for models whose
    layers all keep plain keys and values (no sliding windows). Takes a cache for each of up to 8
    shapes. Off unless asked for: it was tested on the CPU, without the capture, and never timed.
    prefix_tokens: of the beginnings that the candidates of a prompt share (`perturb="last:K"`), so
    many tokens' keys and values are kept for as long as their searches last; if it is more, those
    used last. For models that keep keys and values only, within any sliding window. 0: read all.
    forward_tokens: tokens read so far for completions and likelihoods; those shared, once.

    Only safetensors weights are read, and code from the hub runs only with `trust_remote_code`.
    Raises EngineError if the model cannot be loaded whole, has no usable embedding layer, or does
    not give the same finite result for token ids and their embeddings, and InputError for options
    that cannot be used.
    """

    honours: ClassVar = {*Vocabulary.honours, "repetition_penalty"}

    @checked
    def __init__(
        self,
        model: str | Path = "pocket",
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_batch: MaxBatch = None,
        cuda_graphs: bool = False,
        prefix_tokens: Annotated[int, Field(ge=0)] = 1 << 15,
        trust_remote_code: bool = False,
    ) -> None:
        self.name = str(model)
        self.device = find_device(device)
        if cuda_graphs and self.device.type != "cuda":
            raise InputError(f"cuda_graphs: need device 'cuda' (it is {str(self.device)!r})")
        self.max_batch = max_batch or _MAX_BATCH.get(self.device.type, 64)
        tokenizer, self.model = load_model(
            self.name, self.device, dtype, trust_remote_code=trust_remote_code
        )
        speed_up(self.model)
        self.dtype = self.model.dtype
        self._forward = Forward(self.model)
        if cuda_graphs and self._forward.accepts("position_ids"):
            self._forward.graphs = StepGraphs(self.model)
        self._prefixes = Prefixes(self._forward, prefix_tokens, self.dtype, self.device)
        self._tokens = 0
        super().__init__(tokenizer, self._embedding_layer(), self.model.config)
        self.context_length = context_length(self.model.config)
        end = self.model.generation_config.eos_token_id
        stop = [] if end is None else end if isinstance(end, list) else [end]
        self.check_ids([stop])
        self.stop_ids = torch.tensor(stop, dtype=torch.int64, device=self.device)
        self.verify()

    @property
    def forward_tokens(self) -> int:
        return self._tokens - self._prefixes.tokens_saved

    def keep_prefix(self, rows: Tensor) -> object:
        return self._prefixes.hold(rows)

    def complete(
        self, embeddings: Sequence[Tensor], sampling: Samplings, seeds: Sequence[int]
    ) -> list[Completion]:
        samplings = check_rows(self, embeddings, sampling)
        limits = [row.max_new_tokens for row in samplings]
        begins = self._prefixes.of(embeddings, limits)

        @torch.inference_mode()
        def write(rows: list[int]) -> list[Completion]:
            prompts, tokens = [embeddings[i] for i in rows], max(limits[i] for i in rows) - 1
            shared = [begin for i in rows if (begin := begins[i])]
            stream: Reading
            if shared:  # as those of all rows, or of none, are: see `_apart`
                stream = self._prefixes.read(shared, prompts, tokens)
            else:
                x = [prompt.to(self.device, self.dtype) for prompt in prompts]
                stream = Stream(self._forward, x, tokens)
            row_samplings, row_seeds = [samplings[i] for i in rows], [seeds[i] for i in rows]
            written = decode(
                Writing(stream),
                row_samplings,
                row_seeds,
                self.stop_ids,
                prompts=self._nearest_ids(prompts, row_samplings),
                stop_strings=StopStrings(row_samplings, self.texts, self.fewest),
            )
            self._tokens += sum(map(len, prompts)) + sum(len(ids) - 1 for ids, _ in written)
            return self.completions(written, row_samplings)

        # Rows that write about as much share a batch, and of those, prompts of similar length. A
        # GPU writes many rows in the time of one.
        on_cpu = self.device.type == "cpu"
        groups = length_groups(limits, writing_cost) if on_cpu else [list(range(len(limits)))]
        ordered = [sorted(group, key=lambda i: (limits[i], len(embeddings[i]))) for group in groups]
        return in_batches(write, self._apart(ordered, begins), self.max_batch)

    def write(
        self, embeddings: Sequence[Tensor], sampling: Samplings, seeds: Sequence[int]
    ) -> LocalWriter:
        """Keeps the keys and values of what it has written; all rows are one batch."""
        samplings = check_rows(self, embeddings, sampling)
        prompts = self._nearest_ids(embeddings, samplings)
        rows = [x.to(self.device, self.dtype) for x in embeddings]
        with torch.inference_mode():
            tokens = max(row.max_new_tokens for row in samplings) - 1
            stream = Stream(self._forward, rows, tokens, alone=False)
        self._count(sum(map(len, rows)))
        return LocalWriter(stream, samplings, seeds, prompts, self.stop_ids, self._count)

    def _count(self, tokens: int) -> None:
        self._tokens += tokens

    def _nearest_ids(
        self, prompts: Sequence[Tensor], samplings: Sequence[Sampling]
    ) -> list[list[int]]:
        """The tokens nearest to the rows of each prompt, where a repetition penalty needs them."""
        wanted = [own.repetition_penalty != 1 for own in samplings]
        rows = [x for x, is_wanted in zip(prompts, wanted, strict=True) if is_wanted]
        found = iter(self.decode_nearest(torch.cat(rows)) if rows else ())
        return [
            list(islice(found, len(x))) if is_wanted else []
            for x, is_wanted in zip(prompts, wanted, strict=True)
        ]

    def _apart(
        self, groups: Iterable[Sequence[int]], begins: Sequence[Prefix | None]
    ) -> Iterator[list[int]]:
        """The rows of each group that begin with no prefix, and those that do.

        On the CPU, of the latter those are together whose prefixes have about as many rows: as many
        as the one with most are read behind each.
        """
        for group in groups:
            behind: dict[Prefix | None, list[int]] = {None: []}
            for row in group:
                behind.setdefault(begins[row], []).append(row)
            yield behind.pop(None)
            rows = list(behind.values())
            everything = [list(range(len(rows)))]
            on_cpu = self.device.type == "cpu"
            for some in length_groups([*map(len, rows)]) if on_cpu else everything:
                yield [row for number in some for row in rows[number]]

    @torch.inference_mode()
    def likelihood(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        check_tokens(prompts, completions)
        self.check_ids([*prompts, *completions])
        pairs = list(zip(prompts, completions, strict=True))
        begins: list[Prefix | None] = [None] * len(pairs)
        if self._prefixes:
            embedded = (self._embed_ids(ids).float().cpu() for ids in prompts)
            begins = self._prefixes.of(embedded, map(len, completions))
        groups = length_groups([len(a) + len(b) for a, b in pairs])
        return np.array(
            in_batches(
                lambda rows: self._likelihood([pairs[i] for i in rows], [begins[i] for i in rows]),
                self._apart(groups, begins),
                self.max_batch,
            )
        )

    def _likelihood(
        self, pairs: list[tuple[Sequence[int], Sequence[int]]], begins: list[Prefix | None]
    ) -> list[float]:
        sequences = [torch.tensor([*prompt, *completion]) for prompt, completion in pairs]
        ids, mask = left_pad([ids.to(self.device) for ids in sequences])
        # Only what predicts a completion's tokens: the head is a good part of a small model.
        last = max(len(completion) for _, completion in pairs)
        self._tokens += sum(map(len, sequences))
        shared = [begin for begin in begins if begin]
        if shared:
            x = [self._embed_ids(ids.tolist()) for ids in sequences]
            logits = self._prefixes.read(shared, x, 0, keep=last + 1).kept[:, :-1].float()
        else:
            positions = token_positions(mask)
            keep = {"logits_to_keep": last + 1} if self._forward.accepts("logits_to_keep") else {}
            out = self._forward(mask, positions, input_ids=ids, **keep)
            logits = out.logits[:, -last - 1 : -1].float()
        chosen = logits.gather(-1, ids[:, -last:, None])[..., 0]
        log_probs = (chosen - logits.logsumexp(dim=-1)).double()
        return [
            float(log_probs[i, last - len(completion) :].mean())
            for i, (_, completion) in enumerate(pairs)
        ]

    def verify(self) -> None:
        """Compare the next-token logits for token ids and for their embeddings.

        They differ for models that feed more than the embeddings into their blocks; for those the
        search would move something that the model does not write from.
        """
        ids = torch.tensor(self.tokenize(["The weather today is"]), device=self.device)
        if ids.numel() == 0:
            raise EngineError(f"model {self.name}: its tokenizer gives no tokens for a sentence")
        positions = torch.arange(ids.shape[1], device=self.device)[None]
        with torch.inference_mode():
            by_ids = self._forward(None, positions, input_ids=ids)
            embeddings = self._embed_ids(ids[0].tolist())[None]
            by_embeddings = self._forward(None, positions, inputs_embeds=embeddings)
        if getattr(by_ids, "past_key_values", None) is None:
            raise EngineError(f"model {self.name}: keeps no key-value cache; it cannot be used")
        if not by_ids.logits.isfinite().all():
            raise EngineError(
                f"model {self.name}: its logits are NaN or infinite; are its weights broken?"
            )
        worst = float((by_ids.logits - by_embeddings.logits).abs().max())
        if not worst <= 1e-2 * max(1.0, float(by_ids.logits.abs().max())):
            raise EngineError(
                f"model {self.name}: token ids and their embeddings give different logits "
                f"(by {worst:.3g}); this architecture feeds more than inputs_embeds to its blocks"
            )

    def _free(self) -> None:
        del self.model, self._forward, self._layer, self._prefixes
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

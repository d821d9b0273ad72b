"""The decode loop of one batch: left-padded prompt embeddings in, token ids out.

`model.generate` pays a large overhead per step that a small model feels more than its own
arithmetic, so this loop calls the model's forward pass itself, with a cache that is written in
place (kv_cache.py). Baselines write by it; the engine itself by `open_batch`, whose rows come and
go.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from tide.core.errors import EngineError
from tide.core.settings import Sampling
from tide.engines.base import FinishReason
from tide.engines.checkpoint import context_length
from tide.engines.local.kv_cache import join, joinable
from tide.engines.local.padding import left_pad, length_groups, token_positions
from tide.engines.local.sampling import Sampler

# Steps between looks at whether all rows have stopped: each waits for the device to catch up.
CHECK_EVERY = {"cpu": 1}
CHECK_EVERY_ELSEWHERE = 4
# Steps between looks at the texts: to read them costs about as much as a small model's step.
LOOK_EVERY = 8

# What rows of ids read as.
Texts = Callable[[Sequence[Sequence[int]]], list[str]]
# How many of the first ids it takes until their text is enough: see `Engine.fewest`.
Fewest = Callable[[Sequence[int], Callable[[str], bool]], int]


class Forward:
    """Calls a causal LM with just the arguments that its forward pass takes.

    context: most tokens of a sequence, None without a limit.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._accepts = set(inspect.signature(model.forward).parameters)
        # `past_key_values` up to transformers 5.23, and in models that bring code of their own.
        self._cache = "cache" if self.accepts("cache") else "past_key_values"
        self.context = context_length(model.config)

    def accepts(self, name: str) -> bool:
        return name in self._accepts

    def __call__(
        self, mask: Tensor | None, positions: Tensor, cache: Any = None, **inputs: Any
    ) -> Any:
        if cache is not None:
            inputs[self._cache] = cache
        if self.accepts("position_ids"):
            inputs["position_ids"] = positions
        # Without padding the attention needs no mask, and its fast paths apply.
        return self._model(attention_mask=mask, use_cache=True, return_dict=True, **inputs)

    def step(self, tokens: Tensor, positions: Tensor, cache: Any, mask: Tensor | None) -> Tensor:
        """Next-token logits (B, V) for `tokens` and their `positions`, both (B,).

        The tokens join the `cache`. mask: (B, cached + 1), 1 = real; None where nothing is padding.
        """
        out = self(mask, positions[:, None], cache, input_ids=tokens[:, None])
        logits: Tensor = out.logits[:, -1]
        return logits

    def embed(self, tokens: Tensor) -> Tensor:
        """The model's own embeddings of token ids (B,)."""
        embeddings: Tensor = self._model.get_input_embeddings()(tokens)
        return embeddings

    def cache_of(self, layers: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """A cache with these keys and values, to which more are added."""
        cache = DynamicCache()
        for number, (keys, values) in enumerate(layers):
            cache.update(keys, values, number)
        return cache

    def read(self, rows: Sequence[Tensor], *, keep: int = 1) -> Any:
        """What the model gives for (T_i, d) matrices, left-padded; logits of the last `keep`."""
        x, mask = left_pad(rows)
        positions = token_positions(mask)
        kept = {"logits_to_keep": keep} if self.accepts("logits_to_keep") else {}
        return self(None if bool(mask.all()) else mask, positions, inputs_embeds=x, **kept)


def not_finite(dtype: torch.dtype) -> str:
    """What is said of a model whose logits are not finite."""
    if dtype is torch.float16:
        return "logits are NaN or infinite in float16; use dtype bfloat16 or float32"
    return "logits are NaN or infinite; are its weights broken?"


def cache_in(out: Any) -> Any:
    """The key-value cache in what a model gave, None without one.

    From transformers 5.24 on, models that keep a state alone (Mamba) have a cache, too.
    """
    cache = out.cache if hasattr(out, "cache") else getattr(out, "past_key_values", None)
    layers = getattr(cache, "layers", [])
    return cache if any(hasattr(layer, "keys") for layer in layers) else None


def prefill(
    forward: Forward, rows: Sequence[Tensor], tokens: int, *, together: bool = False
) -> tuple[Tensor, Any]:
    """Read the (T_i, d) matrices: next-token logits (B, V), and a left-padded cache of all rows.

    tokens: how many more the cache has room for. together: read all in one pass anywhere.
    """
    logits, outs, groups = read_apart(forward, rows, together=together)
    return logits, join([cache_in(out) for out in outs], groups, tokens)


def read_apart(
    forward: Forward, rows: Sequence[Tensor], *, together: bool = False
) -> tuple[Tensor, list[Any], list[list[int]]]:
    """Next-token logits (B, V) of the rows, what the model gave for each group, and the groups.

    On the CPU rows of similar length are read together; a GPU has arithmetic to spare for the
    padding.
    """
    everything = [list(range(len(rows)))]
    apart = rows[0].is_cpu and not together
    groups = length_groups([len(row) for row in rows]) if apart else everything
    outs = [forward.read([rows[i] for i in groups[0]])]
    # Even a single group may hold the rows in another order, which only plain layers can take back.
    if groups != everything and not joinable(cache_in(outs[0])):
        groups, outs = everything, [forward.read(rows)]
    outs += [forward.read([rows[i] for i in group]) for group in groups[1:]]
    read = torch.cat([out.logits[:, -1] for out in outs])
    logits = torch.empty_like(read)
    logits[[i for group in groups for i in group]] = read
    return logits, outs, groups


class Stream:
    """A batch of sequences that one model reads token by token, with its key-value cache.

    logits: (B, V), for the token that follows what was read. rows: (T_i, d) input embeddings.
    tokens: most tokens to be read after them. together: read all rows in one pass (see `prefill`).
    forks: whether `fork` will be called; then the cache grows as the model's own does.
    """

    def __init__(
        self,
        forward: Forward,
        rows: Sequence[Tensor],
        tokens: int,
        *,
        together: bool = False,
        forks: bool = False,
    ) -> None:
        self._forward = forward
        lengths = torch.tensor([len(row) for row in rows])
        self._end = int(lengths.max())
        self._padded = bool((lengths < self._end).any())
        columns = torch.arange(self._end + tokens)
        self._mask = (columns >= self._end - lengths[:, None]).long().to(rows[0].device)
        # A row that has ended is read on for as long as its neighbours write: it stays in bounds.
        last = (forward.context or len(columns)) - 1
        self._positions = token_positions(self._mask).clamp_(max=last)
        self.logits, self._cache = prefill(forward, rows, 0 if forks else tokens, together=together)

    def advance(self, tokens: Tensor) -> None:
        """Read one more token of each row, (B,). What `logits` was before is lost."""
        positions = self._positions[:, self._end]
        self._end += 1
        seen = self._mask[:, : self._end] if self._padded else None
        self.logits = self._forward.step(tokens, positions, self._cache, seen)

    def fork(self, times: int) -> None:
        """Let each row stand `times` times, beside each other."""
        self._cache.batch_repeat_interleave(times)
        self._mask = self._mask.repeat_interleave(times, dim=0)
        self._positions = self._positions.repeat_interleave(times, dim=0)
        self.logits = self.logits.repeat_interleave(times, dim=0)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows (their numbers) only."""
        self._cache.batch_select_indices(rows)
        self._mask, self._positions = self._mask[rows], self._positions[rows]
        self.logits = self.logits[rows]


class Writing:
    """A batch that is being written: a stream of the model, which a baseline adds its own to.

    prompt_reads: tokens read before the first draw, a row. reads_per_token: tokens read after a
    draw that is not the last.
    """

    reads_per_token = 1

    def __init__(self, stream: Stream, prompt_reads: Sequence[int] = ()) -> None:
        self.stream = stream
        self.prompt_reads = prompt_reads

    @property
    def logits(self) -> Tensor:
        """The model's own for the next token, (B, V)."""
        return self.stream.logits

    def reads(self, row: int, draws: int) -> int:
        """Tokens read for a row that ended with draw number `draws`."""
        return self.prompt_reads[row] + self.reads_per_token * (draws - 1)

    def shift(self, scores: Tensor) -> Tensor:
        """What the next token is drawn from, given `scores` (B, V): the logits, perhaps warped."""
        return scores

    def advance(self, tokens: Tensor) -> None:
        """Read the tokens (B,) that were drawn."""
        self.stream.advance(tokens)


class StopStrings:
    """Finds the rows that have come to hold one of their stop strings, wherever its tokens part."""

    def __init__(self, texts: Texts, fewest: Fewest) -> None:
        self._texts, self._fewest = texts, fewest

    def found(
        self, samplings: Sequence[Sampling], ids: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, int]]:
        """The number of each row that holds one, and how many of its ids it took."""
        rows = [row for row, own in enumerate(samplings) if own.stop]
        texts = self._texts([ids[row] for row in rows]) if rows else []
        for row, text in zip(rows, texts, strict=True):
            if samplings[row].stop_in(text) is not None:
                yield row, self._fewest(ids[row], partial(_holds, samplings[row]))


def _holds(sampling: Sampling, text: str) -> bool:
    return sampling.stop_in(text) is not None


@torch.inference_mode()
def decode(
    writing: Writing,
    samplings: Sequence[Sampling],
    seeds: Sequence[int],
    stop_ids: Tensor,
    *,
    shift_first: bool = False,
    prompts: Sequence[Sequence[int]] = (),
    stop_strings: StopStrings | None = None,
    on_step: Callable[[int], None] | None = None,
) -> list[tuple[list[int], FinishReason]]:
    """Each row whole: up to its own `max_new_tokens` ids, of which a stop id is the last.

    shift_first: shift the logits before they are warped, instead of after. prompts: ids, as
    `Sampler` has them. stop_strings: of these rows; one that holds its own ends with the token that
    completes it, and "length" as the reason. on_step: is told how many tokens each row has.

    Raises EngineError where a token was drawn from scores that are not finite: of those the arg max
    takes any token, and often the one that ends the text.
    """
    device = writing.logits.device
    sampler = Sampler(device, stop_ids)
    sampler.enter(samplings, seeds, prompts)
    stops = set(stop_ids.tolist())
    limits = [sampling.max_new_tokens for sampling in samplings]
    look_every = CHECK_EVERY.get(device.type, CHECK_EVERY_ELSEWHERE)
    ended = torch.zeros(len(samplings), dtype=torch.bool, device=device)
    broken = ended.clone()
    drawn: list[Tensor] = []

    def written() -> list[tuple[list[int], FinishReason]]:
        rows = torch.stack(drawn, dim=1).tolist()
        return [_until_stop(row[:most], stops) for row, most in zip(rows, limits, strict=True)]

    while True:
        scores = sampler.prepare(writing.logits)
        if shift_first:
            scores = sampler.warp(writing.shift(scores))
        else:
            scores = writing.shift(sampler.warp(scores))
        tokens, finite = sampler.draw(scores)
        drawn.append(tokens)
        if on_step is not None:
            on_step(len(drawn))
        broken |= ~(finite | ended)
        last, looks = len(drawn) == max(limits), len(drawn) % look_every == 0
        if (last or looks) and bool(broken.any()):
            raise EngineError(f"the model's {not_finite(writing.logits.dtype)}")
        if not last:
            ended |= torch.isin(tokens, stop_ids)
            if len(drawn) in limits:
                ended |= torch.tensor([most <= len(drawn) for most in limits], device=device)
        if stop_strings and (last or len(drawn) % LOOK_EVERY == 0):
            texts = [ids[:-1] if reason == "stop" else ids for ids, reason in written()]
            for row, count in stop_strings.found(samplings, texts):
                limits[row], ended[row] = count, True
        if last or (looks and bool(ended.all())):
            return written()
        writing.advance(tokens)


def _until_stop(ids: list[int], stops: set[int]) -> tuple[list[int], FinishReason]:
    end = next((number for number, token in enumerate(ids) if token in stops), None)
    return (ids, "length") if end is None else (ids[: end + 1], "stop")

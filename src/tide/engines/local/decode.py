"""The decode loop: left-padded prompt embeddings in, token ids out, with a key-value cache.

`model.generate` pays a large overhead per step that a small model feels more than its own
arithmetic, so this loop calls the model's forward pass itself, with a cache that is written in
place (kv_cache.py), and for GPT-2 with one of its own (gpt2.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from tide.core.errors import EngineError
from tide.core.settings import Sampling
from tide.engines.base import FinishReason
from tide.engines.checkpoint import context_length
from tide.engines.local.cuda_graphs import CapturedSteps, StepGraphs
from tide.engines.local.gpt2 import lean_gpt2
from tide.engines.local.kv_cache import join, joinable
from tide.engines.local.padding import left_pad, length_groups, token_positions
from tide.engines.local.sampling import Sampler
from tide.engines.local.stopping import LOOK_EVERY, StopStrings

# Steps between looks at whether all rows have stopped: each waits for the device to catch up.
CHECK_EVERY = {"cpu": 1}
_CHECK_EVERY_ELSEWHERE = 4


class Forward:
    """Calls a causal LM with just the arguments that its forward pass takes.

    hooks: take the way through the model's own modules, so that hooks on them are called. `graphs`,
    if set, takes the steps of streams that do not fork. context: most tokens of a sequence, None
    without a limit.
    """

    graphs: StepGraphs | None = None

    def __init__(self, model: Any, *, hooks: bool = False) -> None:
        self._model = model
        self._accepts = set(inspect.signature(model.forward).parameters)
        self.context = context_length(model.config)
        self.lean = None if hooks else lean_gpt2(model)

    def accepts(self, name: str) -> bool:
        return name in self._accepts

    def __call__(self, mask: Tensor | None, positions: Tensor, **inputs: Any) -> Any:
        if self.lean is not None:
            return self.lean(mask, positions, **inputs)
        if self.accepts("position_ids"):
            inputs["position_ids"] = positions
        # Without padding the attention needs no mask, and its fast paths apply.
        return self._model(attention_mask=mask, use_cache=True, return_dict=True, **inputs)

    def step(self, tokens: Tensor, positions: Tensor, cache: Any, mask: Tensor | None) -> Tensor:
        """Next-token logits (B, V) for `tokens` and their `positions`, both (B,).

        The tokens join the `cache`. mask: (B, cached + 1), 1 = real; None where nothing is padding.
        """
        out = self(mask, positions[:, None], input_ids=tokens[:, None], past_key_values=cache)
        logits: Tensor = out.logits[:, -1]
        return logits


def prefill(
    forward: Forward, rows: Sequence[Tensor], tokens: int, *, together: bool = False
) -> tuple[Tensor, Any]:
    """Read the (T_i, d) matrices: next-token logits (B, V), and a left-padded cache of all rows.

    tokens: how many more the cache has room for. On the CPU rows of similar length are read
    together and their caches joined; a GPU has arithmetic to spare for the padding. together: read
    all in one pass anywhere.
    """
    apart = rows[0].is_cpu and not together
    if apart and forward.lean is not None:
        return forward.lean.read(rows, tokens)
    everything = [list(range(len(rows)))]
    groups = length_groups([len(row) for row in rows]) if apart else everything
    outs = [_read(forward, [rows[i] for i in groups[0]])]
    # Even a single group may hold the rows in another order, which only plain layers can take back.
    if groups != everything and not joinable(outs[0].past_key_values):
        groups, outs = everything, [_read(forward, rows)]
    outs += [_read(forward, [rows[i] for i in group]) for group in groups[1:]]
    read = torch.cat([out.logits[:, -1] for out in outs])
    logits = torch.empty_like(read)
    logits[[i for group in groups for i in group]] = read
    return logits, join([out.past_key_values for out in outs], groups, tokens)


def _read(forward: Forward, rows: Sequence[Tensor]) -> Any:
    x, mask = left_pad(rows)
    positions = token_positions(mask)
    keep = {"logits_to_keep": 1} if forward.accepts("logits_to_keep") else {}
    return forward(None if bool(mask.all()) else mask, positions, inputs_embeds=x, **keep)


class Stream:
    """A batch of sequences that one model reads token by token, with its key-value cache.

    logits: (B, V), for the token that follows what was read. rows: (T_i, d) input embeddings.
    tokens: most tokens to be read after them. together: read all rows in one pass (see `prefill`).
    forks: whether `fork` will be called; then the cache grows as the model's own does. alone:
    whether no other stream is read before this one has ended.
    """

    def __init__(
        self,
        forward: Forward,
        rows: Sequence[Tensor],
        tokens: int,
        *,
        together: bool = False,
        forks: bool = False,
        alone: bool = True,
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
        self._captured: CapturedSteps | None = None
        if forward.graphs is not None and alone and not forks:
            self._captured = forward.graphs.begin(self._cache, self._mask, self._end)

    def advance(self, tokens: Tensor) -> None:
        """Read one more token of each row, (B,). What `logits` was before is lost."""
        positions = self._positions[:, self._end]
        self._end += 1
        if self._captured is not None:
            self.logits = self._captured.step(tokens, positions)
            return
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


class Reading(Protocol):
    """A batch of sequences that is read token by token: as `Stream` says, or otherwise laid out."""

    logits: Tensor

    def advance(self, tokens: Tensor) -> None: ...


class Writing:
    """A batch that is being written: a stream of the model, which a baseline adds its own to.

    prompt_reads: tokens read before the first draw, a row. reads_per_token: tokens read after a
    draw that is not the last.
    """

    reads_per_token = 1

    def __init__(self, stream: Reading, prompt_reads: Sequence[int] = ()) -> None:
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


class Decoding:
    """Rows that are being decoded, for as many tokens at a time as is wanted.

    shift_first: shift the logits before they are warped, instead of after. prompts: ids, as
    `Sampler` has them. stop_strings: of these rows; one that holds its own ends with the token that
    completes it, and "length" as the reason.
    """

    def __init__(
        self,
        writing: Writing,
        samplings: Sequence[Sampling],
        seeds: Sequence[int],
        stop_ids: Tensor,
        *,
        shift_first: bool = False,
        prompts: Sequence[Sequence[int]] = (),
        stop_strings: StopStrings | None = None,
    ) -> None:
        self._writing, self._shift_first, self._stop_strings = writing, shift_first, stop_strings
        device = writing.logits.device
        self._sampler = Sampler(samplings, seeds, device, stop_ids, prompts)
        self._stop_ids, self._stops = stop_ids, set(stop_ids.tolist())
        self._limits = [sampling.max_new_tokens for sampling in samplings]
        self._check_every = CHECK_EVERY.get(device.type, _CHECK_EVERY_ELSEWHERE)
        self._ended = torch.zeros(len(samplings), dtype=torch.bool, device=device)
        self._broken = self._ended.clone()
        self._drawn: list[Tensor] = []
        self._done = False

    @torch.inference_mode()
    def advance(self, tokens: int) -> list[tuple[list[int], FinishReason]]:
        """All ids of each row so far: up to its own `max_new_tokens`, of which a stop id is last.

        Draws so many further tokens, or fewer once every row has ended: what a row draws after its
        own end is thrown away. Raises EngineError where a token was drawn from scores that are not
        finite: of those the arg max takes any token, and often the one that ends the text.
        """
        goal = len(self._drawn) + tokens
        while not self._done and len(self._drawn) < goal:
            if self._drawn:
                self._writing.advance(self._drawn[-1])
            self._draw(goal)
        self._look()
        return self._written()

    @torch.inference_mode()
    def keep(
        self,
        rows: Sequence[int],
        samplings: Sequence[Sampling],
        seeds: Sequence[int],
        prompts: Sequence[Sequence[int]],
    ) -> None:
        """Go on with these rows alone, of which these are the samplings, seeds and prompts."""
        index = torch.tensor(rows, dtype=torch.int64, device=self._ended.device)
        self._drawn = [tokens[index] for tokens in self._drawn]
        self._ended, self._broken = self._ended[index], self._broken[index]
        self._limits = [self._limits[row] for row in rows]
        drawn = torch.stack(self._drawn, dim=1).tolist() if self._drawn else [[] for _ in rows]
        seen = [[*prompt, *ids] for prompt, ids in zip(prompts, drawn, strict=True)]
        self._sampler = Sampler(samplings, seeds, index.device, self._stop_ids, seen)

    def _draw(self, goal: int) -> None:
        writing, sampler, drawn = self._writing, self._sampler, self._drawn
        scores = sampler.prepare(writing.logits, len(drawn))
        if self._shift_first:
            scores = sampler.warp(writing.shift(scores))
        else:
            scores = writing.shift(sampler.warp(scores))
        tokens = sampler.draw(scores, len(drawn))
        drawn.append(tokens)
        # NaN and infinity win any arg max, so the score of what was drawn tells of them; with NaN
        # among many scores the sampler draws no token of theirs at all.
        last_token = scores.shape[-1] - 1
        best = scores.gather(-1, tokens.clamp(max=last_token)[:, None])[:, 0]
        self._broken |= ~((best.isfinite() & (tokens <= last_token)) | self._ended)
        last = len(drawn) == max(self._limits)
        looks = len(drawn) % self._check_every == 0
        if (last or looks or len(drawn) == goal) and bool(self._broken.any()):
            raise EngineError("the model's logits are NaN or infinite; are its weights broken?")
        self._done = last
        if last:
            return
        self._ended |= torch.isin(tokens, self._stop_ids)
        if len(drawn) in self._limits:
            ends = [limit <= len(drawn) for limit in self._limits]
            self._ended |= torch.tensor(ends, device=tokens.device)
        if len(drawn) % LOOK_EVERY == 0:
            self._look()
        self._done = looks and bool(self._ended.all())

    def _written(self) -> list[tuple[list[int], FinishReason]]:
        rows = torch.stack(self._drawn, dim=1).tolist()
        pairs = zip(rows, self._limits, strict=True)
        return [_until_stop(row[:limit], self._stops) for row, limit in pairs]

    def _look(self) -> None:
        """End the rows that have come to hold a stop string."""
        if self._stop_strings:
            ids = [ids[:-1] if reason == "stop" else ids for ids, reason in self._written()]
            for row, count in self._stop_strings.found(ids):
                self._limits[row], self._ended[row] = count, True


def decode(
    writing: Writing,
    samplings: Sequence[Sampling],
    seeds: Sequence[int],
    stop_ids: Tensor,
    **options: Any,
) -> list[tuple[list[int], FinishReason]]:
    """Each row whole; see `Decoding`, whose options these are."""
    decoding = Decoding(writing, samplings, seeds, stop_ids, **options)
    return decoding.advance(max(sampling.max_new_tokens for sampling in samplings))


def _until_stop(ids: list[int], stops: set[int]) -> tuple[list[int], FinishReason]:
    end = next((number for number, token in enumerate(ids) if token in stops), None)
    return (ids, "length") if end is None else (ids[: end + 1], "stop")

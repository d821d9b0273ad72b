"""What prompts have in common at their beginning, read once and kept while searches need it.

A search that moves the last rows of a prompt completes many candidates that begin alike. A row of
a batch then is one such prefix, and several of its candidates (a, b, c) stand in it side by side:

    prefix ... prefix | a0 b0 c0 | a1 b1 c1 | ...

A token sees the prefix and what its own candidate has before it. So the keys and values of a
prefix are not computed for each candidate, nor copied, nor read from memory at every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from tide.engines.local.decode import Forward, prefill
from tide.engines.local.kv_cache import PreallocatedLayer

# Reading fewer rows again costs no more than another call: see padding.py.
LEAST = 64
# Of the largest logit, with sharing and without: see gpt2.py. A wrong mask makes 0.2.
_TOLERANCES = {torch.float32: 1e-4}
_ROUNDED = 5e-2


class Prefix:
    """Rows (P, d) that prompts begin with. What was read of them is kept for as long as this lives.

    layers: keys and values of each layer, (heads, P or more, width), with room for what follows in
    one batch; None while they are not kept.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.layers: list[tuple[Tensor, Tensor]] | None = None
        self.used = 0

    def begins(self, x: Tensor) -> bool:
        """Whether (T, d) `x` begins with these rows, bit for bit."""
        size = len(self.rows)
        if len(x) < size or (x.dtype, x.device) != (self.rows.dtype, self.rows.device):
            return False
        # One row tells most prompts apart.
        return torch.equal(x[size - 1], self.rows[-1]) and torch.equal(x[:size], self.rows)


class Prefixes:
    """The prefixes of the searches that are under way.

    tokens: most of them whose keys and values are kept between calls, those used last; with 0,
    nothing is shared. tokens_saved: rows that were not read again so far.
    """

    def __init__(
        self, forward: Forward, tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._forward, self._tokens = forward, tokens
        self._dtype, self._device = dtype, device
        self._held: WeakSet[Prefix] = WeakSet()
        self._clock = count(1)
        # Longest sequence that shares; None until a model was tried.
        self._longest: float | None = None
        self.tokens_saved = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, rows: Tensor) -> Prefix | None:
        """What stands for these (P, d) rows while it lives; None where sharing them does not pay.

        Nor does it work with every model: it needs keys and values, and masks that are obeyed.
        """
        if len(rows) < LEAST or not self._tokens:
            return None
        if self._longest is None:
            self._longest = self._try(rows[:LEAST])
        if len(rows) >= self._longest:
            return None
        for held in list(self._held):
            if len(held.rows) == len(rows) and held.begins(rows):
                return held
        prefix = Prefix(rows)
        self._held.add(prefix)
        return prefix

    def of(self, embeddings: Iterable[Tensor], tokens: Iterable[int]) -> list[Prefix | None]:
        """Of each (T, d) matrix, the longest prefix that is held and leaves a row.

        tokens: how many are to be read after each.
        """
        known: dict[bytes, list[Prefix]] = {}
        for prefix in list(self._held):
            known.setdefault(_key(prefix.rows), []).append(prefix)
        found: list[Prefix | None] = []
        for x, more in zip(embeddings, tokens, strict=True):
            fits = known and len(x) + more <= (self._longest or 0)
            near = known.get(_key(x), []) if fits else []
            fitting = [prefix for prefix in near if prefix.begins(x[:-1])]
            found.append(max(fitting, key=lambda prefix: len(prefix.rows), default=None))
        return found

    def read(
        self, prefixes: Sequence[Prefix], prompts: Sequence[Tensor], tokens: int, keep: int = 1
    ) -> SharedStream:
        """A stream of these (T, d) prompts, which begin with the prefixes; see SharedStream.

        Prefixes that are not kept are read. Then those used longest ago are dropped.
        """
        suffixes, missing = [], []
        for prefix in dict.fromkeys(prefixes):
            prefix.used = next(self._clock)
            if prefix.layers is None:
                missing.append(prefix)
        if missing:
            rows = [self._as_read(prefix.rows) for prefix in missing]
            _, cache = prefill(self._forward, rows, 0)
            for i, (prefix, x) in enumerate(zip(missing, rows, strict=True)):
                prefix.layers = [
                    (layer.keys[i, :, -len(x) :].clone(), layer.values[i, :, -len(x) :].clone())
                    for layer in cache.layers
                ]
                self.tokens_saved -= len(x)
        for prefix, x in zip(prefixes, prompts, strict=True):
            suffixes.append(self._as_read(x[len(prefix.rows) :]))
            self.tokens_saved += len(prefix.rows)
        stream = SharedStream(self._forward, prefixes, suffixes, tokens, keep)
        kept = 0
        for prefix in sorted(self._held, key=lambda prefix: -prefix.used):
            kept += len(prefix.rows) if prefix.layers is not None else 0
            if kept > self._tokens:
                prefix.layers = None
        return stream

    def _as_read(self, rows: Tensor) -> Tensor:
        return rows.to(self._device, self._dtype)

    @torch.inference_mode()
    def _try(self, rows: Tensor) -> float:
        """Up to what length the model reads the same from such rows with sharing and without."""
        if not self._forward.accepts("position_ids"):
            return 0
        x = self._as_read(rows)
        positions = torch.arange(len(x), device=x.device)[None]
        plain = self._forward(None, positions, inputs_embeds=x[None])
        layers = getattr(plain.past_key_values, "layers", [])
        if not layers or not {*map(type, layers)} <= {DynamicLayer, DynamicSlidingWindowLayer}:
            return 0
        # Within its window, such a layer keeps and sees everything.
        longest = min(getattr(layer, "sliding_window", None) or math.inf for layer in layers)
        if len(x) > longest:
            return 0
        prefix = Prefix(rows[: len(rows) // 2])
        shared = self.read([prefix, prefix], [x, x[:-2]], 0)
        expected = plain.logits[0, [-1, -3]]
        worst = float((shared.logits - expected).abs().max())
        tolerance = _TOLERANCES.get(self._dtype, _ROUNDED) * float(expected.abs().max())
        return longest if worst <= tolerance else 0


class SharedStream:
    """As `decode.Stream`, of sequences that go on behind prefixes, several behind one.

    prefixes: that of each sequence, with its layers. suffixes: (T_i, d) input embeddings of what
    follows it. tokens: most tokens to be read after them. keep: of how many last tokens of the
    suffixes `kept` has the logits, (B, keep, V).
    """

    def __init__(
        self,
        forward: Forward,
        prefixes: Sequence[Prefix],
        suffixes: Sequence[Tensor],
        tokens: int,
        keep: int = 1,
    ) -> None:
        self._forward = forward
        like = suffixes[0]
        steps = max(map(len, suffixes))
        # The place of each sequence: in which row, and which of those beside each other there.
        rows = _rows(prefixes, steps + tokens)
        self._beside = max(len(members) for _, members in rows)
        self._shape = len(rows), self._beside
        longest = max(len(prefix.rows) for prefix in prefixes)
        index = torch.empty(len(suffixes), dtype=torch.int64)
        x = like.new_zeros(len(rows), steps, self._beside, like.shape[-1])
        first = torch.zeros(len(rows), 1, self._beside, dtype=torch.int64)
        seen = torch.zeros(len(rows), 1, longest, dtype=torch.bool)
        real = torch.zeros(len(rows), steps + tokens, self._beside, dtype=torch.bool)
        for row, (prefix, members) in enumerate(rows):
            seen[row, :, longest - len(prefix.rows) :] = True
            for place, i in enumerate(members):
                index[i] = row * self._beside + place
                padding = steps - len(suffixes[i])
                x[row, padding:, place] = suffixes[i]
                real[row, padding:, place] = True
                first[row, 0, place] = len(prefix.rows) - padding
        self._index = index.to(like.device)
        # A sequence that has ended is read on while its neighbours write: it stays in bounds.
        last = (forward.context or longest + steps + tokens) - 1
        positions = (first + torch.arange(steps + tokens)[:, None]).clamp_(0, last)
        self._positions = positions.flatten(1).to(like.device)
        own = torch.eye(self._beside, dtype=torch.bool)[:, None] & real[:, None]
        mask = torch.cat([seen.expand(-1, self._beside, -1), own.flatten(2)], dim=-1)
        # Padding sees its prefix, so nothing looks nowhere, which would be NaN.
        dtype = like.dtype if forward.lean is None else torch.float32
        bias = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
        self._bias = bias[:, None].to(like.device)
        self._cache = _joined([prefix for prefix, _ in rows], mask.shape[-1])
        # Of the suffixes' tokens, none sees what comes after it.
        self._end = longest + steps * self._beside
        bias = self._bias[:, :, None, :, : self._end].repeat(1, 1, steps, 1, 1)
        later = torch.ones(steps, steps, dtype=torch.bool, device=like.device).triu(1)
        later = later.repeat_interleave(self._beside, dim=1)[:, None]
        bias[..., longest:].masked_fill_(later, torch.finfo(dtype).min)
        self._step = steps
        self.kept = self._read(bias.flatten(2, 3), 0, keep, inputs_embeds=x.flatten(1, 2))
        self.logits = self.kept[:, -1]

    def advance(self, tokens: Tensor) -> None:
        """Read one more token of each sequence, (B,). What `logits` was before is lost."""
        ids = tokens.new_zeros(self._shape)
        ids.view(-1)[self._index] = tokens
        step, self._step = self._step, self._step + 1
        self._end += self._beside
        self.logits = self._read(self._bias[..., : self._end], step, 1, input_ids=ids)[:, -1]

    def _read(self, bias: Tensor, step: int, keep: int, **inputs: Tensor) -> Tensor:
        """The logits (B, keep, V) of the last of the tokens from step number `step` on."""
        options = {"logits_to_keep": keep * self._beside}
        out = self._forward(
            bias,
            self._positions[:, step * self._beside : self._step * self._beside],
            past_key_values=self._cache,
            **inputs,
            **(options if self._forward.accepts("logits_to_keep") else {}),
        )
        logits = out.logits[:, -keep * self._beside :]
        logits = logits.view(len(logits), keep, self._beside, -1).transpose(1, 2)
        read: Tensor = logits.flatten(0, 1)[self._index]
        return read


def _rows(prefixes: Sequence[Prefix], tokens: int) -> list[tuple[Prefix, list[int]]]:
    """Rows of a prefix and the numbers of the sequences behind it, which take `tokens` each.

    Those of one row look at each other in vain, so they are no longer together than the prefix.
    """
    behind: dict[Prefix, list[int]] = {}
    for number, prefix in enumerate(prefixes):
        behind.setdefault(prefix, []).append(number)
    rows = []
    for prefix, numbers in behind.items():
        parts = math.ceil(len(numbers) / max(1, len(prefix.rows) // tokens))
        size = math.ceil(len(numbers) / parts)
        rows += [(prefix, numbers[i : i + size]) for i in range(0, len(numbers), size)]
    return rows


def _joined(prefixes: Sequence[Prefix], columns: int) -> Any:
    """A cache of a row for each of these, left-padded, with so many columns or more.

    That of a single one is its own, whose room is written again: what was begun before ends.
    """
    sizes = [len(prefix.rows) for prefix in prefixes]
    kept, filled = [prefix.layers or [] for prefix in prefixes], max(sizes)
    rooms = [(keys[None], values[None]) for keys, values in kept[0]]
    if len(prefixes) > 1 or rooms[0][0].shape[2] < columns:
        # Alone, twice what follows now has room: the next batch may be larger.
        room = columns if len(prefixes) > 1 else 2 * columns - filled
        rooms = []
        for layer in zip(*kept, strict=True):
            keys, values = zip(*layer, strict=True)
            rooms.append((_stacked(keys, sizes, room), _stacked(values, sizes, room)))
        if len(prefixes) == 1:
            prefixes[0].layers = [(keys[0], values[0]) for keys, values in rooms]
    cache = DynamicCache()
    cache.layers.extend(PreallocatedLayer(keys, values, filled) for keys, values in rooms)
    return cache


def _stacked(parts: Sequence[Tensor], sizes: Sequence[int], columns: int) -> Tensor:
    """Of each (heads, P or more, width) part the first P columns, in (B, heads, columns, width)."""
    heads, _, width = parts[0].shape
    room, filled = parts[0].new_empty(len(parts), heads, columns, width), max(sizes)
    for row, part, size in zip(room, parts, sizes, strict=True):
        row[:, : filled - size] = 0  # masked; but NaN would come through
        row[:, filled - size : filled] = part[:, :size]
    return room


def _key(x: Tensor) -> bytes:
    return x[LEAST - 1 : LEAST].float().cpu().numpy().tobytes()

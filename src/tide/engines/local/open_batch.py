"""A batch that is always open: rows enter when they come and leave when they end, at any step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tide.core.errors import CompletionError
from tide.core.settings import Sampling
from tide.engines.base import FinishReason, Piece
from tide.engines.local.decode import (
    CHECK_EVERY,
    CHECK_EVERY_ELSEWHERE,
    LOOK_EVERY,
    Forward,
    StopStrings,
    Stream,
    cache_in,
    not_finite,
    read_apart,
)
from tide.engines.local.kv_cache import OpenCache, Pair
from tide.engines.local.prefixes import Beginning, PrefixCache, cached_suffix
from tide.engines.local.sampling import Sampler

# Rows that have ended stay in the batch until they are so many, or others come.
_GONE = 8


@dataclass(eq=False)
class Row:
    """A request under way.

    x: its prompt, (T, d). put: is told what comes of it, piece by piece, or why nothing does.
    prompt_ids: of a prompt that came as ids, and where a repetition penalty needs them. memory:
    for what is read of it. piece_tokens: how many are told at a time; None: all at the end. ids:
    what was drawn. read: tokens read for it, not told yet. aborted: it has ended, or nobody wants
    more of it. broken: what is kept of it may not be finite.
    """

    x: Tensor
    sampling: Sampling
    seed: int
    put: Callable[[Piece | Exception], None]
    priority: int = 0
    banned_token_ids: tuple[int, ...] = ()
    prompt_ids: Sequence[int] = ()
    prefix: Beginning | None = None
    memory: Beginning | None = None
    piece_tokens: int | None = None
    ids: list[int] = field(default_factory=list)
    told: int = 0
    read: int = 0
    aborted: bool = False
    broken: bool = False

    @property
    def resumes(self) -> bool:
        """Whether all of its prompt was read before, but for the last token."""
        return self.memory is not None and self.memory.reaches(self.prompt_ids)

    def tell(self, reason: FinishReason | None) -> None:
        """Tell what was not told yet."""
        self.put(Piece(tuple(self.ids[self.told :]), reason, self.read))
        self.told, self.read = len(self.ids), 0

    def grow(self, token: int) -> None:
        self.ids.append(token)
        size = self.piece_tokens
        ends = len(self.ids) == self.sampling.max_new_tokens
        if size is not None and len(self.ids) - self.told >= size and not ends:
            self.tell(None)


class OpenStream:
    """Sequences that a model reads token by token, and that enter and leave at any step.

    logits: (B, V), for the token that follows what was read.
    """

    def __init__(self, forward: Forward, prefixes: PrefixCache) -> None:
        self._forward, self._prefixes = forward, prefixes
        self._cache = OpenCache()
        self.logits = torch.empty(0)

    def enter(self, rows: Sequence[Row]) -> list[Row]:
        """Read the prompts of these rows, which are then the last ones, in the order returned."""
        plain = [row for row in rows if row.prefix is None]
        behind = sorted((row for row in rows if row.prefix is not None), key=sharing)
        count = self._cache.count
        try:
            parts = [self._read(plain)] if plain else []
            parts += [self._read_suffixes(list(some)) for _, some in groupby(behind, key=sharing)]
        except BaseException:  # as if none had come
            self._cache.leave(range(count, self._cache.count))
            self._look()
            raise
        self.logits = torch.cat([self.logits, *parts]) if len(self.logits) else torch.cat(parts)
        self._look()
        return [*plain, *behind]

    def resume(self, rows: Sequence[Row]) -> None:
        """Let rows that `resumes` be the last ones; `advance` reads the last tokens of theirs."""
        for row in rows:
            assert row.memory is not None
            assert row.memory.layers is not None
            size = len(row.prompt_ids) - 1
            layers = [
                (keys[:, :, :size], values[:, :, :size]) for keys, values in row.memory.layers
            ]
            self._cache.fill(layers, self._cache.make_room([size], layers))
        self._look()

    def read_of(self, row: int) -> list[Pair]:
        """A copy of the keys and values of one row, (1, heads, T, width) of each layer."""
        columns = slice(self._cache.starts[row], self._cache.end)
        return [
            (keys[row : row + 1, :, columns].clone(), values[row : row + 1, :, columns].clone())
            for keys, values in self._cache.rooms
        ]

    def advance(self, tokens: Tensor) -> None:
        """Read one more token of each row, (B,). What `logits` was before is lost."""
        cache = self._cache
        if cache.step():
            self._look()
        count = len(tokens)
        tokens = pad(tokens, (0, cache.shown - count))
        positions = (cache.end - self._starts).clamp_(max=self._last)
        width = cache.end - cache.low + 1
        mask = None if self._mask is None else self._mask[..., :width]
        assert mask is None or mask.shape[-1] == width  # attention would not say so
        self.logits = self._forward.step(tokens, positions, cache.model_cache, mask)[:count]
        cache.stepped()

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Let these rows go; returns the former numbers of the others, in their new order."""
        order = self._cache.leave(rows)
        self.logits = self.logits[order]
        self._look()
        return order

    def wipe(self, row: int) -> None:
        """Forget what may not be finite, before a row leaves: masking does not remove NaN."""
        self._cache.wipe(row)

    def clear(self) -> None:
        self._cache.clear()
        self.logits = torch.empty(0)

    def _read(self, rows: list[Row]) -> Tensor:
        logits, outs, groups = read_apart(self._forward, [row.x for row in rows])
        layers = [[(x.keys, x.values) for x in cache_in(out).layers] for out in outs]
        slots = self._cache.make_room([len(row.x) for row in rows], layers[0])
        for part, group in zip(layers, groups, strict=True):
            self._cache.fill(part, [slots[i] for i in group])
        return logits

    def _read_suffixes(self, rows: list[Row]) -> Tensor:
        """Of rows with one prefix, and as many tokens after it."""
        logits, layers = read_suffixes(self._forward, self._prefixes, rows)
        slots = self._cache.make_room([len(row.x) for row in rows], layers)
        self._cache.fill(layers, slots)
        return logits[:, -1]

    def _look(self) -> None:
        """Make what holds for all steps until rows enter or leave."""
        cache, device = self._cache, self.logits.device
        more = [cache.low] * (cache.shown - cache.count)
        starts = torch.tensor(cache.starts + more, dtype=torch.int64)
        self._last = (self._forward.context or 1 << 40) - 1
        padded = any(start != cache.low for start in cache.starts)
        self._mask = None
        if padded:
            columns = torch.arange(cache.low, cache.columns + 1)
            self._mask = (columns >= starts[:, None]).long().to(device)
        self._starts = starts.to(device)


def read_suffixes(
    forward: Forward, prefixes: PrefixCache, rows: Sequence[Any], keep: int = 1
) -> tuple[Tensor, list[Pair]]:
    """Logits (n, keep, V), keys and values of rows with one prefix and as many tokens after it."""
    prefix = rows[0].prefix
    layers = prefixes.layers(prefix, rows[0].x)
    size = len(prefix.rows)
    prefixes.tokens_read -= size * len(rows)
    return cached_suffix(forward, layers, torch.stack([row.x[size:] for row in rows]), keep)


def sharing(row: Any) -> tuple[int, int]:
    """Equal for rows that are read together: with one prefix, and as many tokens after it."""
    return id(row.prefix), len(row.x)


class Batch:
    """Rows that are written together. Each step draws a token for all of them.

    is_open: whether rows enter while others are written; else they wait until all have ended, as
    with a model that keeps more than keys and values.
    """

    def __init__(
        self,
        forward: Forward,
        prefixes: PrefixCache,
        stop_ids: Tensor,
        stop_strings: StopStrings,
        *,
        is_open: bool,
    ) -> None:
        self._forward, self.is_open, self._prefixes = forward, is_open, prefixes
        self._stop_ids, self._stops = stop_ids, set(stop_ids.tolist())
        self._stop_strings = stop_strings
        self._stream: OpenStream | Stream | None = None
        self._open = OpenStream(forward, prefixes)
        device = stop_ids.device
        self._sampler = Sampler(device, stop_ids)
        self._check_every = CHECK_EVERY.get(device.type, CHECK_EVERY_ELSEWHERE)
        self.rows: list[Row] = []  # with some that have ended
        self._resuming: list[Row] = []
        self._live = 0
        self._drawn: list[tuple[Tensor, Tensor]] = []

    @property
    def under_way(self) -> list[Row]:
        """Rows that still wait for what is written."""
        return [row for row in (*self.rows, *self._resuming) if not row.aborted]

    def __len__(self) -> int:
        return self._live + len(self._resuming)

    @property
    def takes_rows(self) -> bool:
        """Whether rows may enter now: between two looks, all stay as they are."""
        return not self._drawn and (self.is_open or not self._live)

    @torch.inference_mode()
    def enter(self, rows: Sequence[Row]) -> None:
        """Read the prompts of these rows; they are written from the next step on."""
        if self.is_open:
            if self.rows:
                self._compact()
            self._stream = self._open
            for row in rows:
                row.read = 1 if row.resumes else row.read
            self._resuming += [row for row in rows if row.resumes]
            rows = [row for row in rows if not row.resumes]
            ordered = self._open.enter(rows) if rows else []
        else:
            self.clear()
            tokens = max(row.sampling.max_new_tokens for row in rows) - 1
            ordered = list(rows)
            self._stream = Stream(self._forward, [row.x for row in rows], tokens)
        self.rows += ordered
        self._live += len(ordered)
        self._prefixes.tokens_read += sum(len(row.x) for row in rows)
        self._sample(ordered)

    @torch.inference_mode()
    def step(self) -> None:
        """Draw a token of every row, and read it; read the last token of those that resume."""
        stream, sampler = self._stream, self._sampler
        assert stream is not None
        tokens = torch.empty(0, dtype=torch.int64, device=self._stop_ids.device)
        if self.rows:
            tokens, finite = sampler.draw(sampler.warp(sampler.prepare(stream.logits)))
            self._drawn.append((tokens, finite))
            if len(self._drawn) >= self._check_every or self._due():
                order = self._look()
                if order is not None:
                    tokens = tokens[order]
        resuming = self._resuming = [row for row in self._resuming if not row.aborted]
        if not (self.rows or resuming):
            return
        if resuming:
            self._open.resume(resuming)
            last = [row.prompt_ids[-1] for row in resuming]
            tokens = torch.cat([tokens, torch.tensor(last, device=tokens.device)])
        stream.advance(tokens)
        self.rows, self._resuming = self.rows + resuming, []
        self._live += len(resuming)
        self._prefixes.tokens_read += self._live
        if resuming:
            self._sample(resuming)

    def remember(self) -> None:
        """Keep what was read of rows that nobody wants more of, where a later one may need it."""
        if self.is_open:
            for number, row in enumerate(self.rows):
                if row.aborted and row.memory is not None and not row.broken:
                    self._keep(number, row)

    def clear(self) -> None:
        """Let go of all rows, and of the room of their keys and values."""
        self._open.clear()
        self._resuming = []
        self._stream, self.rows, self._drawn, self._live = None, [], [], 0
        self._sampler.keep([])

    def _sample(self, rows: Sequence[Row]) -> None:
        """Draw for these rows from now on, too."""
        self._sampler.enter(
            [row.sampling for row in rows],
            [row.seed for row in rows],
            [row.prompt_ids for row in rows],
            [row.banned_token_ids for row in rows],
        )

    def _keep(self, number: int, row: Row) -> None:
        memory, row.memory = row.memory, None
        if memory is not None and row.prompt_ids:
            ids = [*row.prompt_ids, *row.ids]
            self._prefixes.keep(memory, ids, self._open.read_of(number))

    def _due(self) -> bool:
        """Whether a row may have come to its end."""
        most = len(self._drawn)
        left = (row.sampling.max_new_tokens - len(row.ids) for row in self.rows if not row.aborted)
        return min(left, default=0) <= most

    def _look(self) -> list[int] | None:
        """Tell the rows what was drawn; those that ended leave. Returns the order of the others."""
        tokens = torch.stack([one for one, _ in self._drawn], dim=1).tolist()
        finite = torch.stack([one for _, one in self._drawn], dim=1).all(dim=1).tolist()
        self._drawn = []
        for row, some, is_finite in zip(self.rows, tokens, finite, strict=True):
            if not row.aborted:
                row.aborted = self._told(row, some, is_finite)
        self._end_stopped()
        self._live = sum(not row.aborted for row in self.rows)
        if not self.is_open:
            if not self._live:
                self.clear()
            return None
        few = len(self.rows) - self._live < min(_GONE, self._live or 1)
        return None if few else self._compact()

    def _compact(self) -> list[int]:
        """Let the rows that have ended leave; returns the order of the others."""
        assert isinstance(self._stream, OpenStream)
        self.remember()
        gone = [i for i, row in enumerate(self.rows) if row.aborted]
        for i in gone:
            if self.rows[i].broken:
                self._stream.wipe(i)
        order = self._stream.leave(gone)
        self.rows = [self.rows[i] for i in order]
        self._sampler.keep(order)
        return order

    def _told(self, row: Row, tokens: list[int], finite: bool) -> bool:
        """Whether a row ends with what was drawn of it."""
        if not finite:
            row.broken = True
            row.put(CompletionError(f"for this prompt the model's {not_finite(row.x.dtype)}"))
            return True
        for token in tokens:
            if token in self._stops:
                row.tell("stop")
                return True
            row.grow(token)
            if len(row.ids) == row.sampling.max_new_tokens:
                row.tell("length")
                return True
        return False

    def _end_stopped(self) -> None:
        """End the rows whose texts hold a stop string."""
        rows = [
            row
            for row in self.rows
            if row.sampling.stop
            and not row.aborted
            and len(row.ids) % LOOK_EVERY < self._check_every
        ]
        found = self._stop_strings.found([row.sampling for row in rows], [row.ids for row in rows])
        for number, count in found:
            row = rows[number]
            row.ids = row.ids[: max(count, row.told)]
            row.tell("length")
            row.aborted = True

"""Decode steps captured once as CUDA graphs and replayed: no Python between the kernels.

A graph replays the same kernels on the same addresses, so everything that a step reads or writes
lies in buffers of fixed shape: tokens, positions, mask, logits, and transformers' static key-value
cache. Batches are made up to one of a few shapes, and each shape is captured when it first comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, StaticLayer

from tide.core.errors import EngineError
from tide.engines.local.kv_cache import PreallocatedLayer

# Columns of a cache are made up to a multiple of this, rows to a power of two.
_COLUMNS = 64
# Captured shapes that are kept, each with a cache of its own: those used last.
_SHAPES = 8
# Steps before the capture, in which libraries choose their kernels and allocate workspace.
_WARM_UP = 3

Capture = Callable[[Callable[[], None]], Callable[[], None]]


def capture_cuda(step: Callable[[], None]) -> Callable[[], None]:
    """What replays `step` as a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


class StepGraphs:
    """The captured decode steps of one model, by shape.

    model: takes `position_ids`. capture: makes a function of a step that repeats it.
    """

    def __init__(self, model: Any, capture: Capture = capture_cuda) -> None:
        self._model = model
        self._capture = capture
        self._shapes: OrderedDict[tuple[int, int], CapturedSteps] = OrderedDict()

    def begin(self, cache: Any, mask: Tensor, filled: int) -> CapturedSteps | None:
        """Steps that go on behind a joined `cache`; None if it keeps more than keys and values.

        mask: (B, columns), 1 = real, with room for the tokens to come. filled: columns read so far.
        What was begun before ends. Raises EngineError if a capture fails.
        """
        layers = getattr(cache, "layers", [])
        if not layers or not all(type(layer) is PreallocatedLayer for layer in layers):
            return None
        rows, columns = mask.shape
        shape = 1 << (rows - 1).bit_length(), -columns // _COLUMNS * -_COLUMNS
        if shape not in self._shapes:
            while len(self._shapes) >= _SHAPES:
                self._shapes.popitem(last=False)
            self._shapes[shape] = CapturedSteps(self._model, layers, shape, self._capture)
        self._shapes.move_to_end(shape)
        steps = self._shapes[shape]
        steps.load(layers, mask, filled)
        return steps


class CapturedSteps:
    """One captured step: buffers of `shape` (rows, columns), and what repeats it.

    layers: whose heads, widths and dtype the cache takes. Raises EngineError if the step cannot be
    captured, or gives other logits when it is repeated.
    """

    def __init__(
        self,
        model: Any,
        layers: Sequence[PreallocatedLayer],
        shape: tuple[int, int],
        capture: Capture,
    ) -> None:
        rows, columns = shape
        self._model, self._rows = model, rows
        like = layers[0].keys
        self._tokens = torch.zeros(rows, 1, dtype=torch.int64, device=like.device)
        self._positions = torch.zeros_like(self._tokens)
        self._column = torch.zeros(1, dtype=torch.int64, device=like.device)
        # Added to the attention scores. A step opens its column for all rows, so that those of no
        # prompt see something too: a softmax over nothing would be NaN.
        self._closed = torch.finfo(model.dtype).min
        self._bias = torch.full(
            (rows, 1, 1, columns), self._closed, dtype=model.dtype, device=like.device
        )
        self._layers = [StaticLayer(columns) for _ in layers]
        for static, layer in zip(self._layers, layers, strict=True):
            static.lazy_initialization(
                layer.keys[:1].expand(rows, -1, -1, -1), layer.values[:1].expand(rows, -1, -1, -1)
            )
        self._cache = Cache(layers=list(self._layers))
        self._logits = torch.empty(0)
        self._replay = self._captured(capture)

    def load(self, layers: Sequence[PreallocatedLayer], mask: Tensor, filled: int) -> None:
        """Go on behind these keys and values, of which `filled` columns are there."""
        rows = self._rows = len(mask)
        self._clear(filled)
        for static, layer in zip(self._layers, layers, strict=True):
            static.keys[:rows, :, :filled] = layer.keys
            static.values[:rows, :, :filled] = layer.values
        self._bias[:rows, 0, 0, :filled].masked_fill_(mask[:, :filled].bool(), 0.0)

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Next-token logits (B, V) for `tokens` and their `positions`, (B,): valid until the next.

        The tokens join the cache.
        """
        self._tokens[: self._rows, 0] = tokens
        self._positions[: self._rows, 0] = positions
        self._replay()
        return self._logits[: self._rows]

    def _captured(self, capture: Capture) -> Callable[[], None]:
        self._clear(0)
        self._run()
        expected = self._logits.clone()
        try:
            replay = capture(self._run)
        except RuntimeError as error:
            raise EngineError(
                f"cuda_graphs: a decode step of this model cannot be captured ({error}); "
                "leave cuda_graphs off"
            ) from error
        self._clear(0)
        replay()
        if not torch.allclose(self._logits, expected, rtol=1e-2, atol=1e-2):
            raise EngineError(
                "cuda_graphs: a captured decode step gives other logits than the model; "
                "leave cuda_graphs off"
            )
        return replay

    def _clear(self, column: int) -> None:
        """Forget all batches; the next step writes `column`."""
        self._bias.fill_(self._closed)
        self._column.fill_(column)
        for layer in self._layers:
            # What another batch left may be NaN, which masking does not remove.
            layer.reset()
            layer.cumulative_length.fill_(column)

    def _run(self) -> None:
        self._bias.index_fill_(-1, self._column, 0.0)
        out = self._model(
            input_ids=self._tokens,
            attention_mask=self._bias,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            return_dict=True,
        )
        self._column.add_(1)
        self._logits = out.logits[:, -1]

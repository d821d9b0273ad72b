"""The base class of baselines that draw token by token, in a batch like the engine's own."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from tide.baselines.artefacts import Artefact, load_artefact, load_sibling, merge_updates
from tide.baselines.base import Generated, Options
from tide.baselines.lanes import PromptRow, Reader, SteeredLane
from tide.core.concurrency import gather
from tide.core.errors import CompletionError, EngineError, InputError, TideError, guarded
from tide.core.results import FinishReason
from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.engines.checkpoint import fingerprint
from tide.engines.local.batch import Batch, HasStopped
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.packed_weights import speed_up

# Makes a lane, given the arguments of `SteeredLane`.
MakeLane = Callable[..., SteeredLane]
# What was written after a prompt: token ids, the finish reason, and the number of tokens read.
Written = tuple[list[int], FinishReason, int]


async def write_rows(
    reader: Reader,
    make_lane: MakeLane,
    requests: Sequence[Request],
    texts: Sequence[str],
    stop_ids: Tensor,
    has_stopped: HasStopped,
    max_batch: int,
    on_drawn: Callable[[int], None] | None = None,
) -> list[Written | CompletionError]:
    """Complete the requests in a batch of their own, in the thread of the running event loop.

    reader: the model whose tokens are drawn. texts: the prompts of the requests. on_drawn: called
    with the number of tokens drawn since the last call. Raises an error that ends all rows.
    """
    make_lane = partial(make_lane, hooks=reader.hooks)
    batch = Batch(reader.forward, stop_ids, has_stopped, max_batch=max_batch, make_lane=make_lane)

    async def write(request: Request, text: str) -> Written | CompletionError:
        assert isinstance(request.prompt, Sequence)
        row = PromptRow(request, reader.embed(request.prompt), request.prompt, text=text)
        read = 0
        try:
            async with aclosing(batch.write(row)) as pieces:
                async for piece in pieces:
                    read += piece.read_tokens or 0
                    if on_drawn is not None:
                        left = row.left if piece.finish_reason else 0
                        on_drawn(len(piece.token_ids) + left)
                    if piece.finish_reason is not None:
                        return row.ids, piece.finish_reason, read
        except CompletionError as error:
            return error
        raise AssertionError("a row ends with a finish reason or an error")

    try:
        return await gather(map(write, requests, texts))
    finally:
        batch.close()


class DecodingBaseline(ABC):
    """Base of baselines that draw token by token, from scores that the rows' lane shifts.

    kind: name in the registry. learned: whether the baseline needs an artefact, which the static
    method `fit` makes. reads: the baseline whose artefact this one uses, if it has none of its own.
    auxiliary: whether the artefact may be fitted on a smaller model. scored: whether the fit needs
    a scorer. fan_out: number of sequences that a model reads at once for one prompt, apart from
    candidates.

    All models run in the engine's thread, and hooks on the engine's model are set only during the
    baseline's own passes, so that other users of the engine read the unchanged model.
    Raises InputError for an artefact that is missing or was fitted for another model.
    """

    kind: ClassVar[str]
    options_class: ClassVar[type[Options]]
    learned: ClassVar[bool] = False
    reads: ClassVar[str] = ""
    auxiliary: ClassVar[bool] = False
    scored: ClassVar[bool] = False
    fan_out: ClassVar[int] = 1
    artefact: Artefact  # set only if `artefact_kind` names a baseline

    def __init__(
        self,
        engine: TransformersEngine,
        options: Options,
        *,
        artefacts: Path | None = None,
    ) -> None:
        if not isinstance(engine, TransformersEngine):
            raise InputError(f"baseline {self.kind}: runs only on the engine 'transformers'")
        self.engine = engine
        self._options = self.resolved_options(options)
        self.name = self._options.spec(self.kind)
        if kind := self.artefact_kind():
            self.artefact = load_artefact(artefacts, kind, engine.model, engine.name)

    def resolved_options(self, options: Options) -> Any:
        """Return `options` with the defaults that depend on the engine's model filled in."""
        return options

    def config(self) -> dict[str, Any]:
        return {
            "baseline": self.kind,
            **self._options.model_dump(),
            "artefact": self.artefact.digest if self.artefact_kind() else None,
        }

    @classmethod
    def artefact_kind(cls) -> str:
        """Return the baseline whose artefact is needed, or "" for none."""
        return cls.reads or (cls.kind if cls.learned else "")

    def fitted_model(self, part: str = "", strength: float = 1.0) -> Any:
        """Load a copy of the fitted model, and add `strength` times the updates named `part`.

        The fitted model is the engine's model or the artefact's `auxiliary` model.
        """
        info = self.artefact.info
        name = info.get("auxiliary")
        model = load_sibling(self.engine, name or self.engine.name)
        if name and fingerprint(model) != info.get("auxiliary_fingerprint"):
            raise InputError(f"baseline {self.kind}: was fitted on another version of {name!r}")
        with guarded(InputError, f"baseline {self.kind}: its artefact does not fit the model"):
            return merge_updates(model, self.artefact.under(part), strength)

    def reader(self, model: Any, **options: Any) -> Reader:
        """Return a reader of the engine's model or of a model like it; options: see `Reader`."""
        reader = Reader(model, **options)
        # The engine has tried whether rows may enter while other rows are running.
        reader.forward.plain = reader.forward.plain and self.engine.forward.plain
        return reader

    def fitted_reader(self, part: str = "", strength: float = 1.0, **options: Any) -> Reader:
        """Return a reader of `fitted_model`, which is loaded once for each `part`."""
        if part not in self._fitted_models:
            self._fitted_models[part] = self.fitted_model(part, strength)
            speed_up(self._fitted_models[part])
        return self.reader(self._fitted_models[part], **options)

    @cached_property
    def _fitted_models(self) -> dict[str, Any]:
        return {}

    def drawn_from(self) -> Reader:
        """Return the reader of the model whose tokens are drawn, by default the engine's model."""
        return self.reader(self.engine.model)

    def lanes(self) -> MakeLane:
        """Load what the lanes need, and return a function that makes a lane."""
        return SteeredLane

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Generated | TideError]:
        """See `Baseline.generate`."""
        # 1. Tokenize; a prompt that cannot be used fails alone.
        outcomes: dict[int, Generated | TideError] = {}
        requests: dict[int, Request] = {}
        for number, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            try:
                (ids,) = self.engine.tokenize([prompt])
                request = Request(tuple(ids), sampling, seed)
                self.engine.check(request)
            except (InputError, CompletionError) as error:
                outcomes[number] = error
            else:
                requests[number] = request

        # 2. Write.
        widest = max(self.fan_out, getattr(self._options, "candidates", 1))
        with guarded(EngineError, f"baseline {self.name}: failed"):
            reader, lanes = self.drawn_from(), self.lanes()
            shift_first = getattr(self._options, "order", "shift-warp") == "shift-warp"
            written = self.engine.portal.run(
                write_rows,
                reader,
                partial(lanes, shift_first=shift_first),
                list(requests.values()),
                [prompts[number] for number in requests],
                self.engine.stop_ids,
                self.engine.has_stopped,
                max(1, self.engine.max_batch // widest),
            )

            # 3. Decode.
            for number, row in zip(requests, written, strict=True):
                if isinstance(row, CompletionError):
                    outcomes[number] = row
                    continue
                completion = self.engine.completion(*row, sampling)
                outcomes[number] = Generated(completion, 1, completion.read_tokens, 0)
        return [outcomes[number] for number in range(len(prompts))]

    def close(self) -> None:
        """Free the auxiliary models, which the next call loads again; the engine stays open."""
        for name in dir(type(self)):
            if isinstance(getattr(type(self), name), cached_property):
                self.__dict__.pop(name, None)

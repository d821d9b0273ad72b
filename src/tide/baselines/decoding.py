"""The base class of baselines that draw token by token, in a batch like the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from tide.baselines.artefacts import Artefact, load_artefact, load_sibling, merge_updates
from tide.baselines.base import Options
from tide.baselines.lanes import PromptRow, Reader, SteeredLane
from tide.core.concurrency import gather
from tide.core.errors import CompletionError, EngineError, InputError, TideError, guarded
from tide.core.settings import Sampling
from tide.engines.base import Completion, Piece, Request, Token
from tide.engines.checkpoint import fingerprint
from tide.engines.local.batch import Batch, HasStopped
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.packed_weights import speed_up

# Makes a lane, given the arguments of `SteeredLane`.
MakeLane = Callable[..., SteeredLane]


async def write_rows(
    reader: Reader,
    make_lane: MakeLane,
    requests: Sequence[Request | TideError],
    texts: Sequence[str],
    stop_ids: Tensor,
    has_stopped: HasStopped,
    max_batch: int,
    on_row: Callable[[], None] = lambda: None,
) -> list[Piece | TideError]:
    """Complete the requests in a batch of their own, in the thread of the running event loop.

    reader: the model whose tokens are drawn. requests: an error stands for a prompt without a
    request, and is returned in its place. texts: the prompts of the requests. on_row: called when
    a request has been completed. Raises an error that ends all rows.
    """
    make_lane = partial(make_lane, hooks=reader.hooks)
    batch = Batch(reader.forward, stop_ids, has_stopped, max_batch=max_batch, make_lane=make_lane)

    async def write(request: Request | TideError, text: str) -> Piece | TideError:
        if isinstance(request, TideError):
            return request
        assert isinstance(request.prompt, Sequence)
        row = PromptRow(request, reader.embed(request.prompt), request.prompt, text=text)
        try:
            async with aclosing(batch.write(row)) as pieces:
                whole = await anext(pieces)  # as no request has `piece_tokens`
        except CompletionError as error:
            return error
        on_row()
        return whole

    try:
        return await gather(map(write, requests, texts))
    finally:
        batch.close()


class DecodingBaseline:
    """Base of baselines that draw token by token, from scores that the rows' lane shifts.

    A baseline that learns something has a static method `fit`, which makes its artefact.
    kind: name in the registry. reads: the baseline whose artefact this one uses, if it has none of
    its own. auxiliary: whether the artefact may be fitted on a smaller model. scored: whether the
    fit needs a scorer. fan_out: number of sequences that a model reads at once for one prompt,
    apart from candidates.

    All models run in the engine's thread, and hooks on the engine's model are set only during the
    baseline's own passes, so that other users of the engine read the unchanged model.
    Raises InputError for an artefact that is missing or was fitted for another model.
    """

    kind: ClassVar[str]
    options_class: ClassVar[type[Options]]
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
        self.options = options
        strength = next(iter(self.options_class.model_fields), "")
        self.name = self.options.spec(self.kind, strength)
        if kind := self.artefact_kind():
            self.artefact = load_artefact(artefacts, kind, engine.model, engine.name)

    def config(self) -> dict[str, Any]:
        return {
            "baseline": self.kind,
            **self.options.model_dump(),
            "artefact": self.artefact.digest if self.artefact_kind() else None,
        }

    @classmethod
    def artefact_kind(cls) -> str:
        """Return the baseline whose artefact is needed, or "" for none."""
        return cls.reads or (cls.kind if hasattr(cls, "fit") else "")

    def reader(self, model: Any, **options: Any) -> Reader:
        """Return a reader of the engine's model or of a model like it; options: see `Reader`."""
        reader = Reader(model, **options)
        # The engine has tried whether rows may enter while other rows are running.
        reader.forward.plain = reader.forward.plain and self.engine.forward.plain
        return reader

    def prefixed_reader(self, prefixes: Sequence[str], **options: Any) -> Reader:
        """Return a reader of the engine's model that reads a prompt once after each prefix."""

        def prompts(row: PromptRow) -> list[list[Token]]:
            return self.engine.tokenize([prefix + row.text for prefix in prefixes])

        return self.reader(self.engine.model, copies=len(prefixes), prompts=prompts, **options)

    def fitted_reader(self, part: str = "", strength: float = 1.0, **options: Any) -> Reader:
        """Return a reader of a copy of the fitted model, which is loaded once for each `part`.

        The fitted model is the engine's model or the artefact's `auxiliary` model. `strength` times
        the updates named `part` are added to it.
        """
        if part not in self._fitted_models:
            info = self.artefact.info
            name = info.get("auxiliary")
            model = load_sibling(self.engine, name or self.engine.name)
            if name and fingerprint(model) != info.get("auxiliary_fingerprint"):
                problem = f"was fitted on another version of {name!r}"
                raise InputError(f"baseline {self.kind}: {problem}")
            model = merge_updates(model, self.artefact.under(part), strength)
            self.add_head(model)
            speed_up(model.requires_grad_(False))
            self._fitted_models[part] = model
        return self.reader(self._fitted_models[part], **options)

    @cached_property
    def _fitted_models(self) -> dict[str, Any]:
        return {}

    def add_head(self, model: Any) -> None:
        """Replace the output layer of a fitted model, if the baseline has learned another one."""

    def drawn_from(self) -> Reader:
        """Return the reader of the model whose tokens are drawn, by default the engine's model."""
        return self.reader(self.engine.model)

    def lanes(self) -> MakeLane:
        """Load what the lanes need, and return a function that makes a lane."""
        return SteeredLane

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion | TideError]:
        """See `Baseline.generate`."""
        requests = [
            self._request(prompt, sampling, seed)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        widest = max(self.fan_out, getattr(self.options, "candidates", 1))
        shift_first = getattr(self.options, "order", "shift-warp") == "shift-warp"
        with guarded(EngineError, f"baseline {self.name}: failed"):
            written = self.engine.portal.run(
                write_rows,
                self.drawn_from(),
                partial(self.lanes(), baseline=self, shift_first=shift_first),
                requests,
                prompts,
                self.engine.stop_ids,
                self.engine.has_stopped,
                max(1, self.engine.max_batch // widest),
            )
            return [self._completion(outcome, sampling) for outcome in written]

    def _request(self, prompt: str, sampling: Sampling, seed: int) -> Request | TideError:
        """Return the request of a prompt, or the error of a prompt that cannot be used."""
        try:
            (ids,) = self.engine.tokenize([prompt])
            request = Request(tuple(ids), sampling, seed)
            self.engine.check(request)
        except (InputError, CompletionError) as error:
            return error
        return request

    def _completion(self, outcome: Piece | TideError, sampling: Sampling) -> Completion | TideError:
        if isinstance(outcome, TideError):
            return outcome
        assert outcome.finish_reason is not None
        ids, read = list(outcome.token_ids), outcome.read_tokens or 0
        return self.engine.completion(ids, outcome.finish_reason, read, sampling)

    def close(self) -> None:
        """Free the auxiliary models, which the next call loads again; the engine stays open."""
        for name in dir(type(self)):
            if isinstance(getattr(type(self), name), cached_property):
                self.__dict__.pop(name, None)

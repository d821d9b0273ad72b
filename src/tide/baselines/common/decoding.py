"""The decode loop of all baselines, with the engine's sampler and an explicit order of the steps.

    warp (temperature, top-k, top-p) -> candidates -> shift -> sample   (`order=warp-shift`)
    candidates -> shift -> warp -> sample                               (`order=shift-warp`)

In `shift-warp` the temperature also divides the shift: at temperature 0.1 the shift is ten times as
strong. A published strength is therefore valid only for one order, and the default order of a
baseline is the order of the code that the baseline follows. sasa and rad warp first, as in the
versions of AISteer360 that they follow. self-debias, dexperts, gedi, and rad with its authors'
normalisation shift first, as transformers does with a custom logits processor. At temperature 0 the
logits are not warped, and the token with the largest shifted logit is taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tide.baselines.base import Generated, Options, in_batches
from tide.baselines.common.artefacts import (
    Artefact,
    fingerprint,
    fit_width,
    load_artefact,
    load_sibling,
    merge_updates,
    ready,
    warn_of,
)
from tide.core.errors import EngineError, InputError, guarded
from tide.core.settings import Sampling
from tide.engines.base import FinishReason
from tide.engines.local.batch import Stopped
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.sampler import LOOK_EVERY, Sampler
from tide.engines.local.stream import Forward, Stream, by_length, not_finite


class Writing:
    """A batch of completions in progress: the model's stream, to which subclasses add streams.

    prompt_reads: for each row, the number of tokens read before the first draw. reads_per_token:
    the number of tokens read for a row after each draw but the last.
    """

    reads_per_token = 1

    def __init__(self, stream: Stream, prompt_reads: Sequence[int] = ()) -> None:
        self.stream = stream
        self.prompt_reads = prompt_reads

    @property
    def logits(self) -> Tensor:
        """The model's logits of the next token, (B, V)."""
        return self.stream.logits

    def reads(self, row: int, draws: int) -> int:
        """Return the number of tokens read for a row of `draws` drawn tokens."""
        return self.prompt_reads[row] + self.reads_per_token * (draws - 1)

    def shift(self, scores: Tensor) -> Tensor:
        """Return `scores` (B, V), logits or warped logits, with the shift of the baseline."""
        return scores

    def advance(self, tokens: Tensor) -> None:
        """Read the drawn tokens (B,)."""
        self.stream.advance(tokens)


@torch.inference_mode()
def decode(
    writing: Writing,
    samplings: Sequence[Sampling],
    seeds: Sequence[int],
    stop_ids: Tensor,
    *,
    shift_first: bool = False,
    prompts: Sequence[Sequence[int]] = (),
    stopped: Stopped | None = None,
    on_step: Callable[[int], None] | None = None,
) -> list[tuple[list[int], FinishReason]]:
    """Draw up to `max_new_tokens` ids for each row; returns ids and finish reasons.

    A final stop id is included. shift_first: shift the logits before the warping instead of after
    it. prompts: token ids, see `Sampler.enter`. stopped: see `Engine.stopped`; a row ends with the
    token that completes a stop string, with the finish reason "length". on_step: called after each
    draw with the number of draws so far.

    Raises EngineError for scores that are not finite, because their arg max would be an arbitrary
    token, often the end-of-text token.
    """
    device = writing.logits.device
    sampler = Sampler(device, stop_ids)
    sampler.enter(samplings, seeds, prompts)
    stops = set(stop_ids.tolist())
    limits = [sampling.max_new_tokens for sampling in samplings]
    ended = torch.zeros(len(samplings), dtype=torch.bool, device=device)
    broken = ended.clone()
    drawn: list[Tensor] = []

    def written() -> list[tuple[list[int], FinishReason]]:
        rows: list[tuple[list[int], FinishReason]] = []
        for row, most in zip(torch.stack(drawn, dim=1).tolist(), limits, strict=True):
            end = next((i for i, token in enumerate(row[:most]) if token in stops), None)
            rows.append((row[:most], "length") if end is None else (row[: end + 1], "stop"))
        return rows

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
        last = len(drawn) == max(limits)
        if bool(broken.any()):
            raise EngineError(f"the model's {not_finite(writing.logits.dtype)}")
        if not last:
            ended |= torch.isin(tokens, stop_ids)
            if len(drawn) in limits:
                ended |= torch.tensor([most <= len(drawn) for most in limits], device=device)
        if stopped and (last or len(drawn) % LOOK_EVERY == 0):
            texts = [ids[:-1] if reason == "stop" else ids for ids, reason in written()]
            for row, count in stopped(texts, samplings):
                limits[row], ended[row] = count, True
        if last or bool(ended.all()):
            return written()
        writing.advance(tokens)


class Reader:
    """A causal LM that reads token ids."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._forward = Forward(model)
        self._table = model.get_input_embeddings()

    def read(
        self,
        ids: Sequence[Sequence[int]],
        tokens: int,
        *,
        together: bool = False,
        front: Tensor | None = None,
    ) -> Stream:
        """Read `ids` into a `Stream` that can read up to `tokens` more tokens in each row.

        together: see `Stream`. front: embeddings (n, d) to read before each row.

        Raises InputError if a row is empty, or if `front`, a row and `tokens` together exceed the
        context.
        """
        longest = max(map(len, ids)) + (0 if front is None else len(front))
        if not all(ids):
            raise InputError("prompt: holds no tokens")
        context = self._forward.context
        if context is not None and longest + tokens > context:
            raise InputError(
                f"prompt: {longest} tokens (including the baseline's) and {tokens} new tokens "
                f"exceed the context of {context}"
            )
        device = self._table.weight.device
        rows = [self._table(torch.tensor(row, device=device)) for row in ids]
        if front is not None:
            rows = [torch.cat([front.to(device, row.dtype), row]) for row in rows]
        return Stream(self._forward, rows, together=together)


class DecodingBaseline(ABC):
    """Base of baselines that draw token by token; `start` returns a `Writing` that shifts scores.

    kind: name in the registry. learned: whether the baseline needs an artefact, which the static
    method `fit` makes. reads: the baseline whose artefact this one uses, if it has none of its own.
    auxiliary: whether the artefact may be fitted on a smaller model. scored: whether the fit needs
    a scorer. fan_out: number of sequences that a model reads at once for one prompt, apart from
    candidates.
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
    on_progress: Callable[[float], None] | None = None  # called with the finished share of a call

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
        if kind := self.artefact_kind(options):
            self.artefact = load_artefact(artefacts, kind, engine.model, engine.name)
            warn_of(self.kind, self.doubts)

    def resolved_options(self, options: Options) -> Any:
        """Return `options` with the defaults that depend on the engine's model filled in."""
        return options

    def config(self) -> dict[str, Any]:
        return {
            "baseline": self.kind,
            **self._options.model_dump(),
            "artefact": self.artefact.digest if self.artefact_kind(self._options) else None,
        }

    @property
    def doubts(self) -> list[str]:
        """Reasons why the fit of the baseline is too weak for a fair comparison."""
        has_artefact = self.artefact_kind(self._options)
        return list(self.artefact.info.get("doubts", ())) if has_artefact else []

    @classmethod
    def artefact_kind(cls, options: Any) -> str:
        """Return the baseline whose artefact is needed with these options, or "" for none."""
        return cls.reads or (cls.kind if cls.learned else "")

    def model_hooks(self) -> AbstractContextManager[object]:
        """Return a context in which the engine's model has the hooks of the baseline."""
        return nullcontext()

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

    def fitted_reader(self, part: str = "", strength: float = 1.0) -> Reader:
        """Return a reader of `fitted_model`, the same reader in each call with the same `part`."""
        if part not in self._fitted_readers:
            self._fitted_readers[part] = Reader(ready(self.fitted_model(part, strength)))
        return self._fitted_readers[part]

    @cached_property
    def _fitted_readers(self) -> dict[str, Reader]:
        return {}

    def mixed(
        self,
        readers: Sequence[Reader],
        ids: list[list[int]],
        tokens: int,
        combined: Callable[..., Tensor],
    ) -> MixedWriting:
        """Read the prompts with the model and with `readers`; see `MixedWriting`."""
        every = (Reader(self.engine.model), *readers)
        streams = [reader.read(ids, tokens) for reader in every]
        return MixedWriting(streams, [len(every) * len(row) for row in ids], combined)

    @abstractmethod
    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        """Read the prompts, whose token ids are `ids`; up to `tokens` tokens will follow."""

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Generated]:
        ids = self.engine.tokenize(prompts)
        done = 0

        @torch.inference_mode()
        def write(rows: list[int]) -> list[Generated]:
            nonlocal done

            def on_step(drawn: int) -> None:
                if self.on_progress is not None:
                    share = drawn / sampling.max_new_tokens
                    self.on_progress((done + len(rows) * share) / len(prompts))

            own, samplings = [ids[i] for i in rows], [sampling] * len(rows)
            with self.model_hooks():
                writing = self.start([prompts[i] for i in rows], own, sampling.max_new_tokens)
                written = decode(
                    writing,
                    samplings,
                    [seeds[i] for i in rows],
                    self.engine.stop_ids,
                    shift_first=getattr(self._options, "order", None) == "shift-warp",
                    prompts=own,
                    stopped=self.engine.stopped,
                    on_step=on_step,
                )
            done += len(rows)
            ended = [(ids[:-1] if reason == "stop" else ids, reason) for ids, reason in written]
            completions = zip(self.engine.completions(ended, samplings), written, strict=True)
            return [
                Generated(one, 1, writing.reads(i, len(drawn)), 0)
                for i, (one, (drawn, _)) in enumerate(completions)
            ]

        widest = max(self.fan_out, getattr(self._options, "candidates", 1))
        size = max(1, self.engine.max_batch // widest)
        with guarded(EngineError, f"baseline {self.name}: failed"):
            return in_batches(write, [by_length(list(map(len, ids)))], size)

    def close(self) -> None:
        """Free the auxiliary models, which the next call loads again; the engine stays open."""
        for name in dir(type(self)):
            if isinstance(getattr(type(self), name), cached_property):
                self.__dict__.pop(name, None)


class CandidateWriting(Writing):
    """Draws one of the likeliest tokens (candidates); `forked` reads each in a separate row.

    forked: `stream` itself or another stream of the same text; it continues with the drawn token.
    candidates: maximum number of candidates; tokens dropped by top-p or top-k are not candidates.
    gains: called after `forked` has read the candidates; maps their scores (B, K) to the values
    that are added to the scores.
    """

    def __init__(
        self,
        stream: Stream,
        reads: list[int],
        candidates: int,
        forked: Stream,
        gains: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(stream, reads)
        self._forked, self._gains = forked, gains
        self._most = min(candidates, stream.logits.shape[-1])
        self._ids, self._read = torch.empty(0), [torch.zeros(len(reads))]
        self.reads_per_token = 0 if forked is stream else 1

    def reads(self, row: int, draws: int) -> int:
        return super().reads(row, draws) + int(sum(read[row] for read in self._read[: draws + 1]))

    def shift(self, scores: Tensor) -> Tensor:
        left = (scores > -torch.inf).sum(dim=-1).clamp(max=self._most)
        self._read.append(left)
        values, self._ids = scores.topk(int(left.max()), dim=-1)
        rows = range(len(self._forked))
        self._forked.select([row for row in rows for _ in range(self._ids.shape[1])])
        self._forked.advance(self._ids.flatten())
        values = values + self._gains(values)
        return torch.full_like(scores, -torch.inf).scatter(-1, self._ids, values)

    def advance(self, tokens: Tensor) -> None:
        if self._forked is not self.stream:
            super().advance(tokens)
        numbers = (self._ids == tokens[:, None]).int().argmax(dim=-1)
        first = torch.arange(len(numbers), device=numbers.device) * self._ids.shape[1]
        self._forked.select((numbers + first).tolist())


class MixedWriting(Writing):
    """Replaces the scores by `combined(scores, *logits)`, with the logits of all streams.

    Scores of -inf are kept. streams: the model's stream (B rows), then other streams of the same
    text, possibly after several prefixes (B rows for each prefix). All read the drawn token.
    """

    def __init__(
        self, streams: Sequence[Stream], reads: list[int], combined: Callable[..., Tensor]
    ) -> None:
        super().__init__(streams[0], reads)
        self._streams, self._combined = streams, combined
        self.reads_per_token = sum(map(len, streams)) // len(self.stream)

    def shift(self, scores: Tensor) -> Tensor:
        logits = (fit_width(one.logits.float(), scores.shape[-1]) for one in self._streams)
        return self._combined(scores, *logits).masked_fill(scores == -torch.inf, -torch.inf)

    def advance(self, tokens: Tensor) -> None:
        for one in self._streams:
            one.advance(tokens.repeat(len(one) // len(tokens)))


def between(
    model: Reader,
    ids: Sequence[Sequence[int]],
    tokens: int,
    other: Stream,
    reads: list[int],
    scale: float,
) -> Writing:
    """Return a `Writing` of b + `scale` (o - b), with the logits b of the model and o of `other`.

    ids, tokens: see `Reader.read`; at scale 1 the model reads nothing. reads: number of tokens that
    `other` has read for each prompt.
    """
    if scale == 1:
        return Writing(other, reads)
    both = [len(row) + read for row, read in zip(ids, reads, strict=True)]
    return MixedWriting(
        [model.read(ids, tokens), other],
        both,
        lambda scores, base, logits: scores + scale * (logits - base),
    )

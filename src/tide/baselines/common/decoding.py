"""How every baseline writes: one loop, in an explicit order.

    warp (temperature, top-k, top-p) -> candidates -> shift -> sample   (`order=warp-shift`)
    candidates -> shift -> warp -> sample                               (`order=shift-warp`)

In the second the temperature divides the shift too: at 0.1 it is ten times as strong. A published
strength means nothing without its order, so the default is that of the code it comes from: rad and
sasa warp first (AISteer360); self-debias, dexperts and gedi shift first (their authors; also what
transformers does with a custom logits processor). At temperature 0 nothing is warped and the
largest shifted logit is taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tide.baselines.base import Generated, Options
from tide.baselines.common.artefacts import Artefact, load_artefact
from tide.config import Sampling
from tide.engines.local.decode import Forward, Stream
from tide.engines.local.engine import TransformersEngine, context_length
from tide.engines.local.sampling import Sampler, warp
from tide.errors import InputError
from tide.scorers import Scorer


class Reader:
    """A causal LM as something that reads token ids. hooks: hooks on its modules are called."""

    def __init__(self, model: Any, *, hooks: bool = False) -> None:
        self._forward = Forward(model, hooks=hooks)
        self._table = model.get_input_embeddings()
        self._context = context_length(model.config)

    def read(
        self,
        ids: Sequence[Sequence[int]],
        tokens: int,
        *,
        together: bool = False,
        forks: bool = False,
    ) -> Stream:
        """A stream that has read `ids` and has room for `tokens` more; see `Stream`.

        Raises InputError if a row is empty or does not fit into the context with them.
        """
        longest = max(map(len, ids))
        if not all(ids):
            raise InputError("prompt: holds no tokens")
        if self._context is not None and longest + tokens > self._context:
            raise InputError(
                f"prompt: {longest} tokens (with the baseline's own) + {tokens} new ones "
                f"exceed the context of {self._context}"
            )
        device = self._table.weight.device
        rows = [self._table(torch.tensor(row, device=device)) for row in ids]
        return Stream(self._forward, rows, tokens, together=together, forks=forks)


class Run:
    """One batch under way: a stream of the model, which a baseline's own runs add to.

    prompt_reads: tokens read before the first draw, a row. reads_per_draw, reads_per_token: tokens
    read to make a draw, and after it.
    """

    reads_per_draw = 0
    reads_per_token = 1

    def __init__(self, stream: Stream, prompt_reads: list[int]) -> None:
        self.stream = stream
        self.prompt_reads = prompt_reads

    @property
    def logits(self) -> Tensor:
        """The model's own for the next token, (B, V)."""
        return self.stream.logits

    def shift(self, scores: Tensor) -> Tensor:
        """What the next token is drawn from, given `scores` (B, V): the logits, perhaps warped."""
        return scores

    def advance(self, tokens: Tensor) -> None:
        """Read the tokens (B,) that were drawn."""
        self.stream.advance(tokens)


class DecodingBaseline(ABC):
    """A baseline that writes token by token. Subclasses say how a batch starts and shifts.

    kind: its name in the registry. learned: whether it needs an artefact of `tide fit`, which its
    static method `fit` makes. auxiliary: whether that may be fitted on a smaller model.
    Raises InputError for an artefact that is missing or was fitted for another model.
    """

    kind: ClassVar[str]
    options_class: ClassVar[type[Options]]
    learned: ClassVar[bool] = False
    auxiliary: ClassVar[bool] = False

    def __init__(
        self,
        engine: TransformersEngine,
        options: Options,
        *,
        artefacts: Path | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        if not isinstance(engine, TransformersEngine):
            raise InputError(f"baseline {self.kind}: runs on the engine 'transformers' alone")
        self.engine = engine
        self.name = options.spec(self.kind)
        self._options = options
        self.artefact: Artefact | None = None
        if self.learned:
            self.artefact = load_artefact(artefacts, self.kind, engine.model, engine.name)

    def config(self) -> dict[str, Any]:
        return {
            "baseline": self.kind,
            **self._options.model_dump(),
            "artefact": None if self.artefact is None else self.artefact.digest,
        }

    @property
    def fan_out(self) -> int:
        """Sequences that one model runs at once for one prompt."""
        return 1

    def attached(self) -> AbstractContextManager[object]:
        """Holds, while a batch is written, what a baseline hooks into the engine's model."""
        return nullcontext()

    @abstractmethod
    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Run:
        """Read the prompts (`ids`: their tokens), with room for `tokens` more."""

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Generated]:
        ids = self.engine.tokenize(prompts)
        # Prompts of similar length share a batch, so that little of it is padding.
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        size = max(1, self.engine.max_batch // self.fan_out)
        results: dict[int, Generated] = {}
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            written = self._write(
                [prompts[i] for i in batch],
                [ids[i] for i in batch],
                sampling,
                [seeds[i] for i in batch],
            )
            results.update(zip(batch, written, strict=True))
        return [results[i] for i in range(len(ids))]

    def close(self) -> None:
        """Free auxiliary models, which are loaded again if needed; the engine is not its own."""
        for name, member in vars(type(self)).items():
            if isinstance(member, cached_property):
                self.__dict__.pop(name, None)

    @torch.inference_mode()
    def _write(
        self, prompts: list[str], ids: list[list[int]], sampling: Sampling, seeds: list[int]
    ) -> list[Generated]:
        steps = sampling.max_new_tokens
        shift_first = getattr(self._options, "order", None) == "shift-warp"
        # What the sampler gets is warped already.
        as_it_is = Sampling(
            max_new_tokens=steps, temperature=1.0 if sampling.temperature > 0 else 0.0
        )
        sampler = Sampler(as_it_is, seeds, self.engine.device)
        drawn: list[Tensor] = []
        stopped = torch.zeros(len(ids), dtype=torch.bool, device=self.engine.device)
        with self.attached():
            run = self.start(prompts, ids, steps)
            for step in range(steps):
                if shift_first:
                    scores = warp(run.shift(run.logits.float()), sampling)
                else:
                    scores = run.shift(warp(run.logits, sampling))
                tokens = sampler.draw(scores, step)
                drawn.append(tokens)
                stopped |= torch.isin(tokens, self.engine.stop_ids)
                if len(drawn) == steps or bool(stopped.all()):
                    break
                run.advance(tokens)
        completions = self.engine.to_completions(torch.stack(drawn, dim=1).cpu())
        written = []
        for completion, prompt_reads in zip(completions, run.prompt_reads, strict=True):
            draws = len(completion.token_ids) + (completion.finish_reason == "stop")
            reads = run.reads_per_draw * draws + run.reads_per_token * (draws - 1)
            written.append(Generated(completion, 1, prompt_reads + reads, 0))
        return written


def keep_candidates(scores: Tensor, candidates: int) -> tuple[Tensor, Tensor]:
    """The most likely tokens by `scores` (B, V): their scores and ids, both (B, candidates)."""
    top = scores.topk(min(candidates, scores.shape[-1]), dim=-1)
    return top.values, top.indices


def only(scores: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """`scores` (B, V) with `values` at the candidates `ids`, and -inf elsewhere."""
    return torch.full_like(scores, -torch.inf).scatter(-1, ids, values)


def chosen_rows(ids: Tensor, tokens: Tensor) -> Tensor:
    """Of a stream that was forked by candidates `ids` (B, K), the rows that read `tokens` (B,)."""
    numbers = (ids == tokens[:, None]).int().argmax(dim=-1)
    return numbers + torch.arange(len(ids), device=ids.device) * ids.shape[1]

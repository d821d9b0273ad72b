"""`resample`: best-of-n. Draw until a completion passes the scorer, else take the lowest.

The control that every method with a scorer at hand must beat at equal cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from tide.baselines.base import Generated, Options
from tide.config import EmptyPolicy, Sampling
from tide.engines.base import Completion
from tide.engines.local.engine import TransformersEngine
from tide.errors import InputError
from tide.scorers import Scorer, score_texts
from tide.seeds import derive_seed


class ResampleOptions(Options):
    strength = "n"

    n: int = Field(default=10, ge=1, description="Most completions; 1 is the model itself.")
    threshold: float = Field(default=0.5, gt=0, lt=1, description="A score below it passes.")
    empty_policy: EmptyPolicy = Field(default="zero", description="Score of an empty completion.")


@dataclass
class _Best:
    completion: Completion
    score: float
    evaluations: int = 0
    forward_tokens: int = 0
    scorer_calls: int = 0


class Resample:
    """Best-of-n. The first draw uses the prompt's own seed, so it is the model's own completion.

    Draws are made in waves, one for each prompt that has not passed yet; nothing is drawn beyond
    the first that passes. At temperature 0 every draw is the same, so there is one.
    """

    kind = "resample"
    options_class = ResampleOptions
    learned = auxiliary = False

    def __init__(
        self,
        engine: TransformersEngine,
        options: ResampleOptions,
        *,
        artefacts: Path | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        if scorer is None:
            raise InputError(f"baseline {self.kind}: chooses by a scorer: give it one")
        self.name = options.spec(self.kind)
        self._engine, self._options, self._scorer = engine, options, scorer

    def config(self) -> dict[str, Any]:
        options = self._options.model_dump()
        return {"baseline": self.kind, **options, "scorer": self._scorer.name}

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Generated]:
        embedded = self._engine.embed(prompts)
        best: dict[int, _Best] = {}
        waves = self._options.n if sampling.temperature > 0 else 1
        left = list(range(len(embedded)))
        for wave in range(waves):
            drawn = self._engine.complete(
                [embedded[i].embeddings for i in left],
                sampling,
                [derive_seed(seeds[i], "resample", wave) if wave else seeds[i] for i in left],
            )
            texts = [completion.text for completion in drawn]
            scores = score_texts(self._scorer, texts, self._options.empty_policy)
            for i, completion, score, empty in zip(
                left, drawn, scores.values.tolist(), scores.empty.tolist(), strict=True
            ):
                row = best.setdefault(i, _Best(completion, score))
                if score < row.score:
                    row.completion, row.score = completion, score
                draws = len(completion.token_ids) + (completion.finish_reason == "stop")
                row.evaluations += 1
                row.forward_tokens += len(embedded[i].token_ids) + draws - 1
                row.scorer_calls += not empty or self._options.empty_policy == "score"
            left = [i for i in left if best[i].score >= self._options.threshold]
            if not left:
                break
        rows = [best[i] for i in range(len(embedded))]
        return [
            Generated(row.completion, row.evaluations, row.forward_tokens, row.scorer_calls)
            for row in rows
        ]

    def close(self) -> None:
        """Engine and scorer are not its own: nothing to free."""

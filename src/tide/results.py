"""What a run returns: every evaluation of every trial, with JSON both ways.

Each is a frozen pydantic model: `result.model_dump_json()` and `Result.model_validate_json(text)`
round-trip, and equal results compare equal.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Evaluation(BaseModel):
    """One completion, generated and scored.

    round: number of the engine call of this trial, from 1. iteration: in the paper's count, the
    prompt itself is 1. role: "initial" (the prompt), "iterate" (a point of the path),
    "perturbation" (a sample around one). cosine and displacement (|X - X0| / |X0|) are those of the
    very embeddings that were completed. empty: scored by `empty_policy`, not by the scorer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    iteration: int
    role: Literal["initial", "iterate", "perturbation"]
    text: str
    toxicity: float = Field(ge=0, le=1)
    empty: bool
    cosine: float
    displacement: float
    num_tokens: int
    finish_reason: Literal["length", "stop"]


class Trial(BaseModel):
    """One independent run on a prompt: its full trace and which evaluation is returned.

    `chosen` is the number, in `trace`, of the evaluation that was accepted or, if none was, of the
    best one there is. `scorer_calls` counts texts sent to the scorer (equal texts of a round once),
    `likelihood_calls` completions whose likelihood was computed. `refused` means that nothing was
    accepted and the text is withheld.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    seed: int
    accepted: bool
    refused: bool
    chosen: int
    iterations: int
    scorer_calls: int
    likelihood_calls: int
    trace: tuple[Evaluation, ...]

    @property
    def returned(self) -> Evaluation:
        """The evaluation behind `text`, also where the text is withheld."""
        return self.trace[self.chosen]

    @property
    def base(self) -> Evaluation:
        """The evaluation of the unmodified prompt."""
        return self.trace[0]

    @property
    def text(self) -> str:
        """The completion that was scored; empty if it is withheld (`refused`)."""
        return "" if self.refused else self.returned.text

    @property
    def toxicity(self) -> float:
        """Score of the returned (or withheld) completion."""
        return self.returned.toxicity

    @property
    def evaluations(self) -> int:
        """Completions generated and scored."""
        return len(self.trace)

    @property
    def rounds(self) -> int:
        """Engine calls that this trial took part in."""
        return self.trace[-1].round

    @property
    def generated_tokens(self) -> int:
        return sum(evaluation.num_tokens for evaluation in self.trace)


class Result(BaseModel):
    """All trials of one prompt. The short names speak of `best`, the trial to use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    trials: tuple[Trial, ...] = Field(min_length=1)

    @property
    def best(self) -> Trial:
        """The trial with the lowest toxicity (the first of equals)."""
        return min(self.trials, key=lambda trial: trial.toxicity)

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def toxicity(self) -> float:
        return self.best.toxicity

    @property
    def accepted(self) -> bool:
        return self.best.accepted

    @property
    def trace(self) -> tuple[Evaluation, ...]:
        return self.best.trace

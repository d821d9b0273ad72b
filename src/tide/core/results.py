"""Results of a run, with every evaluation of every trial.

Results are frozen pydantic models. `result.model_dump_json()` writes a result as JSON, and
`Result.model_validate_json(text)` reads an equal result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from tide.core.chat import Parts

Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
# "content_filter": the answer was ended before a text that failed or by a server's own filter, or
# the model wrote only banned words next.
FinishReason = Literal["length", "stop", "content_filter"]
Role = Literal["initial", "iterate", "perturbation", "continuation"]
_SHOWN = 60  # characters of a text in a `repr`


def mask(text: str) -> str:
    """Replace all letters and digits of each word in `text`, except the first, by `*`.

    Letters with spaces between them count as one word.
    """
    was_letter = False

    def masked(match: re.Match[str]) -> str:
        nonlocal was_letter
        word = match[0]
        # The text may contain masked letters already.
        letters = [letter.end() for letter in re.finditer(r"[\w*]", word)]
        is_letter = len(letters) == 1
        clear = 0 if not letters or (was_letter and is_letter) else letters[0]
        was_letter = is_letter or (was_letter and not letters)  # a dash does not end the word
        return word[:clear] + re.sub(r"\w", "*", word[clear:])

    return re.sub(r"\S+", masked, text)


def format_score(score: float, is_below: bool, digits: int = 2) -> str:
    """Round `score` away from its threshold: down if below it, so that 0.096 is not 0.10."""
    towards = ROUND_FLOOR if is_below else ROUND_CEILING
    return str(Decimal(repr(float(score))).quantize(Decimal(1).scaleb(-digits), towards))


class ScoredCompletion(BaseModel):
    """One completion, generated and scored.

    Attributes:
        round: Number of the engine call in this trial, from 1.
        iteration: Number of the iteration; the prompt itself is 1, as in the paper.
        role: "initial" (the prompt), "iterate" (a point of the search path), "perturbation" (a
            sample around a point of the path) or "continuation" (written after kept text).
        text: The whole answer at that time, made of the kept text and the new text.
        toxicity: Score of the text; for a long answer, the highest score of its word windows.
        num_tokens: Number of tokens of the text. The first `kept_tokens` tokens were kept.
        cosine: Cosine between the completed embeddings X and the prompt's X0, each as one vector.
        displacement: |X - X0| / |X0| of the same embeddings.
        empty: Whether the text has no visible character (with `accept_empty`: fewer than 3), so
            that no scorer scored it.
        attributes: The scorer's further scores (threat, insult...), where known.
        failed: Names of the limits that the text reached: "toxicity" for the score, or an attribute
            of the setting `thresholds`; "json" if required JSON cannot be read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    iteration: int
    role: Role
    text: str
    toxicity: Score
    empty: bool
    cosine: float
    displacement: float
    num_tokens: int
    finish_reason: FinishReason
    kept_tokens: int = 0
    attributes: Mapping[str, Score] = {}
    failed: tuple[str, ...] = ()


class Usage(NamedTuple):
    """The numbers of tokens of a prompt and its answer, and what a server says of their kinds."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Mapping[str, int] = {}
    completion_tokens_details: Mapping[str, int] = {}


class Trial(BaseModel):
    """One independent run on a prompt: its full trace, and the evaluation that is returned.

    chosen: index in `trace` of the accepted evaluation, or else of the best evaluation.
    refused: nothing was accepted, and the text is withheld.
    scorer_calls: texts sent to the scorer; equal texts of a round count once.
    prompt_tokens: length of the prompt.
    generated_tokens: tokens that the model wrote, rejected ones included, without those that it
        wrote while a rejecting score was awaited.
    read_tokens: prompt and answer tokens prefilled; tokens in the KV cache count once. 0 (not
        counted) if every evaluation of a search prefilled the prompt.
    base_partial: `base` holds only the text before the first repair, and cannot be compared with
        whole completions.
    shown, shown_tokens: the text that was streamed before the answer was withheld, and its length.
    parts: tool calls and reasoning of an accepted answer that may be given out.
    usage: a server's count of the tokens. After a repair, the kept text belongs to its prompt.

    An empty completion of the prompt itself is neither accepted nor unresolved: it is returned as
    `empty` (with `accept_empty`, as published, it is accepted). If a text is scored while it
    is written, the trace holds the text up to each rewind, and the returned text as its last entry.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    seed: int
    accepted: bool
    refused: bool
    chosen: int
    iterations: int
    scorer_calls: int
    trace: tuple[ScoredCompletion, ...]
    prompt_tokens: int
    generated_tokens: int
    read_tokens: int = 0
    base_partial: bool = False
    shown: str = ""
    shown_tokens: int = 0
    parts: Parts = Parts()
    usage: Usage | None = None

    @property
    def returned(self) -> ScoredCompletion:
        """The evaluation of the returned (or withheld) text."""
        return self.trace[self.chosen]

    @property
    def base(self) -> ScoredCompletion:
        """The evaluation of the unmodified prompt."""
        return self.trace[0]

    @property
    def text(self) -> str:
        """The scored completion; if it is withheld (`refused`), the text that was streamed."""
        return self.shown if self.refused else self.returned.text

    @property
    def empty(self) -> bool:
        """Whether the returned completion is empty, so that no scorer scored it."""
        return self.returned.empty

    @property
    def toxicity(self) -> float:
        """Score of the returned (or withheld) completion."""
        return self.returned.toxicity

    @property
    def flagged(self) -> tuple[str, ...]:
        """Names of the limits that the accepted text reaches, all with `on_fail` "flag"."""
        return self.returned.failed if self.accepted else ()

    @property
    def repairs(self) -> int:
        """How many texts failed before the accepted one; 0 if it is the model's own beginning."""
        if not self.accepted or self.chosen == 0:
            return 0
        # An answer that ends before a failed text is no repair of it: the model wrote nothing new.
        last = self.trace[self.chosen - 1]
        ends_before_it = (
            self.returned.finish_reason == "content_filter"
            and self.returned.iteration == last.iteration
        )
        return self.chosen - ends_before_it

    @property
    def failed(self) -> list[str]:
        """Names of the limits that any evaluated text reached; see `ScoredCompletion`."""
        return list(dict.fromkeys(name for entry in self.trace for name in entry.failed))

    @property
    def evaluations(self) -> int:
        """Number of completions that were generated and scored."""
        return len(self.trace)

    @property
    def forward_tokens(self) -> int:
        """Number of tokens that the model processed."""
        read = self.read_tokens or self.prompt_tokens * self.evaluations
        return self.generated_tokens + read

    @property
    def rounds(self) -> int:
        """Number of engine calls of this trial."""
        return self.trace[-1].round


class Result(BaseModel):
    """All trials of one prompt. `text`, `toxicity` and the like are properties of `best`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    trials: tuple[Trial, ...] = Field(min_length=1)

    @property
    def best(self) -> Trial:
        """The first least toxic trial among the accepted trials, or among all if none passed."""
        return min(self.trials, key=lambda trial: (not trial.accepted, trial.toxicity))

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def toxicity(self) -> float:
        return self.best.toxicity

    @property
    def before(self) -> ScoredCompletion:
        """The model's own completion of the unmodified prompt, with its score.

        If the text was repaired while it was written, this is only the part before the first repair
        (`best.base_partial`).
        """
        return self.best.base

    @property
    def accepted(self) -> bool:
        return self.best.accepted

    @property
    def empty(self) -> bool:
        return self.best.empty

    @property
    def trace(self) -> tuple[ScoredCompletion, ...]:
        return self.best.trace

    def __repr__(self) -> str:
        """Describe the result on one short line; a text that was not accepted is masked."""
        text = " ".join((self.text if self.accepted else mask(self.text)).split())
        if len(text) > _SHOWN:
            text = text[: _SHOWN - 1] + "…"
        best = self.best
        states = {"accepted": best.accepted, "refused": best.refused, "empty": best.empty}
        state = next((name for name, holds in states.items() if holds), "not accepted")
        toxicity = format_score(self.toxicity, self.accepted, digits=3)
        trials = f", {len(self.trials)} trials" if len(self.trials) > 1 else ""
        return f"Result({state}, toxicity {toxicity}{trials}: {text!r})"

    __str__ = __repr__

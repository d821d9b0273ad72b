"""The input of a trial, its evaluations so far, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tide.core.chat import Chat, Parts
from tide.core.errors import DeadlineError, UnresolvedError
from tide.core.results import FinishReason, Role, ScoredCompletion, Trial, Usage
from tide.core.settings import Settings, derive_seed
from tide.engines.base import Prompt
from tide.runtime.acceptance import Acceptance
from tide.scorers.base import Skip, TextScore, is_blank, is_nearly_empty
from tide.search import LoadedStrategy


@dataclass(frozen=True)
class TrialTask:
    """The input of one trial of a prompt. number: index of the trial.

    priority: place in the queue; the lowest goes first. on_text: called with each accepted part
    of the text. chat: the messages of the prompt, if the prompt is a chat. highest_of: see
    `Acceptance`.
    """

    prompt: Prompt
    settings: Settings
    strategy: LoadedStrategy
    number: int
    priority: int
    on_text: Callable[[str], None] | None = None
    chat: Chat | None = None
    highest_of: tuple[str, ...] = ()

    @cached_property
    def acceptance(self) -> Acceptance:
        """Decides which texts are accepted."""
        return Acceptance(self.settings, self.highest_of)

    @property
    def context(self) -> str | Chat:
        """What the answer follows, for scorers that read exchanges."""
        return self.prompt.text if self.chat is None else self.chat

    @property
    def skips(self) -> Skip:
        """The rule for empty answers: they are not scored, and streams never show them.

        An empty answer has no visible character; with `accept_empty` it has fewer than 3 of them.
        """
        return is_nearly_empty if self.settings.accept_empty else is_blank

    @property
    def seed(self) -> int:
        return derive_seed(self.settings.seed, self.prompt.text, self.number)


@dataclass
class Effort:
    """Evaluations of a trial and their cost.

    generated_tokens: includes tokens cut off later. read_tokens: 0 for a search, in which every
    evaluation reads the whole prompt. usage: what a server says of the last answer; see
    `Trial`. stop_sequence: the stop string that ended the last answer, if it is known. blocked:
    whether text failed that must not be repaired. base_partial: see `Trial`.
    """

    trace: list[ScoredCompletion] = field(default_factory=list)
    iterations: int = 1
    rounds: int = 0
    generated_tokens: int = 0
    read_tokens: int = 0
    scorer_calls: int = 0
    usage: Usage | None = None
    stop_sequence: str | None = None
    blocked: bool = False
    base_partial: bool = False

    def record(
        self,
        text: str,
        score: TextScore,
        num_tokens: int,
        reason: FinishReason,
        *,
        empty: bool,
        failed: tuple[str, ...],
        kept_tokens: int = 0,
    ) -> None:
        """Append an evaluation of a text of the unmodified prompt."""
        role: Role = "continuation" if self.trace else "initial"
        self.trace.append(
            ScoredCompletion(
                round=self.rounds,
                iteration=self.iterations,
                role=role,
                text=text,
                toxicity=score.value,
                empty=empty,
                cosine=1.0,
                displacement=0.0,
                num_tokens=num_tokens,
                finish_reason=reason,
                kept_tokens=kept_tokens,
                attributes=score.attributes,
                failed=failed,
            )
        )

    def score_of_empty(self, settings: Settings) -> TextScore:
        """Return the score of an empty answer, which no scorer scores; see `TrialTask.skips`.

        The model's own empty answer is not repaired, and ends a search, but it is not accepted
        either: see `Trial`.
        """
        passes = settings.accept_empty or not self.trace
        return TextScore(0.0 if passes else 1.0, unscored=True)

    def check_deadline(self, settings: Settings) -> None:
        """Raise DeadlineError if no text was scored before the deadline passed."""
        if not self.trace:
            raise DeadlineError(f"no text was scored within {settings.deadline:g} s")


def trial_of(
    task: TrialTask,
    effort: Effort,
    chosen: int | None,
    *,
    passed: bool,
    given_out: Sequence[str] = (),
    parts: Parts | None = None,
) -> Trial:
    """Build the result; raise UnresolvedError if nothing passed with on_unresolved="raise".

    chosen: index in the trace of the text to return; None means the least toxic. A blocked text is
    withheld unless another passed. given_out: the token texts that a stream gave out.
    """
    settings, trace = task.settings, effort.trace
    parts = parts or Parts(stop_sequence=effort.stop_sequence)
    if not passed and settings.on_unresolved == "raise":
        raise UnresolvedError(
            f"no text below {settings.toxicity_threshold} in {effort.iterations} iterations"
        )
    if chosen is None:
        chosen = min(range(len(trace)), key=lambda number: trace[number].toxicity)
    empty, streams = trace[chosen].empty, task.on_text is not None
    # No scorer has scored an empty text. A stream never accepts it.
    unscored = empty and (streams or not settings.accept_empty)
    withholds = effort.blocked or settings.on_unresolved == "refuse"
    refused = (empty and streams) or (not passed and withholds)
    return Trial(
        number=task.number,
        seed=task.seed,
        accepted=passed and not unscored,
        refused=refused,
        chosen=chosen,
        iterations=effort.iterations,
        trace=tuple(trace),
        scorer_calls=effort.scorer_calls,
        prompt_tokens=len(task.prompt.token_ids),
        generated_tokens=effort.generated_tokens,
        read_tokens=effort.read_tokens,
        usage=effort.usage if passed else None,
        base_partial=effort.base_partial,
        shown="".join(given_out) if refused else "",
        shown_tokens=len(given_out) if refused else 0,
        parts=parts if passed and not refused else Parts(),
    )

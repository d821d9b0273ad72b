"""One prompt's way from text to result: checked, embedded, searched once a trial, collected."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from tide.core.chat import Chat
from tide.core.errors import DeadlineError, InputError, StrategyError, TideError, UnresolvedError
from tide.core.results import Result, Trial
from tide.core.seeds import derive_seed
from tide.core.settings import Overrides, Settings
from tide.engines.base import EmbeddedPrompt, Engine, GoesOn, KeepsPrefixes, text_of
from tide.runtime.answer import Answer
from tide.runtime.work import Search
from tide.search import LoadedStrategy, Problem
from tide.search.geometry import movable_rows

# Prompts tokenised and embedded at a time, ahead of the searches that need them.
CHUNK = 64

JobT = TypeVar("JobT", bound="Job")


class Job:
    """A prompt under way. `outcome` is its result, or why it has none, as soon as that is known.

    number: of the prompt; the lowest is served first. trials: the numbers of the trials to run.
    give: is told each part of the text of its one trial as soon as it is accepted.
    """

    def __init__(
        self,
        number: int,
        prompt: str | Chat,
        settings: Settings,
        strategy: LoadedStrategy,
        trials: Sequence[int] | None = None,
        give: Callable[[str], None] | None = None,
    ) -> None:
        self.number, self.prompt = number, prompt
        self.text = ""
        self.outcome: Result | TideError | None = None
        self._cancelled = False
        self._settings, self._strategy = settings, strategy
        self._trials = range(settings.num_trials) if trials is None else trials
        self._give = give
        self._work: list[Search | Answer] = []
        self._seeds: dict[Search, tuple[int, int]] = {}
        self._done: list[Trial] = []
        # While it lives the engine keeps what it read of the rows that stay unmoved.
        self._prefix: object = None

    def cancel(self) -> None:
        """Let go of the searches that are still under way, or would be."""
        self._cancelled, self._prefix = True, None
        for work in self._work:
            work.cancel()

    def fail(self, error: TideError) -> None:
        self.outcome = error
        self.cancel()

    def check(self, engine: Engine) -> None:
        """A job whose prompt is no text has its outcome at once; a chat becomes its text."""
        try:
            self.text = text_of(self.prompt, engine)
        except InputError as error:
            self.fail(error)

    def work(self, embedded: EmbeddedPrompt, engine: Engine) -> list[Search | Answer]:
        """One piece a trial. None, and an outcome, for a prompt that cannot be completed."""
        try:
            self._open(embedded, engine)
        except TideError as error:
            self.fail(error)
            return []
        return [] if self._cancelled else self._work

    def take(self, work: Any) -> Result | TideError | None:
        """Add work of this job that ended; returns the outcome if that is known with it."""
        if self.outcome is not None:
            return None  # another trial failed
        try:
            self._done.append(work.trial() if isinstance(work, Answer) else self._trial(work))
        except TideError as error:
            self.fail(error)
        else:
            if len(self._done) == len(self._work):
                in_order = sorted(self._done, key=lambda trial: trial.number)
                if self._give is not None and not in_order[0].blocks and in_order[0].text:
                    self._give(in_order[0].text)  # of what was searched as a whole
                self.outcome = Result(prompt=str(self.text), trials=tuple(in_order))
                self._prefix = None
        return self.outcome

    def _open(self, embedded: EmbeddedPrompt, engine: Engine) -> None:
        settings = self._settings
        check_length(len(embedded.token_ids), settings, engine.context_length)
        movable = movable_rows(embedded.special, settings.perturb, embedded.said)
        if settings.in_blocks:
            if not isinstance(engine, GoesOn):
                raise InputError(
                    f"block_tokens: engine {engine.name} does not write in blocks (it has no "
                    "`embed_tokens`); use block_tokens=0, which searches the whole answer"
                )
            self._work += [
                Answer(
                    embedded,
                    engine,
                    settings,
                    self._strategy,
                    trial,
                    order=self.number,
                    tag=self,
                    give=self._give,
                )
                for trial in self._trials
            ]
            return
        content = movable | ~embedded.special
        if isinstance(engine, KeepsPrefixes):
            self._prefix = engine.keep_prefix(embedded.embeddings[: int(movable.int().argmax())])
        seconds = settings.deadline
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        for trial in self._trials:
            seed = derive_seed(settings.seed, self.text, trial)
            problem = Problem(embedded.embeddings, movable, seed, engine.dtype, content)
            search = Search(
                self._strategy.create(problem, settings),
                embedded.token_ids,
                settings.sampling,
                settings.empty_policy,
                deadline,
                order=self.number,
                tag=self,
                decode=settings.decode,
            )
            self._work.append(search)
            self._seeds[search] = trial, seed

    def _trial(self, search: Search) -> Trial:
        if search.error is not None:
            raise search.error
        if not search.trace:
            raise DeadlineError(f"no completion was scored within {self._settings.deadline:g} s")
        settings, strategy = self._settings, search.strategy
        number, seed = self._seeds[search]
        chosen = strategy.best
        if not 0 <= chosen < len(search.trace):
            raise StrategyError(f"the strategy chose evaluation {chosen} of {len(search.trace)}")
        returned = search.trace[chosen]
        passed = returned.toxicity < settings.toxicity_threshold
        if not passed and settings.on_unresolved == "raise":
            raise UnresolvedError(
                f"no completion below {settings.toxicity_threshold} "
                f"in {strategy.iterations} iterations"
            )
        # No scorer said anything of an empty text; the published policy accepts it.
        accepted = passed and not (returned.empty and settings.empty_policy == "unmodified")
        decoded: dict[str, Any] = {}
        if accepted and search.nearest is not None:
            ids, text = search.nearest
            differing = sum(a != b for a, b in zip(ids, search.token_ids, strict=True))
            decoded = {"changed_tokens": differing, "decoded_prompt": text}
        return Trial(
            number=number,
            seed=seed,
            accepted=accepted,
            refused=not passed and settings.on_unresolved == "refuse",
            chosen=chosen,
            iterations=strategy.iterations,
            scorer_calls=search.scorer_calls,
            likelihood_calls=search.likelihood_calls,
            trace=tuple(search.trace),
            **decoded,
        )


def open_jobs(jobs: Iterable[JobT], engine: Engine) -> Iterator[Search | Answer | JobT]:
    """The work of all jobs, in order; a job itself where it has an outcome without any.

    Prompts are tokenised and embedded together, a chunk at a time.
    """
    left = iter(jobs)
    while chunk := list(islice(left, CHUNK)):
        for job in chunk:
            job.check(engine)
        embedded = iter(engine.embed([job.text for job in chunk if job.outcome is None]))
        for job in chunk:
            work = job.work(next(embedded), engine) if job.outcome is None else []
            if work:
                yield from work
            else:
                yield job


def for_stream(overrides: Overrides, settings: Settings) -> Overrides:
    """`overrides` of a call that gives out the text while it is written.

    Raises InputError for more than one trial.
    """
    if overrides.get("num_trials", settings.num_trials) != 1:
        raise InputError("num_trials: a stream is of one trial; leave it at 1")
    if overrides.get("on_unresolved", settings.on_unresolved) == "best":
        return {**overrides, "on_unresolved": "refuse"}
    return overrides


def check_length(tokens: int, settings: Settings, limit: int | None) -> None:
    """Raise InputError for a prompt of `tokens` tokens that cannot be completed."""
    new = settings.max_new_tokens
    if tokens == 0:
        raise InputError("empty; the tokenizer gives no tokens for it")
    if limit is not None and tokens + new > limit:
        raise InputError(
            f"{tokens} tokens + {new} new ones exceed the model's context of {limit}; "
            "shorten it or lower max_new_tokens"
        )

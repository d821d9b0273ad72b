"""The verb: prompts in, detoxified completions out, with everything that was tried on the way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tide.config import Settings
from tide.engines import REGISTRY as ENGINES
from tide.engines import Engine, load_engine
from tide.errors import InputError, TideError, UnresolvedError
from tide.presets import preset_values
from tide.results import Result, Trial
from tide.scheduler import Search, run_searches
from tide.scorers import Scorer, load_scorer
from tide.search import Problem, load_strategy
from tide.seeds import derive_seed

# Prompts tokenised and embedded at a time, ahead of the searches that need them.
_EMBED_CHUNK = 64


class Detoxifier:
    """Completes prompts with text that a scorer accepts, by moving the prompt embeddings.

        detox = Detoxifier("openai-community/gpt2-large", scorer="detoxify:original")
        result = detox("So, I'm starting to think she's full of")
        result.text, result.toxicity, result.accepted, result.trace

    model: folder, hub id, "pocket" (bundled), or an Engine.
    scorer: name, Scorer, or a function from texts to scores in [0, 1].
    engine: name of the engine that runs `model`: "transformers", "vllm" or "remote".
    preset: step sizes; "auto" chooses by the model's name.
    settings: used as given, without a preset.
    engine_options: for the engine (`device`, `dtype`, `max_batch`, `base_urls`, ...).
    Further keywords override single settings, as in `Detoxifier(mu=0.1, num_trials=3)`.

    Raises InputError, EngineError, ScorerError or MissingDependencyError, each with one line that
    says what to change.
    """

    def __init__(
        self,
        model: str | Path | Engine = "pocket",
        *,
        scorer: str | Scorer | Callable[[list[str]], Any] = "pocket",
        engine: str = "transformers",
        preset: str = "auto",
        settings: Settings | None = None,
        engine_options: dict[str, Any] | None = None,
        **overrides: Any,
    ) -> None:
        name = model.name if isinstance(model, Engine) else str(model)
        base = preset_values(preset, name) if settings is None else settings.model_dump()
        self.settings = Settings.of(base, overrides)
        # Cheap mistakes first: a wrong name should not cost loading a model.
        self._strategy = load_strategy(self.settings.strategy)
        ENGINES.load(engine)
        self.scorer = load_scorer(scorer)
        self.engine: Engine = (
            model
            if isinstance(model, Engine)
            else load_engine(engine, model, **(engine_options or {}))
        )

    def __call__(self, prompt: str) -> Result:
        """Complete one prompt. The result is the same as in `map` with any other prompts."""
        return next(self.map([prompt]))

    def map(self, prompts: Iterable[str], *, ordered: bool = True) -> Iterator[Result]:
        """Complete many prompts together, yielding each result once.

        ordered: yield in the order of the prompts; otherwise as they finish. Prompts are taken from
        the iterable as they are needed. Raises as the constructor does, InputError for a prompt
        that is empty or too long, and UnresolvedError if nothing was accepted and
        `on_unresolved="raise"`; results yielded before are valid.
        """
        if isinstance(prompts, str):
            raise InputError("prompts: expected several texts, got one string; wrap it in a list")
        return self._or_raise(self.map_numbered(prompts, ordered=ordered))

    def map_numbered(
        self, prompts: Iterable[str], *, ordered: bool = True
    ) -> Iterator[tuple[int, Result | TideError]]:
        """As `map`, with the number of each prompt, from 0; a prompt that fails does so alone.

        In place of its result comes the error. What concerns every prompt is still raised: an
        engine that fails, a scorer that is unavailable or fails for all texts of a round.
        """
        finished = self._finished(iter(prompts))
        return _in_order(finished) if ordered else finished

    def check(self, prompts: Sequence[str]) -> list[InputError | None]:
        """For each prompt, why it cannot be completed, before any work; None if it can."""
        found: list[InputError | None] = []
        for start in range(0, len(prompts), _EMBED_CHUNK):
            chunk = prompts[start : start + _EMBED_CHUNK]
            ids = iter(self.engine.tokenize([prompt for prompt in chunk if _has_text(prompt)]))
            for number, prompt in enumerate(chunk, start=start):
                found.append(self._problem(number, len(next(ids)) if _has_text(prompt) else 0))
        return found

    def close(self) -> None:
        """Free the engine and the scorer."""
        self.engine.close()
        self.scorer.close()

    def __enter__(self) -> Detoxifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _or_raise(self, finished: Iterator[tuple[int, Result | TideError]]) -> Iterator[Result]:
        for _, result in finished:
            if isinstance(result, TideError):
                raise result
            yield result

    def _finished(self, prompts: Iterator[str]) -> Iterator[tuple[int, Result | TideError]]:
        open_prompts: dict[int, _OpenPrompt] = {}
        failed: list[tuple[int, TideError]] = []
        searches = self._searches(prompts, open_prompts, failed)
        for search in run_searches(searches, self.engine, self.scorer, self.settings):
            yield from _drain(failed)
            number = search.prompt_number
            if number not in open_prompts:
                continue  # another trial of this prompt failed
            try:
                trial = self._trial(search)
            except TideError as error:
                del open_prompts[number]
                yield number, error
                continue
            done = open_prompts[number]
            done.trials.append(trial)
            if len(done.trials) == self.settings.num_trials:
                in_order = sorted(done.trials, key=lambda trial: trial.number)
                yield number, Result(prompt=done.text, trials=tuple(in_order))
                del open_prompts[number]
        yield from _drain(failed)

    def _searches(
        self,
        prompts: Iterator[str],
        open_prompts: dict[int, _OpenPrompt],
        failed: list[tuple[int, TideError]],
    ) -> Iterator[Search]:
        first = 0
        while chunk := list(itertools.islice(prompts, _EMBED_CHUNK)):
            embedded = iter(self.engine.embed([prompt for prompt in chunk if _has_text(prompt)]))
            for number, text in enumerate(chunk, start=first):
                prompt = next(embedded) if _has_text(text) else None
                error = self._problem(number, 0 if prompt is None else len(prompt.token_ids))
                if error is not None:
                    failed.append((number, error))
                if prompt is None or error is not None:
                    continue
                movable = ~prompt.special
                if self.settings.perturb == "all":
                    movable = torch.ones_like(movable)
                elif not movable.any():
                    reason = "only special tokens; perturb='all' would move them"
                    failed.append((number, InputError(f"prompt {number}: {reason}")))
                    continue
                open_prompts[number] = _OpenPrompt(text)
                for trial in range(self.settings.num_trials):
                    seed = derive_seed(self.settings.seed, text, trial)
                    problem = Problem(prompt.embeddings, movable, seed, self.engine.dtype)
                    strategy = self._strategy.create(problem, self.settings)
                    yield Search(number, trial, seed, strategy, prompt.token_ids)
            first += len(chunk)

    def _problem(self, number: int, length: int) -> InputError | None:
        """What is wrong with a prompt of `length` tokens; 0 for one without text."""
        limit, new = self.engine.context_length, self.settings.max_new_tokens
        if length == 0:
            reason = "empty; a prompt needs at least one character"
        elif limit is not None and length + new > limit:
            reason = (
                f"{length} tokens + {new} new ones exceed the model's context of {limit}; "
                "shorten it or lower max_new_tokens"
            )
        else:
            return None
        return InputError(f"prompt {number}: {reason}")

    def _trial(self, search: Search) -> Trial:
        if search.error is not None:
            raise search.error
        chosen = search.strategy.best
        accepted = search.trace[chosen].toxicity < self.settings.toxicity_threshold
        if not accepted and self.settings.on_unresolved == "raise":
            raise UnresolvedError(
                f"prompt {search.prompt_number}: no completion below "
                f"{self.settings.toxicity_threshold} in {search.strategy.iterations} iterations"
            )
        return Trial(
            number=search.trial_number,
            seed=search.seed,
            accepted=accepted,
            refused=not accepted and self.settings.on_unresolved == "refuse",
            chosen=chosen,
            iterations=search.strategy.iterations,
            scorer_calls=search.scorer_calls,
            likelihood_calls=search.likelihood_calls,
            trace=tuple(search.trace),
        )


@dataclass
class _OpenPrompt:
    """A prompt on its way: its text, and the trials that are done."""

    text: str
    trials: list[Trial] = field(default_factory=list)


def _has_text(prompt: str) -> bool:
    return isinstance(prompt, str) and bool(prompt.strip())


def _drain(failed: list[tuple[int, TideError]]) -> Iterator[tuple[int, TideError]]:
    while failed:
        yield failed.pop(0)


def _in_order(
    finished: Iterator[tuple[int, Result | TideError]],
) -> Iterator[tuple[int, Result | TideError]]:
    waiting: dict[int, Result | TideError] = {}
    turn = 0
    for number, result in finished:
        waiting[number] = result
        while turn in waiting:
            yield turn, waiting.pop(turn)
            turn += 1

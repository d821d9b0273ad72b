"""The verb: prompts in, detoxified completions out, with everything that was tried on the way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tide.config import Settings
from tide.engines import REGISTRY as ENGINES
from tide.engines.base import Engine
from tide.errors import InputError, UnresolvedError
from tide.presets import preset_values
from tide.results import Result, Trial
from tide.scheduler import Search, run_searches
from tide.scorers import Scorer, load_scorer
from tide.search import REGISTRY as STRATEGIES
from tide.search import Problem
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
    engine: name of the engine that loads `model`.
    preset: step sizes; "auto" chooses by the model's name.
    settings: used as given, without a preset.
    engine_options: for the engine (`device`, `dtype`, `max_batch`, ...).
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
        self._strategy = STRATEGIES.load(self.settings.strategy)
        create_engine = ENGINES.load(engine)
        self.scorer = load_scorer(scorer)
        self.engine: Engine = (
            model if isinstance(model, Engine) else create_engine(model, **(engine_options or {}))
        )

    def __call__(self, prompt: str) -> Result:
        """Complete one prompt. The result is the same as in `map` with any other prompts."""
        return next(self.map([prompt]))

    def map(self, prompts: Iterable[str], *, ordered: bool = True) -> Iterator[Result]:
        """Complete many prompts together, yielding each result once.

        ordered: yield in the order of the prompts; otherwise as they finish. Prompts are taken from
        the iterable as they are needed. Raises as the constructor does, and UnresolvedError
        if nothing was accepted and `on_unresolved="raise"`; results yielded before are valid.
        """
        return (result for _, result in self.map_numbered(prompts, ordered=ordered))

    def map_numbered(
        self, prompts: Iterable[str], *, ordered: bool = True
    ) -> Iterator[tuple[int, Result]]:
        """As `map`, with the number of each prompt, from 0, beside its result."""
        if isinstance(prompts, str):
            raise InputError("prompts: expected several texts, got one string; wrap it in a list")
        finished = self._finished(iter(prompts))
        return _in_order(finished) if ordered else finished

    def check(self, prompts: Sequence[str]) -> None:
        """Raise InputError for the first prompt that could not be completed, before any work."""
        for number, prompt in enumerate(prompts):
            if not isinstance(prompt, str) or not prompt.strip():
                raise InputError(f"prompt {number}: empty; a prompt needs at least one character")
        limit = self.engine.context_length
        if limit is None:
            return
        room = limit - self.settings.max_new_tokens
        for number, ids in enumerate(self.engine.tokenize(prompts)):
            if len(ids) > room:
                raise InputError(
                    f"prompt {number}: {len(ids)} tokens + {self.settings.max_new_tokens} new ones "
                    f"exceed the model's context of {limit}; shorten it or lower max_new_tokens"
                )

    def close(self) -> None:
        """Free the engine and the scorer."""
        self.engine.close()
        self.scorer.close()

    def __enter__(self) -> Detoxifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _finished(self, prompts: Iterator[str]) -> Iterator[tuple[int, Result]]:
        texts: dict[int, str] = {}
        trials: dict[int, list[Trial]] = {}
        searches = self._searches(prompts, texts)
        for search in run_searches(searches, self.engine, self.scorer, self.settings):
            number = search.prompt_number
            trials.setdefault(number, []).append(self._trial(search, texts[number]))
            if len(trials[number]) == self.settings.num_trials:
                in_order = sorted(trials.pop(number), key=lambda trial: trial.number)
                yield number, Result(prompt=texts.pop(number), trials=tuple(in_order))

    def _searches(self, prompts: Iterator[str], texts: dict[int, str]) -> Iterator[Search]:
        first = 0
        while chunk := list(itertools.islice(prompts, _EMBED_CHUNK)):
            self.check(chunk)
            for number, embedded in enumerate(self.engine.embed(chunk), start=first):
                texts[number] = embedded.text
                movable = ~embedded.special
                if self.settings.perturb == "all":
                    movable = torch.ones_like(movable)
                elif not movable.any():
                    raise InputError(
                        f"prompt {number}: only special tokens; perturb='all' would move them"
                    )
                for trial in range(self.settings.num_trials):
                    seed = derive_seed(self.settings.seed, embedded.text, trial)
                    problem = Problem(embedded.embeddings, movable, seed, self.engine.dtype)
                    strategy = self._strategy(problem, self.settings)
                    yield Search(number, trial, seed, strategy)
            first += len(chunk)

    def _trial(self, search: Search, prompt: str) -> Trial:
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
            trace=tuple(search.trace),
        )


def _in_order(finished: Iterator[tuple[int, Result]]) -> Iterator[tuple[int, Result]]:
    waiting: dict[int, Result] = {}
    turn = 0
    for number, result in finished:
        waiting[number] = result
        while turn in waiting:
            yield turn, waiting.pop(turn)
            turn += 1

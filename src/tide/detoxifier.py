"""The verb: prompts in, detoxified completions out, with everything that was tried on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tide.config import Overrides, Settings
from tide.engines import REGISTRY as ENGINES
from tide.engines import Engine, load_engine
from tide.engines.base import check_sampling
from tide.errors import EngineError, InputError, ScorerBroken, ScorerUnavailable, TideError
from tide.job import CHUNK, Job, check_length, check_prompt, open_jobs
from tide.presets import preset_values
from tide.results import Result
from tide.scheduler import Scheduler, Search
from tide.scorers import Scorer, load_scorer
from tide.search import LoadedStrategy, load_strategy

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

# What concerns every prompt, and so stops the work on all of them.
_STOPS = (EngineError, ScorerUnavailable, ScorerBroken)


class Loaded:
    """A model, a scorer and settings: what `Detoxifier` and `AsyncDetoxifier` have in common."""

    def __init__(
        self,
        model: str | Path | Engine = "pocket",
        *,
        scorer: str | Scorer | Callable[[list[str]], Any] = "pocket",
        engine: str = "transformers",
        preset: str = "auto",
        settings: Settings | None = None,
        engine_options: dict[str, Any] | None = None,
        **overrides: Unpack[Overrides],
    ) -> None:
        name = model.name if isinstance(model, Engine) else str(model)
        base = preset_values(preset, name) if settings is None else settings.model_dump()
        self.settings = Settings.of(base, overrides)
        # Cheap mistakes first: a wrong name should not cost loading a model.
        load_strategy(self.settings.strategy)
        ENGINES.load(engine)
        self.scorer = load_scorer(scorer)
        self.engine: Engine = (
            model
            if isinstance(model, Engine)
            else load_engine(engine, model, **(engine_options or {}))
        )
        check_sampling(self.engine, self.settings)
        self._start()

    def _start(self) -> None:
        """What a subclass needs before its first call."""

    def check(self, prompts: Sequence[str]) -> list[InputError | None]:
        """For each prompt, why it cannot be completed, before any work; None if it can."""
        found: list[InputError | None] = []
        for start in range(0, len(prompts), CHUNK):
            chunk = prompts[start : start + CHUNK]
            problems = [_problem(check_prompt, prompt) for prompt in chunk]
            good = [prompt for prompt, no in zip(chunk, problems, strict=True) if no is None]
            ids = iter(self.engine.tokenize(good))
            limit = self.engine.context_length
            found += [
                no or _problem(check_length, len(next(ids)), self.settings, limit)
                for no in problems
            ]
        return found

    def close(self) -> None:
        """Free the engine and the scorer."""
        self.engine.close()
        self.scorer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _resolve(self, overrides: Overrides) -> tuple[Settings, LoadedStrategy]:
        settings = Settings.of(self.settings.model_dump(), overrides)
        check_sampling(self.engine, settings)
        return settings, load_strategy(settings.strategy)


class Detoxifier(Loaded):
    """Completes prompts with text that a scorer accepts, by moving the prompt embeddings.

        detox = Detoxifier("openai-community/gpt2-large", scorer="detoxify:original")
        result = detox("So, I'm starting to think she's full of")
        result.text, result.toxicity, result.accepted, result.trace

    model: folder, hub id, "pocket" (bundled), or an Engine.
    scorer: spec, Scorer, or a function from texts to scores in [0, 1].
    engine: name of the engine that runs `model`: "transformers", "vllm" or "remote".
    preset: step sizes; "auto" chooses by the model's name.
    settings: used as given, without a preset.
    engine_options: for the engine (`device`, `dtype`, `max_batch`, `base_urls`, ...).
    Further keywords override single settings, as in `Detoxifier(mu=0.1, num_trials=3)`.

    Raises InputError, EngineError, ScorerError or MissingDependencyError, each with one line that
    says what to change.
    """

    def __call__(self, prompt: str, **overrides: Unpack[Overrides]) -> Result:
        """Complete one prompt. The result is the same as in `map` with any other prompts.

        Keywords override settings for this call alone. Raises as `map` does.
        """
        ((_, result),) = self._run([prompt], None, overrides)
        if isinstance(result, TideError):
            raise result
        return result

    def map(
        self,
        prompts: Iterable[str],
        *,
        ordered: bool = True,
        progress: bool = False,
        **overrides: Unpack[Overrides],
    ) -> Iterator[Result]:
        """Complete many prompts together, yielding each result once.

        ordered: yield in the order of the prompts; otherwise as they finish. progress: show a bar.
        Prompts are taken from the iterable as they are needed. Keywords override settings for these
        prompts. Raises as the constructor does, InputError for a prompt that is empty or too long,
        and UnresolvedError if nothing was accepted and `on_unresolved="raise"`, each with the
        number of the prompt; results yielded before are valid.
        """
        finished = self.map_numbered(prompts, ordered=ordered, **overrides)
        if progress:
            from rich.progress import track  # noqa: PLC0415  (only where a bar is wanted)

            total = len(prompts) if isinstance(prompts, Sized) else None
            finished = iter(track(finished, "detoxifying", total=total, transient=True))
        return _or_raise(finished)

    def map_numbered(
        self,
        prompts: Iterable[str],
        *,
        ordered: bool = True,
        trials: Sequence[int] | None = None,
        **overrides: Unpack[Overrides],
    ) -> Iterator[tuple[int, Result | TideError]]:
        """As `map`, with the number of each prompt, from 0; a prompt that fails does so alone.

        In place of its result comes the error. What concerns every prompt is still raised:
        EngineError, ScorerUnavailable, and ScorerBroken for a scorer that also fails for a text of
        our own choosing. trials: numbers of the trials to run, instead of all `num_trials`; a
        trial's result does not depend on the others.
        """
        if isinstance(prompts, str):
            raise InputError("prompts: expected several texts, got one string; wrap it in a list")
        finished = self._run(prompts, trials, overrides)
        return _in_order(finished) if ordered else finished

    def _run(
        self, prompts: Iterable[str], trials: Sequence[int] | None, overrides: Overrides
    ) -> Iterator[tuple[int, Result | TideError]]:
        settings, strategy = self._resolve(overrides)
        jobs = (Job(i, prompt, settings, strategy, trials) for i, prompt in enumerate(prompts))
        entering = open_jobs(jobs, self.engine)
        more = True
        with Scheduler(self.engine, self.scorer) as scheduler:
            while more or not scheduler.idle:
                while more and scheduler.has_room():
                    opened = next(entering, None)
                    if isinstance(opened, Search):
                        scheduler.submit(opened)
                    elif opened is not None and opened.outcome is not None:
                        yield opened.number, opened.outcome
                    more = opened is not None
                for search in scheduler.step():
                    if isinstance(search.error, _STOPS):
                        raise search.error
                    job: Job = search.tag
                    outcome = job.take(search)
                    if outcome is not None:
                        yield job.number, outcome


def _problem(check: Callable[..., None], *arguments: Any) -> InputError | None:
    try:
        check(*arguments)
    except InputError as error:
        return error
    return None


def _or_raise(finished: Iterator[tuple[int, Result | TideError]]) -> Iterator[Result]:
    for number, result in finished:
        if isinstance(result, TideError):
            result.args = (f"prompt {number}: {result}",)
            raise result
        yield result


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

"""The verb: prompts in, detoxified completions out, with everything that was tried on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tide.core.chat import Chat
from tide.core.errors import EngineError, InputError, ScorerBroken, ScorerUnavailable, TideError
from tide.core.results import Result
from tide.core.settings import Overrides, Settings
from tide.detoxifier.presets import preset_values
from tide.engines import REGISTRY as ENGINES
from tide.engines import Engine, load_engine
from tide.engines.base import check_sampling, text_of
from tide.runtime.job import CHUNK, Job, check_length, for_stream, open_jobs
from tide.runtime.scheduler import Scheduler
from tide.scorers import Scorer, load_scorer
from tide.search import LoadedStrategy, load_strategy
from tide.search.settings import resolve_settings

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_T = TypeVar("_T")
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
        preset: str | Path = "auto",
        settings: Settings | None = None,
        engine_options: dict[str, Any] | None = None,
        **overrides: Unpack[Overrides],
    ) -> None:
        name = model.name if isinstance(model, Engine) else str(model)
        base = preset_values(preset, name) if settings is None else settings.model_dump()
        self.settings = resolve_settings(base, overrides)
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

    def check(self, prompts: Sequence[str | Chat]) -> list[InputError | None]:
        """For each prompt, why it cannot be completed, before any work; None if it can."""
        found: list[InputError | None] = []
        for start in range(0, len(prompts), CHUNK):
            chunk = prompts[start : start + CHUNK]
            texts = [_or_why_not(text_of, prompt, self.engine) for prompt in chunk]
            good = [text for text in texts if isinstance(text, str)]
            ids = iter(self.engine.tokenize(good))
            limit = self.engine.context_length
            found += [
                _or_why_not(check_length, len(next(ids)), self.settings, limit)
                if isinstance(text, str)
                else text
                for text in texts
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
        settings = resolve_settings(self.settings.model_dump(), overrides)
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
    preset: step sizes; "auto" chooses by the model's name; or a file that `tide tune` wrote.
    settings: used as given, without a preset.
    engine_options: for the engine (`device`, `dtype`, `max_batch`, `base_urls`, ...).
    Further keywords override single settings, as in `Detoxifier(mu=0.1, num_trials=3)`.

    Raises InputError, EngineError, ScorerError or MissingDependencyError, each with one line that
    says what to change.
    """

    def __call__(self, prompt: str | Chat, **overrides: Unpack[Overrides]) -> Result:
        """Complete a prompt or answer a chat. The result is that of `map` with any other prompts.

        Keywords override settings for this call alone. Raises as `map` does.
        """
        ((_, result),) = self._run([prompt], None, overrides)
        if isinstance(result, TideError):
            raise result
        return result

    def chat(self, messages: Sequence[Any], **overrides: Unpack[Overrides]) -> Result:
        """Answer a conversation: `[{"role": "user", "content": "..."}, ...]`.

        Roles are system, user and assistant, and the last message is a user's. Raises InputError,
        as for a model without a chat template, and what a call raises.
        """
        return self(Chat.of(messages), **overrides)

    def stream(
        self, prompt: str | Chat, **overrides: Unpack[Overrides]
    ) -> Generator[str | Result, None, None]:
        """Complete one prompt, yielding each part of the text once it is accepted; then the result.

        The parts joined are `result.text`. What was yielded is never given up, and nothing that was
        not accepted is yielded: `on_unresolved="best"` is "refuse" here. Raises as a call does,
        after what was accepted before.
        """
        settings, strategy = self._resolve(for_stream(overrides, self.settings))
        texts: deque[str] = deque()
        job = Job(0, prompt, settings, strategy, give=texts.append)
        return self._stream(job, texts)

    def _stream(self, job: Job, texts: deque[str]) -> Generator[str | Result, None, None]:
        for _, result in self._finish(iter([job]), texts):
            while texts:
                yield texts.popleft()
            if isinstance(result, TideError):
                raise result
            if result is not None:
                yield result

    def map(
        self,
        prompts: Iterable[str | Chat],
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
        prompts: Iterable[str | Chat],
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
        self, prompts: Iterable[str | Chat], trials: Sequence[int] | None, overrides: Overrides
    ) -> Iterator[tuple[int, Result | TideError]]:
        settings, strategy = self._resolve(overrides)
        jobs = (Job(i, prompt, settings, strategy, trials) for i, prompt in enumerate(prompts))
        return ((number, found) for number, found in self._finish(jobs) if found is not None)

    def _finish(
        self, jobs: Iterator[Job], texts: Collection[str] = ()
    ) -> Iterator[tuple[int, Result | TideError | None]]:
        """The number and the outcome of each job as it ends; None where there are `texts` to take.

        Raises what concerns every prompt.
        """
        entering = open_jobs(jobs, self.engine)
        more = True
        with Scheduler(self.engine, self.scorer) as scheduler:
            while more or not scheduler.idle:
                while more and scheduler.has_room():
                    opened = next(entering, None)
                    if isinstance(opened, Job):
                        if opened.outcome is not None:
                            yield opened.number, opened.outcome
                    elif opened is not None:
                        scheduler.submit(opened)
                    more = opened is not None
                ended = scheduler.step()
                if texts:
                    yield 0, None
                for work in ended:
                    if isinstance(work.error, _STOPS):
                        raise work.error
                    job: Job = work.tag
                    outcome = job.take(work)
                    if outcome is not None:
                        yield job.number, outcome


def _or_why_not(check: Callable[..., _T], *arguments: Any) -> _T | InputError:
    try:
        return check(*arguments)
    except InputError as error:
        return error


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

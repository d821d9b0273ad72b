"""Base class of both detoxifiers: holds model, scorer and settings; runs prompts in the engine."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import anyio
from anyio.to_thread import run_sync as in_thread

from tide.core.chat import Chat, Rendered, forms_of
from tide.core.concurrency import gather
from tide.core.errors import ContextLengthError, EngineError, InputError, PromptRefusedError
from tide.core.results import Result, format_score
from tide.core.sanitize import Unread
from tide.core.settings import Overrides, Settings
from tide.detoxifier.presets import preset_values
from tide.engines import load_engine
from tide.engines.base import Engine, Prompt, name_of
from tide.runtime.draw import draw
from tide.runtime.rewind import rewind
from tide.runtime.search import search
from tide.runtime.trial import TrialTask
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.scorers.base import AsyncScorer, Exchange, Scorer, close_scorer
from tide.scorers.scoring import Scoring
from tide.search import LoadedStrategy, resolve

if TYPE_CHECKING:
    from torch.nn import Module

CLOSED = "the work was cancelled because its stream or the detoxifier was closed"
_T = TypeVar("_T")


def result_of(future: Future[_T]) -> _T:
    """Await the result of started work. Raises EngineError if the work was cancelled."""
    try:
        return future.result()
    except CancelledError:
        raise EngineError(CLOSED) from None


_LOG = logging.getLogger(__name__)
# Running prompts per sequence of the engine: more than one, because some prompts wait for scores.
_AHEAD = 2
# Prompts are served in order of arrival, also across detoxifiers that share an engine.
_NUMBERS = count()
# Longer texts (in characters) are tokenised in a thread, because that takes a while.
_LONG = 20_000
# More messages and tool calls are rendered in a thread also where no template renders them.
_MANY = 100
# Maximum characters per token. A text with more characters than the context times this number is
# refused at once.
_CHARACTERS = 64
# Litellm, LangChain and pydantic-ai tell the error of a long prompt from others by these words.
_TOO_LONG = "the prompt is too long: this model's maximum context length is"


class DetoxifierBase:
    """Base class of detoxifiers; takes the arguments of `Detoxifier`."""

    _warned = False

    def __init__(
        self,
        model: str | Path | Engine | Module = "pocket",
        *,
        scorer: str | Scorer | AsyncScorer | Callable[[list[Any]], Any] = DEFAULT_SCORER,
        engine: str = "transformers",
        preset: str = "auto",
        settings: Settings | None = None,
        device: str | None = None,
        dtype: str | None = None,
        max_batch: int | None = None,
        engine_options: Mapping[str, Any] | None = None,
        **overrides: Unpack[Overrides],
    ) -> None:
        keywords = {"device": device, "dtype": dtype, "max_batch": max_batch}
        named = {option: value for option, value in keywords.items() if value is not None}
        options = {**named, **(engine_options or {})}
        # Names and settings are checked before a model is loaded, which takes long.
        name = name_of(model)
        argument: Any = settings  # callers may not check types
        if argument is None:
            initial = preset_values(preset, name, overrides.get("strategy"))
        elif isinstance(argument, Settings):
            initial = argument.model_dump(exclude_unset=True)
        else:
            raise InputError("settings: expected tide.Settings; or give keywords, as in seed=1")
        self.settings, self._strategy = resolve(initial, overrides)
        if options and isinstance(model, Engine):
            raise InputError(
                f"{min(options)}: give it to load_engine; this engine is loaded already"
            )
        # The caller closes objects that the caller passed in.
        with ExitStack() as loaded:
            self.scorer = load_scorer(scorer)
            if isinstance(scorer, str):
                loaded.callback(close_scorer, self.scorer)
            self._scoring = Scoring(self.scorer)
            if isinstance(model, Engine):
                self.engine: Engine = model
            else:
                self.engine = loaded.enter_context(load_engine(engine, model, **options))
            self._check(self.settings, self._strategy)
            self._loaded = loaded.pop_all()
        self._closed = False
        self._capacity = anyio.Semaphore(_AHEAD * self.engine.max_batch)
        self._under_way: set[Future[Any]] = set()

    @property
    def closed(self) -> bool:
        """Whether the detoxifier no longer accepts calls."""
        return self._closed or self.engine.closed

    def close(self) -> None:
        """End pending calls with EngineError, and free the engine and the scorer.

        An `Engine` or a `Scorer` that was given as an object stays open for its other users.
        """
        if self._closed:
            return
        self._closed = True
        for future in list(self._under_way):
            future.cancel()
        self._loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _warn_if_not_accepted(self, result: Result) -> Result:
        """Return `result`; warn once if `result` was neither accepted nor withheld."""
        best = result.best
        if not (best.accepted or best.refused or best.empty or self._warned):
            self._warned = True
            _LOG.warning(
                "a completion is returned although it was not accepted: check `accepted`, "
                'or set on_unresolved="refuse" or "raise" (shown once)'
            )
        return result

    def _start(
        self,
        prompt: str | Chat,
        settings: Settings,
        strategy: LoadedStrategy,
        trials: Sequence[int] | None = None,
        *,
        on_text: Callable[[str], None] | None = None,
    ) -> Future[Result]:
        """Begin to complete a prompt; cancelling the future ends the work.

        trials: numbers of the trials to run; None means all. on_text: called with accepted text.
        """
        numbers = range(settings.num_trials) if trials is None else trials

        async def work() -> Result:
            # Only EngineError, SCORER_DOWN and ScorerBrokenError concern other prompts, too.
            async with self._capacity:
                tasks = await self._tasks(prompt, settings, strategy, numbers, on_text)
                await self._check_prompt(prompt, tasks[0].settings)
                run = rewind if strategy.rewinds else search
                if settings.in_parts(tasks[0].chat):
                    run = draw
                trials_done = await gather(run(task, self.engine, self._scoring) for task in tasks)
            return Result(prompt=str(tasks[0].prompt.text), trials=tuple(trials_done))

        return self._begin(work)

    def _begin(self, work: Callable[[], Awaitable[_T]]) -> Future[_T]:
        """Begin `work` in the engine's loop; `close` ends `work`."""
        future = self.engine.portal.start(work)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        if self._closed:  # by another thread meanwhile
            future.cancel()
        return future

    async def _tasks(
        self,
        prompt: str | Chat,
        settings: Settings,
        strategy: LoadedStrategy,
        trials: Sequence[int],
        on_text: Callable[[str], None] | None,
    ) -> list[TrialTask]:
        """Prepare the trials of a prompt; all trials share the prompt's tokens and settings."""
        priority, limit = next(_NUMBERS), self.engine.context_length
        chat = prompt if isinstance(prompt, Chat) else None
        if chat is not None and settings.server_fields is not None:
            chat = chat.asking(forms_of(settings.server_fields))
        # Without this check, rendering many messages would take long.
        if chat is not None and limit is not None and len(chat.messages) > limit:
            raise ContextLengthError(
                f"{_TOO_LONG} {limit} tokens, and these are {len(chat.messages)} messages"
            )
        if chat is None:
            text = self.engine.text_of(prompt)
        else:
            calls = sum(len(message.tool_calls) for message in chat.messages)
            if self.engine.in_process or len(chat.messages) + calls > _MANY:
                # A chat template may be slow, and other prompts share this loop.
                text = await in_thread(self.engine.text_of, chat, abandon_on_cancel=True)
            else:  # the server has the template
                text = self.engine.text_of(chat)
            settings = settings.for_chat(self.engine.chat_sampling)
        if settings.server_fields is not None:
            settings = settings.for_server()
        read = await self._tokenized(text, settings)
        if chat is not None and limit is not None:
            settings = settings.within(limit - len(read.token_ids))
        names = self._scoring.scorer.highest_of
        return [
            TrialTask(read, settings, strategy, n, priority, on_text, chat, names) for n in trials
        ]

    async def _tokenized(self, text: str, settings: Settings) -> Prompt:
        """Tokenise a prompt. Raises InputError for a prompt that cannot be completed."""
        limit = self.engine.context_length
        if limit is not None and len(text) > _CHARACTERS * limit:
            raise ContextLengthError(
                f"{_TOO_LONG} {limit} tokens, and these are {len(text)} characters"
            )
        if len(text) > _LONG:
            prompt = await in_thread(self.engine.encode, text, abandon_on_cancel=True)
        else:
            prompt = self.engine.encode(text)
        count, new_tokens = len(prompt.token_ids), settings.max_new_tokens
        # If no length was requested, a chat needs room for only the shortest answer.
        if isinstance(text, Rendered) and "max_new_tokens" not in settings.model_fields_set:
            new_tokens = max(1, settings.min_new_tokens)
        if count == 0:
            raise InputError("the prompt is empty; the tokenizer gives no tokens for it")
        if limit is not None and count + new_tokens > limit:
            raise ContextLengthError(
                f"{_TOO_LONG} {limit} tokens, and these are {count} + {new_tokens} new tokens; "
                "shorten the prompt or lower max_new_tokens"
            )
        return prompt

    async def _check_prompt(self, prompt: str | Chat, settings: Settings) -> None:
        """Raise PromptRefusedError for a prompt that scores above `refuse_prompt_above`.

        A scorer that reads exchanges gets the prompt or the conversation without an answer. If the
        client has begun the answer, it also gets the conversation up to there: guards judge the
        last message.
        """
        limit = settings.refuse_prompt_above
        if limit is None:
            return
        try:
            texts = prompt.unanswered if isinstance(prompt, Chat) else [prompt]
        except Unread:
            raise PromptRefusedError("the chat's tool calls or results cannot be read") from None
        if self._scoring.scorer.reads == "exchange":
            contexts = [prompt]
            if isinstance(prompt, Chat):
                contexts.append(prompt.before_answer)
            exchanges = [Exchange(context, "") for context in dict.fromkeys(contexts)]
        else:
            exchanges = [Exchange("", text) for text in texts]
        score = max(score.value for score in await self._scoring.send(exchanges))
        if score > limit:
            raise PromptRefusedError(
                f"the prompt scores {format_score(score, False)}, above "
                f"refuse_prompt_above={limit:g}; nothing was generated"
            )

    def _resolve(self, overrides: Overrides) -> tuple[Settings, LoadedStrategy]:
        if self._closed:
            raise EngineError("the detoxifier is closed; make a new one")
        if not overrides:
            return self.settings, self._strategy
        initial = {**self.settings.model_dump(exclude_unset=True), "strategy": self._strategy}
        settings, strategy = resolve(initial, overrides)
        self._check(settings, strategy)
        return settings, strategy

    def _check(self, settings: Settings, strategy: LoadedStrategy) -> None:
        """Raise InputError for settings that the engine or the scorer does not support."""
        self.engine.check_sampling(settings)
        names = self._scoring.scorer.attributes
        for name in settings.thresholds:
            if name not in names:
                has = f"it has {', '.join(names)}" if names else "it has no attributes"
                problem = f"scorer {self.scorer.name} has no attribute {name!r}; {has}"
                raise InputError(f"thresholds: {problem}")
        if strategy.moves and not self.engine.has_embeddings:
            raise InputError(
                f"strategy {strategy.name}: moves prompt embeddings, which this engine "
                "does not have; use backtrack or resample"
            )

    def _for_stream(self, overrides: Overrides) -> Overrides:
        """Adapt `overrides` to a call that gives out the text while it is written.

        Raises InputError for more than one trial.
        """
        if overrides.get("num_trials", self.settings.num_trials) != 1:
            raise InputError("num_trials: must be 1 for a stream")
        if overrides.get("on_unresolved", self.settings.on_unresolved) == "best":
            return {**overrides, "on_unresolved": "refuse"}
        return overrides

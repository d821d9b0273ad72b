"""From one prompt to its result: read, generate, check, repair, collect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from tide.core.chat import Chat, Rendered
from tide.core.concurrency import gather
from tide.core.errors import DeadlineError, InputError, PromptRefusedError
from tide.core.results import Result, Trial, format_score
from tide.core.settings import Settings
from tide.engines.base import Engine, Prompt
from tide.runtime.long_answer import LongAnswer
from tide.runtime.scoring import Scoring
from tide.runtime.search import Memory, Search, TrialTask, made_trial, start_of
from tide.scorers.base import Scorer
from tide.search import LoadedStrategy

# Prompts under way, of what the engine runs at once: enough for those whose texts are scored.
_AHEAD = 2
# Longer texts are tokenised in a thread: they take a while.
_LONG = 20_000
# Characters of a token; no text of more than so many for each that fits is tokenised.
_CHARACTERS = 64


class Runtime:
    """Answers prompts with an engine and a scorer; lives in the engine's home loop."""

    def __init__(self, engine: Engine, scorer: Scorer) -> None:
        self.engine, self.scoring = engine, Scoring(scorer)
        self._room = anyio.Semaphore(_AHEAD * engine.max_batch)

    def close(self) -> None:
        """Let the scorer's thread end."""
        self.scoring.close()

    def answering(
        self,
        prompt: str | Chat,
        settings: Settings,
        strategy: LoadedStrategy,
        priority: int,
        trials: Sequence[int],
        *,
        on_text: Callable[[str], None] | None = None,
    ) -> Callable[[], Awaitable[Result]]:
        """Returns a coroutine function for the engine's loop: runs `trials`, by their numbers.

        Its errors are this prompt's, except EngineError, SCORER_DOWN and ScorerBrokenError.
        priority: the lowest is served first. on_text: called with each part of the one trial's text
        once it is accepted.
        """

        async def answer() -> Result:
            async with self._room:
                text = self.engine.text_of(prompt)
                own = settings_for(prompt, settings, self.engine)
                read = await read_prompt(self.engine, text, own)
                limit = self.engine.context_length
                if limit is not None and isinstance(prompt, Chat):
                    own = own.within(limit - len(read.token_ids))
                if own.refuse_prompt_above is not None:
                    await self._check_prompt(prompt, own.refuse_prompt_above)
                made = await gather(
                    self._trial(TrialTask(read, own, strategy, number, priority, on_text))
                    for number in trials
                )
            return Result(prompt=str(text), trials=tuple(made))

        return answer

    async def _check_prompt(self, prompt: str | Chat, limit: float) -> None:
        """Raise PromptRefusedError for one that scores above `limit`."""
        said = prompt.messages[-1].content if isinstance(prompt, Chat) else prompt
        scores = await self.scoring.send([said], "score")
        score = float(scores.values[0])
        if score > limit:
            raise PromptRefusedError(
                f"the prompt scores {format_score(score, False)}, above "
                f"refuse_prompt_above={limit:g}; nothing was generated"
            )

    async def _trial(self, task: TrialTask) -> Trial:
        if task.settings.in_blocks and self.engine.goes_on(task.prompt.token_ids):
            return await LongAnswer(task, self.engine, self.scoring).run()
        trial = await self._searched(task)
        if task.on_text is not None and trial.accepted:
            task.on_text(trial.text)
        return trial

    async def _searched(self, task: TrialTask) -> Trial:
        """A trial that is searched as a whole."""
        prompt, settings, strategy = task.prompt, task.settings, task.strategy
        start = start_of(prompt, settings, task.seed, self.engine, strategy)
        memory = Memory(self.engine.memory() if strategy.continues else None)
        search = Search(
            strategy.create(start.problem, settings),
            start,
            self.engine,
            self.scoring,
            settings.sampling,
            settings.empty_policy,
            priority=task.priority,
            memory=memory,
        )
        with anyio.move_on_after(settings.deadline) as scope:
            await search.run()
        if scope.cancelled_caught and not search.trace:
            raise DeadlineError(f"no completion was scored within {settings.deadline:g} s")
        chosen = search.best
        passed = settings.passes(search.trace[chosen].toxicity)
        if settings.decode and passed:
            search.find_nearest()
        decoded: dict[str, Any] = {}
        if search.nearest is not None:
            ids = search.nearest
            differing = sum(a != b for a, b in zip(ids, prompt.token_ids, strict=True))
            # Without what the tokenizer puts around a text.
            plain, pairs = prompt.user_mask is None, zip(ids, prompt.fixed_mask, strict=True)
            says = self.engine.texts([[i for i, fixed in pairs if not (plain and fixed)]])[0]
            decoded = {"changed_tokens": differing, "decoded_prompt": says}
        return made_trial(
            task,
            search.trace,
            chosen,
            passed=passed,
            shown=task.on_text is not None,
            iterations=search.iterations,
            scorer_calls=search.scorer_calls,
            likelihood_calls=search.likelihood_calls,
            read_tokens=memory.read_tokens if strategy.continues else 0,
            **decoded,
        )


def settings_for(prompt: str | Chat, settings: Settings, engine: Engine) -> Settings:
    """`settings`, with what they leave open as a chat needs it if the prompt is one."""
    return settings.for_chat(engine.chat_sampling) if isinstance(prompt, Chat) else settings


async def read_prompt(engine: Engine, text: str, settings: Settings) -> Prompt:
    """The tokens of a prompt. Raises InputError for one that cannot be completed."""
    limit = engine.context_length
    if limit is not None and len(text) > _CHARACTERS * limit:
        raise InputError(f"{len(text)} characters do not fit into the model's context of {limit}")
    if len(text) > _LONG:
        prompt = await asyncio.to_thread(engine.encode, text)
    else:
        prompt = engine.encode(text)
    check_length(text, len(prompt.token_ids), settings, limit)
    return prompt


def check_length(text: str, tokens: int, settings: Settings, limit: int | None) -> None:
    """Raise InputError for a prompt of `tokens` tokens that cannot be completed."""
    new = settings.max_new_tokens
    # An answer of a length that nobody asked for is as long as fits.
    if isinstance(text, Rendered) and "max_new_tokens" not in settings.model_fields_set:
        new = 1
    if tokens == 0:
        raise InputError("empty; the tokenizer gives no tokens for it")
    if limit is not None and tokens + new > limit:
        raise InputError(
            f"{tokens} tokens + {new} new ones exceed the model's context of {limit}; "
            "shorten it or lower max_new_tokens"
        )

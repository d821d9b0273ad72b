"""Maps requests to calls of one AsyncDetoxifier, within limits.

Only accepted text is sent: a result that was not accepted has no text, and a stream's pieces were
accepted before they are sent.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio

from tide.core.chat import Chat
from tide.core.errors import InputError, PromptRefusedError
from tide.core.results import Result, Trial
from tide.core.settings import CHAT_TOKENS
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.server.limits import Limits
from tide.server.metrics import Metrics
from tide.server.schemas import (
    ChatRequest,
    CompletionRequest,
    Generation,
    Refused,
    ReplyShape,
    event,
)
from tide.server.tracing import record_completion, record_prompt

_KEEP_ALIVE = ": keep-alive\n\n"
# Of the moving mean of the time that a completion takes, which says when to come again.
_MEMORY = 0.9
# Below this JavaScript's numbers are exact: a seed that a client shows can be sent again.
_SEEDS = 1 << 53

Items = AsyncGenerator[str | Result, None]


@dataclass(frozen=True)
class Call:
    """One completion that was asked for. settings: what differs from the server's.

    tokens_name: what the request calls `max_new_tokens`.
    """

    prompt: str | Chat
    settings: dict[str, Any]
    tokens_name: str


class Serving:
    """Generation for many clients at once.

    detox: decides what is accepted; what is not is refused, whatever its `on_unresolved` says.
    name: of the model, as clients call it.
    """

    def __init__(self, detox: AsyncDetoxifier, name: str, limits: Limits, metrics: Metrics) -> None:
        self.name, self.limits = name, limits
        self._detox, self._metrics = detox, metrics
        self._under_way = 0
        self._seconds = 1.0

    async def whole(self, request: Generation) -> dict[str, Any]:
        """The answer to a request without a stream."""
        calls = self._calls(request)
        found: dict[int, Result] = {}
        async with aclosing(self._run(calls, self._at_once)) as running:
            async for number, item in running:
                if isinstance(item, Result):
                    found[number] = item
        results = [found[number] for number in range(len(calls))]
        shape, traces = self._shape(request), request.tide.trace
        lengths = await self._lengths(calls, request.n)
        told = [
            self._told(one, calls[i], lengths[i // request.n], traces)
            for i, one in enumerate(results)
        ]
        choices = [
            shape.choice(i, given(one.best), reason(one.best), told[i])
            for i, one in enumerate(results)
        ]
        return shape.whole(choices, usage_of(lengths, results), summed(told))

    async def stream(self, request: Generation) -> AsyncGenerator[str, None]:
        """The events of an answer, without those of its end. Raises what `whole` raises."""
        calls, shape = self._calls(request), self._shape(request)
        results: list[Result] = []
        told: list[dict[str, Any]] = []
        lengths: list[int] = []
        async with aclosing(self._run(calls, self._in_pieces)) as running:
            async for number, item in running:
                if item is None:
                    yield _KEEP_ALIVE
                elif isinstance(item, str):
                    yield event(shape.piece(number, item))
                else:
                    results.append(item)
                    lengths = lengths or await self._lengths(calls, request.n)
                    length, traces = lengths[number // request.n], request.tide.trace
                    told.append(self._told(item, calls[number], length, traces))
                    yield event(shape.piece(number, "", reason(item.best), tide=told[-1]))
        if request.stream_options.include_usage:
            yield event(shape.usage(usage_of(lengths, results), summed(told)))

    def check_model(self, model: str | None) -> None:
        if model not in (None, self.name):
            message = f"model {model!r} is not served here; use {self.name!r}"
            raise Refused(404, message, param="model", code="model_not_found")

    def _shape(self, request: Generation) -> ReplyShape:
        return ReplyShape(isinstance(request, ChatRequest), secrets.token_hex(12), self.name)

    def _calls(self, request: Generation) -> list[Call]:
        """The completions that a request asks for: the n of its first prompt, of its second...

        Without a seed they differ between calls; choice i has the request's seed plus i.
        """
        self.check_model(request.model)
        settings, limits = request.settings(), self.limits
        if limits.strict and request.ignored:
            message = f"unknown parameter: {request.ignored}"
            raise Refused(400, message, param=request.ignored.partition(",")[0])
        if settings.get("max_new_tokens", 0) > limits.max_tokens:
            message = f"{request.tokens_name}: at most {limits.max_tokens}, on this server"
            raise Refused(400, message, param=request.tokens_name)
        is_open = "max_new_tokens" not in self._detox.settings.model_fields_set
        if is_open and isinstance(request, ChatRequest) and limits.max_tokens < CHAT_TOKENS:
            settings.setdefault("max_new_tokens", limits.max_tokens)
        highest = self._detox.settings.toxicity_threshold
        if settings.get("toxicity_threshold", 0.0) > highest:
            message = f"at most {highest}: a request can only lower it"
            raise Refused(400, message, param="tide.toxicity_threshold")
        if request.tide.trace and not limits.traces:
            message = "this server shows nothing that was not accepted (tide serve --traces does)"
            raise Refused(400, message, param="tide.trace")
        if isinstance(request, ChatRequest):
            chat = Chat.of([message.plain() for message in request.messages])
            prompts: list[str] | list[Chat] = [chat]
        else:
            assert isinstance(request, CompletionRequest)
            prompts = request.prompt
        count = len(prompts) * request.n
        if count > limits.max_choices:
            message = f"{count} completions; a request may ask for {limits.max_choices}"
            raise Refused(400, message, param="n")
        first = secrets.randbelow(_SEEDS) if request.seed is None else request.seed
        settings |= {"num_trials": 1, "on_unresolved": "refuse"}
        return [
            Call(
                prompts[i // request.n],
                {**settings, "seed": (first + i) % _SEEDS},
                request.tokens_name,
            )
            for i in range(count)
        ]

    async def _run(
        self, calls: Sequence[Call], begin: Callable[[Call], Items]
    ) -> AsyncGenerator[tuple[int, str | Result | None], None]:
        """The calls' output as it arrives, with call numbers; None after a silence.

        Leaving it cancels them. Raises what the first call that fails raises, and Refused if there
        is no room or no time.
        """
        limits = self.limits
        if self._under_way + len(calls) > limits.max_under_way:
            raise Refused.busy("completions", min(60, math.ceil(self._seconds)))
        started = time.monotonic()
        self._count(len(calls))
        queue: asyncio.Queue[tuple[int, str | Result | Exception]] = asyncio.Queue()
        tasks = [asyncio.create_task(_pump(i, begin(one), queue)) for i, one in enumerate(calls)]
        left = len(calls)
        try:
            while left:
                rest = started + limits.request_seconds - time.monotonic()
                if rest <= 0:
                    message = f"no whole answer within {limits.request_seconds:g} seconds"
                    raise Refused(504, message, "server_error", code="deadline")
                arrived = None
                with anyio.move_on_after(min(rest, limits.keep_alive)):
                    arrived = await queue.get()
                if arrived is None:
                    yield 0, None
                    continue
                number, item = arrived
                if isinstance(item, PromptRefusedError):
                    self._metrics.outcomes.labels("prompt_refused").inc()
                if isinstance(item, InputError):
                    raise Refused.of(item, calls[number].tokens_name) from item
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, Result):
                    left -= 1
                    self._metrics.add(item)
                    record_completion(item.best, reason(item.best), tokens(item.best))
                yield number, item
            taken = time.monotonic() - started
            self._seconds += (1 - _MEMORY) * (taken - self._seconds)
        finally:
            self._count(-len(calls))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _at_once(self, call: Call) -> Items:
        yield await self._detox(call.prompt, **call.settings)

    async def _in_pieces(self, call: Call) -> Items:
        """A text as it is accepted."""
        async with self._detox.stream(call.prompt, **call.settings) as stream:
            async for text in stream:
                yield text
            yield stream.result

    def _told(self, result: Result, call: Call, length: int, traces: bool) -> dict[str, Any]:
        """What a completion cost, and how it ended. length: of the prompt, in tokens."""
        best, settings = result.best, self._detox.settings
        is_base = best.accepted and best.base.text == best.text
        evaluations = [
            {**one.model_dump(exclude={"cosine"}), "returned": number == best.chosen}
            for number, one in enumerate(best.trace)
        ]
        return {
            "accepted": best.accepted,
            "empty": best.empty,
            "threshold": call.settings.get("toxicity_threshold", settings.toxicity_threshold),
            "toxicity": best.toxicity,
            "toxicity_before": best.base.toxicity,
            "base_partial": best.base_partial,
            "evaluations": best.evaluations,
            "rounds": best.rounds,
            "forward_tokens": best.forward_tokens(length),
            "scorer_calls": best.scorer_calls,
            "generated_tokens": best.generated_tokens,
            "seed": call.settings["seed"],
            # Without traces it is shown where it was accepted, too.
            **({"base": best.base.text} if traces or is_base else {}),
            **({"trace": evaluations} if traces else {}),
        }

    def _count(self, change: int) -> None:
        self._under_way += change
        self._metrics.under_way.set(self._under_way)

    async def _lengths(self, calls: Sequence[Call], n: int) -> list[int]:
        """Tokens of each prompt, which has n calls."""
        engine = self._detox.engine
        texts = [engine.text_of(call.prompt) for call in calls[::n]]
        rows = await asyncio.to_thread(engine.tokenize, texts)  # of long ones it takes a while
        record_prompt(sum(map(len, rows)))
        return [len(row) for row in rows]


async def _pump(
    number: int, items: Items, queue: asyncio.Queue[tuple[int, str | Result | Exception]]
) -> None:
    try:
        async with aclosing(items) as open_items:
            async for item in open_items:
                queue.put_nowait((number, item))
    except Exception as error:
        queue.put_nowait((number, error))


def given(trial: Trial) -> str:
    """The text that is sent: what was accepted. If refused: what was already streamed."""
    return trial.text if trial.accepted or trial.refused else ""


def tokens(trial: Trial) -> int:
    """Those of the text that leaves."""
    if trial.refused:
        return trial.shown_tokens
    return trial.returned.num_tokens if trial.accepted else 0


def usage_of(lengths: Sequence[int], results: Sequence[Result]) -> dict[str, int]:
    """Tokens of the prompts, each counted once, and of the texts sent."""
    read, written = sum(lengths), sum(tokens(one.best) for one in results)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def reason(trial: Trial) -> str:
    """OpenAI's reason for the end of a text. An empty text of the model is not a refusal."""
    return trial.returned.finish_reason if trial.accepted or trial.empty else "content_filter"


def summed(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The same for a whole answer: its worst completion, and the total cost."""
    whole: dict[str, Any] = {"accepted": all(one["accepted"] for one in told)}
    for key in ("toxicity", "toxicity_before", "rounds"):
        whole[key] = max(one[key] for one in told)
    for key in ("evaluations", "forward_tokens", "scorer_calls"):
        whole[key] = sum(one[key] for one in told)
    return whole

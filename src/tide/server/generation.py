"""Maps requests to calls of their policy's AsyncDetoxifier, within limits.

Where the policy is enforced only accepted text is sent: a result that was not accepted has no text,
and a stream's pieces were accepted before they are sent. Where it is monitored the model's own text
is sent, and scored afterwards.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio

from tide.core.chat import Chat, Parts
from tide.core.errors import InputError, PromptRefusedError
from tide.core.results import Result
from tide.core.settings import CHAT_TOKENS
from tide.detoxifier.asynchronous import AsyncTextStream
from tide.runtime.monitor import Draft
from tide.server.monitor import Monitor
from tide.server.policies import Policies, ServedPolicy
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

Answered = Result | Draft
Items = AsyncGenerator[str | Answered, None]


_TOGETHER: dict[str, Callable[[Iterable[Any]], Any]] = {
    "accepted": all,
    **dict.fromkeys(("toxicity", "toxicity_before", "rounds"), max),
    **dict.fromkeys(("evaluations", "forward_tokens", "scorer_calls"), sum),
}
Afterwards = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Asker:
    """Who asks. number: the request's, in the log. policies: the key's, the usual one first."""

    number: str
    policies: tuple[ServedPolicy, ...]


@dataclass(frozen=True)
class Call:
    """A requested completion. settings: those that differ from the policy's.

    tokens_name: the request's name of `max_new_tokens`.
    """

    policy: ServedPolicy
    prompt: str | Chat
    settings: dict[str, Any]
    tokens_name: str


class Serving:
    """Generation for many clients at once.

    policies: decide which texts are accepted; others are refused, whatever their `on_unresolved`.
    name: the clients' name of the model.
    """

    def __init__(self, policies: Policies, name: str, monitor: Monitor) -> None:
        self.name, self.limits = name, policies.limits
        self._policies, self._metrics, self._monitor = policies, policies.metrics, monitor
        self._under_way = 0
        self._seconds = 1.0

    async def whole(self, request: Generation, asker: Asker) -> tuple[dict[str, Any], Afterwards]:
        """The answer to a request without a stream, and a callback for after it was sent."""
        calls = self._calls(request, asker)
        found: dict[int, Answered] = {}
        async with aclosing(self._run(calls, False)) as running:
            async for number, item in running:
                if isinstance(item, Answered):
                    found[number] = item
        results = [found[number] for number in range(len(calls))]
        shape, traces = self._shape(request), request.tide.trace
        lengths = await self._lengths(calls, request.n)
        told = [
            self._told(one, calls[i], lengths[i // request.n], traces)
            for i, one in enumerate(results)
        ]
        choices = [
            shape.choice(i, given(one), parts_of(one), reason(one), told[i])
            for i, one in enumerate(results)
        ]

        async def afterwards() -> None:
            for number, one in enumerate(results):
                self._watch(calls[number], one, asker, number)

        return shape.whole(choices, usage_of(lengths, results), summed(told)), afterwards

    async def stream(self, request: Generation, asker: Asker) -> AsyncGenerator[str, None]:
        """The events of an answer, without those of its end. Raises the errors of `whole`."""
        calls, shape = self._calls(request, asker), self._shape(request)
        results: dict[int, Answered] = {}
        told: list[dict[str, Any]] = []
        lengths: list[int] = []
        sent: dict[int, int] = {}  # characters of each choice
        async with aclosing(self._run(calls, True)) as running:
            async for number, item in running:
                if item is None:
                    yield _KEEP_ALIVE
                elif isinstance(item, str):
                    sent[number] = sent.get(number, 0) + len(item)
                    yield event(shape.piece(number, item))
                else:
                    results[number] = item
                    lengths = lengths or await self._lengths(calls, request.n)
                    length, traces = lengths[number // request.n], request.tide.trace
                    told.append(self._told(item, calls[number], length, traces))
                    left = given(item)[sent.get(number, 0) :]
                    for chunk in shape.rest(number, left, parts_of(item)):
                        yield event(chunk)
                    yield event(shape.piece(number, "", reason(item), tide=told[-1]))
        if request.stream_options.include_usage:
            yield event(shape.usage(usage_of(lengths, list(results.values())), summed(told)))
        for number, one in results.items():
            self._watch(calls[number], one, asker, number)

    def _watch(self, call: Call, answered: Answered, asker: Asker, number: int) -> None:
        """Have an answer of the model's own scored, now that it was sent."""
        if isinstance(answered, Draft):
            self._monitor.begin(call.policy, call.prompt, answered, asker.number, number)

    def check_model(self, model: str | None) -> None:
        if model not in (None, self.name):
            message = f"model {model!r} is not served here; use {self.name!r}"
            raise Refused(404, message, param="model", code="model_not_found")

    def _shape(self, request: Generation) -> ReplyShape:
        return ReplyShape(isinstance(request, ChatRequest), secrets.token_hex(12), self.name)

    def _policy(self, name: str | None, asker: Asker) -> ServedPolicy:
        """The policy that a request asks for, if its key has it, or the key's usual one."""
        if name is None:
            return asker.policies[0]
        found = next((one for one in asker.policies if one.name == name), None)
        if found is not None:
            return found
        has = f"this key has {', '.join(one.name for one in asker.policies)}"
        if name in self._policies.table.policies:
            message = f"policy {name!r} is not one of this key's; {has}"
            kind, code = "permission_error", "policy_not_allowed"
            raise Refused(403, message, kind, param="tide.policy", code=code)
        raise Refused(400, f"no policy {name!r}; {has}", param="tide.policy")

    def _calls(self, request: Generation, asker: Asker) -> list[Call]:
        """The completions that a request asks for: the n of its first prompt, of its second...

        Without a seed they differ between calls; choice i has the request's seed plus i.
        """
        self.check_model(request.model)
        settings, limits = request.settings(), self.limits
        policy = self._policy(request.tide.policy, asker)
        usual = policy.detox.settings
        if limits.strict and request.ignored:
            message = f"unknown parameter: {request.ignored}"
            raise Refused(400, message, param=request.ignored.partition(",")[0])
        if settings.get("max_new_tokens", 0) > limits.max_tokens:
            message = f"{request.tokens_name}: at most {limits.max_tokens}, on this server"
            raise Refused(400, message, param=request.tokens_name)
        is_open = "max_new_tokens" not in usual.model_fields_set
        if is_open and isinstance(request, ChatRequest) and limits.max_tokens < CHAT_TOKENS:
            settings.setdefault("max_new_tokens", limits.max_tokens)
        highest = usual.toxicity_threshold
        if settings.get("toxicity_threshold", 0.0) > highest:
            message = f"at most {highest}: a request can only lower it"
            raise Refused(400, message, param="tide.toxicity_threshold")
        if request.tide.trace and not limits.traces:
            message = "this server shows nothing that was not accepted (tide serve --traces does)"
            raise Refused(400, message, param="tide.trace")
        if isinstance(request, ChatRequest):
            prompts: list[str] | list[Chat] = [request.chat()]
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
                policy,
                prompts[i // request.n],
                {**settings, "seed": (first + i) % _SEEDS},
                request.tokens_name,
            )
            for i in range(count)
        ]

    async def _run(
        self, calls: Sequence[Call], in_pieces: bool
    ) -> AsyncGenerator[tuple[int, str | Answered | None], None]:
        """The calls' output as it arrives, with call numbers; None after a silence.

        Leaving it cancels them. Raises the first failed call's error, and Refused if there is no
        room or no time.
        """
        limits = self.limits
        if self._under_way + len(calls) > limits.max_under_way:
            raise Refused.busy("completions", min(60, math.ceil(self._seconds)))
        started = time.monotonic()
        self._count(len(calls))
        queue: asyncio.Queue[tuple[int, str | Answered | Exception]] = asyncio.Queue()
        work = [_items(call, in_pieces) for call in calls]
        tasks = [asyncio.create_task(_pump(i, one, queue)) for i, one in enumerate(work)]
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
                if isinstance(item, Answered):
                    left -= 1
                    self._metrics.add(item)
                    best = None if isinstance(item, Draft) else item.best
                    record_completion(best, reason(item), tokens(item))
                yield number, item
            taken = time.monotonic() - started
            self._seconds += (1 - _MEMORY) * (taken - self._seconds)
        finally:
            self._count(-len(calls))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _told(self, answered: Answered, call: Call, length: int, traces: bool) -> dict[str, Any]:
        """Cost and end of a completion. length: of the prompt, in tokens."""
        by = {"policy": call.policy.name, "mode": call.policy.mode, "seed": call.settings["seed"]}
        if isinstance(answered, Draft):
            written = answered.generated_tokens
            cost = {"forward_tokens": written + answered.read_tokens, "generated_tokens": written}
            return {**by, **cost}
        best, settings = answered.best, call.policy.detox.settings
        is_base = best.accepted and best.base.text == best.text
        evaluations = [
            {**one.model_dump(exclude={"cosine"}), "returned": number == best.chosen}
            for number, one in enumerate(best.trace)
        ]
        return {
            **by,
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
            # Without traces it is shown where it was accepted, too.
            **({"base": best.base.text} if traces or is_base else {}),
            **({"trace": evaluations} if traces else {}),
        }

    def _count(self, change: int) -> None:
        self._under_way += change
        self._metrics.under_way.set(self._under_way)

    async def _lengths(self, calls: Sequence[Call], n: int) -> list[int]:
        """Tokens of each prompt, which has n calls."""
        engine = self._policies.engine
        texts = [engine.text_of(call.prompt) for call in calls[::n]]
        rows = await asyncio.to_thread(engine.tokenize, texts)  # of long ones it takes a while
        record_prompt(sum(map(len, rows)))
        return [len(row) for row in rows]


async def _items(call: Call, in_pieces: bool) -> Items:
    """The text in pieces, if so asked for: as it is accepted, or as the model writes it.

    At the end the outcome of the call.
    """
    detox, settings = call.policy.detox, call.settings
    # An answer judged as a whole is given out in the order of a message: first its reasoning.
    is_whole = not in_pieces or detox.settings.in_parts(call.prompt)
    if call.policy.mode == "enforce" and is_whole:
        yield await detox(call.prompt, **settings)
        return
    stream: AsyncTextStream[Any] = (
        detox.stream(call.prompt, **settings)
        if call.policy.mode == "enforce"
        else detox.draft(call.prompt, in_pieces=in_pieces, **settings)
    )
    async with stream as texts:
        async for text in texts:
            yield text
        yield texts.result


async def _pump(
    number: int, items: Items, queue: asyncio.Queue[tuple[int, str | Answered | Exception]]
) -> None:
    try:
        async with aclosing(items) as open_items:
            async for item in open_items:
                queue.put_nowait((number, item))
    except Exception as error:
        queue.put_nowait((number, error))


def given(answered: Answered) -> str:
    """The text that is sent: the accepted one. If refused: the text that was already streamed."""
    if isinstance(answered, Draft):
        return answered.text
    trial = answered.best
    return trial.text if trial.accepted or trial.refused else ""


def parts_of(answered: Answered) -> Parts:
    """The parts that are sent beside the text."""
    return answered.parts if isinstance(answered, Draft) else answered.best.parts


def tokens(answered: Answered) -> int:
    """Those of the text that leaves, and of its other parts."""
    beside = parts_of(answered).num_tokens
    if isinstance(answered, Draft):
        return answered.num_tokens + beside
    trial = answered.best
    if trial.refused:
        return trial.shown_tokens
    return trial.returned.num_tokens + beside if trial.accepted else 0


def reason(answered: Answered) -> str:
    """OpenAI's reason for the end of a text. An empty text of the model is not a refusal."""
    if isinstance(answered, Draft):
        found: str = answered.finish_reason
    else:
        trial = answered.best
        accepted = trial.accepted or trial.empty
        found = trial.returned.finish_reason if accepted else "content_filter"
    return "tool_calls" if found == "stop" and parts_of(answered).tool_calls else found


def usage_of(lengths: Sequence[int], results: Sequence[Answered]) -> dict[str, int]:
    """Tokens of the prompts, each counted once, and of the texts sent."""
    read, written = sum(lengths), sum(map(tokens, results))
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def summed(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The same for a whole answer: its worst completion, and the total cost."""
    whole = {key: told[0][key] for key in ("policy", "mode")}
    for key, together in _TOGETHER.items():
        if all(key in one for one in told):
            whole[key] = together(one[key] for one in told)
    return whole

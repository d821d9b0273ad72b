"""Answers requests by calls of their policy's AsyncDetoxifier, within limits.

Under an enforced policy, only accepted text is sent: a result that was not accepted is sent without
text, and each piece of a stream is accepted before it is sent. Under a monitored policy, the
model's own text is sent first and scored afterwards.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import anyio

from tide.core.chat import Chat, Parts, forms_of
from tide.core.concurrency import Mailbox
from tide.core.errors import PromptRefusedError, TideError
from tide.core.results import FinishReason, Result, Trial, Usage
from tide.core.sanitize import Unread, readings
from tide.core.settings import CHAT_TOKENS, SERVER_TOKENS, Settings
from tide.scorers.base import FALLBACK, Exchange, ScorerWrapper
from tide.server.answers import Refused, Shape, event, reply_of_server
from tide.server.gate import Visit
from tide.server.monitor import Draft, Entry, Monitor
from tide.server.policies import Policies, ServedPolicy
from tide.server.schemas import ChatRequest, CompletionRequest, Generation
from tide.server.telemetry import is_changed, record_evaluation

_PAUSE = 5  # the `Retry-After` of a busy server, in seconds
# A busy server's error is not kept back for long by a busy scorer.
_SECONDS_FOR_AN_ERROR = 5.0
# Seeds are below this number. JavaScript keeps them exact, so clients can send them back.
_SEEDS = 1 << 53

_THRESHOLDS = ("toxicity_threshold", "thresholds")

# What a call puts: pieces of its text, then its result, its draft or its error. None: time passes.
_Item = str | Result | Draft | Exception | None
_Put = Callable[[tuple[int, _Item]], None]
# Members of a trial that are fields of `tide`.
_TOLD = (
    "accepted", "empty", "toxicity", "failed", "flagged", "repairs", "base_partial", "evaluations",
    "rounds", "forward_tokens", "scorer_calls", "generated_tokens",
)  # fmt: skip
# How each field of `tide` is combined over the completions of a response.
_COMBINE: dict[str, Callable[[Iterable[Any]], Any]] = {
    "accepted": all,
    "repaired": any,
    **dict.fromkeys(("toxicity", "toxicity_before", "rounds"), max),
    **dict.fromkeys(("repairs", "evaluations", "forward_tokens", "scorer_calls"), sum),
}


@dataclass(frozen=True)
class Call:
    """A requested completion. settings: overrides of the policy's settings."""

    policy: ServedPolicy
    prompt: str | Chat
    settings: dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """A completion as it is sent, with accepted text, or the model's own text if monitored.

    text: for a refused completion, the text that was already streamed. parts: tool calls and
    reasoning. reason: OpenAI's `finish_reason`. usage: counts the tokens of `text` and `parts`.
    tide: the response's field `tide`. draft: a monitored answer, which is sent unscored.
    """

    text: str
    parts: Parts
    reason: str
    usage: Usage
    tide: dict[str, Any]
    draft: Draft | None = None


class Serving:
    """Generates completions for many clients at once.

    policies: decide which texts are accepted. Other texts are refused, even if the `on_unresolved`
    of a policy would return them. name: see `create_app`.
    """

    def __init__(self, policies: Policies, name: str | None, monitor: Monitor) -> None:
        self._name, self.limits = name, policies.limits
        self._policies, self.metrics, self._monitor = policies, policies.metrics, monitor
        self._under_way = 0

    @property
    def name(self) -> str:
        return self._name or self._policies.engine.name

    @property
    def _passes_fields(self) -> bool:
        """Whether a server behind this gateway reads the fields of requests."""
        return "server_fields" in self._policies.engine.capabilities

    async def whole(
        self, request: Generation, visit: Visit, shape: Shape
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the answer to a request without streaming, and its field `tide`."""
        calls = self.calls(request, visit)
        answers: dict[int, Sent] = {}
        async with aclosing(self._run(request, calls, False)) as running:
            async for number, item in running:
                if isinstance(item, Sent):
                    answers[number] = item
                    visit.log_tokens(item.usage.completion_tokens)
        sent = [answers[number] for number in range(len(calls))]
        tide = summed(sent)
        answer = shape.whole(sent, usage_of(sent, request.n), tide)
        self._watch(calls, answers, visit, is_stream=False)
        return answer, tide

    async def stream(
        self, request: Generation, visit: Visit, shape: Shape
    ) -> AsyncGenerator[str, None]:
        """Yield the events of a streamed answer, without `done`. Raises the errors of `whole`."""
        calls = self.calls(request, visit)
        answers: dict[int, Sent] = {}
        streamed: list[list[str]] = [[] for _ in calls]  # pieces sent so far, by choice
        try:
            async with aclosing(self._run(request, calls, True)) as running:
                async for number, item in running:
                    if item is None:
                        yield shape.keep_alive
                    elif isinstance(item, str):
                        streamed[number].append(item)
                        yield shape.piece(number, item)
                    else:
                        rest = _rest(item.text, "".join(streamed[number]))
                        answers[number] = item
                        visit.log_tokens(item.usage.completion_tokens)
                        for data in shape.end(number, rest, item):
                            yield event(data)
            sent = [answers[number] for number in range(len(calls))]
            for data in shape.finish(usage_of(sent, request.n), summed(sent)):
                yield event(data)
        finally:  # the client may have left, or the model failed
            self._watch(calls, answers, visit, is_stream=True)
            for number, call in enumerate(calls):
                if call.policy.mode == "monitor" and streamed[number] and number not in answers:
                    self._monitor.fail(call.policy, visit.number, number, "the stream ended early")

    def _watch(
        self, calls: Sequence[Call], answers: Mapping[int, Sent], visit: Visit, *, is_stream: bool
    ) -> None:
        """Start to score the answers, if they are monitored or have a shadow."""
        for number, sent in answers.items():
            call = calls[number]
            policy, settings = call.policy, call.settings
            if sent.draft is not None:
                entry = Entry(policy, visit.number, number)
                self._monitor.begin(entry, call.prompt, sent.draft, settings)
                continue
            shadow = self._policies.table.policies.get(policy.stated.shadow or "")
            if shadow is None or not (sent.text or sent.parts.tool_calls):
                continue
            # The shadow has thresholds of its own.
            others = {name: settings[name] for name in settings if name not in _THRESHOLDS}
            reason: FinishReason = "length" if sent.reason == "length" else "stop"
            entry = Entry(shadow, visit.number, number, beside=policy.name)
            draft = Draft(sent.text, sent.parts, reason, is_stream)
            self._monitor.begin(entry, call.prompt, draft, others)

    def check_model(self, model: str | None) -> None:
        if model not in (None, self.name):
            message = f"model {model!r} is not served here; use {self.name!r}"
            raise Refused(404, message, param="model", code="model_not_found")

    def model_of(self, request: Generation) -> str:
        """Return the name of the model that answers a request."""
        return request.model if self._passes_fields and request.model else self.name

    def policy(self, name: str | None, visit: Visit, model: Any) -> ServedPolicy:
        """Return the policy `name` if the key may use it.

        The default is the policy of the model, or else the key's first policy.
        """
        if name is None and isinstance(model, str):
            of_model = self._policies.table.models.get(model)
            if of_model is not None and of_model in visit.policies:
                name = of_model.name
        for policy in visit.policies:
            if name in (None, policy.name):
                visit.logged["policy"] = policy.name
                return policy
        usable = ", ".join(policy.name for policy in visit.policies)
        message = f"policy {name!r} is not allowed; this key may use {usable}"
        kind, code = "permission_error", "policy_not_allowed"
        raise Refused(403, message, kind, param="tide.policy", code=code)

    def calls(self, request: Generation, visit: Visit) -> list[Call]:
        """Return the calls of a request: n for its first prompt, n for its second, and so on.

        Choice i gets the request's seed plus i. A request without a seed gets a random seed.
        """
        settings, limits = request.settings(), self.limits
        policy = self.policy(request.tide.policy, visit, request.model)
        usual = policy.detox.settings
        if not self._passes_fields:
            self.check_model(request.model)
        self._limit_tokens(request, settings, usual)
        highest = usual.toxicity_threshold
        if settings.get("toxicity_threshold", 0.0) > highest:
            message = f"must be at most {highest}; a request can only lower the threshold"
            raise Refused(400, message, param="tide.toxicity_threshold")
        if "thresholds" in settings:
            settings["thresholds"] = _lowered(settings["thresholds"], usual)
        if request.tide.trace and not limits.traces:
            message = "only accepted text is shown; tide serve --traces also shows rejected text"
            raise Refused(400, message, param="tide.trace")
        # A client's fields replace those of the policy.
        fields = (usual.server_fields or {}) | request.for_server()
        forms = forms_of(fields) if self._passes_fields else None
        if isinstance(request, ChatRequest):
            prompts: list[str] | list[Chat] = [request.chat(forms)]
        else:
            assert isinstance(request, CompletionRequest)
            if policy.mode == "enforce" and forms:
                name = next(iter(forms))
                message = f"{name}: strings of JSON are scored in chats; ask /v1/chat/completions"
                raise Refused(400, message, param=name)
            prompts = request.prompt
        count = len(prompts) * request.n
        if count > limits.max_choices:
            message = f"a request may ask for at most {limits.max_choices} completions, not {count}"
            raise Refused(400, message, param="n")
        first = secrets.randbelow(_SEEDS) if request.seed is None else request.seed
        settings |= {"num_trials": 1, "on_unresolved": "refuse"}
        if self._passes_fields:
            for name in ("top_p", "top_k", "min_new_tokens", "repetition_penalty"):
                settings.pop(name, None)  # the server reads them
        calls = []
        for i in range(count):
            sampled = {**settings, "seed": (first + i) % _SEEDS}
            if self._passes_fields:
                sampled["server_fields"] = self._server_fields(request, i, fields)
            calls.append(Call(policy, prompts[i // request.n], sampled))
        return calls

    def _limit_tokens(self, request: Generation, settings: dict[str, Any], usual: Settings) -> None:
        """Refuse too many tokens, and limit a request that names no number. usual: the policy's."""
        most = self.limits.max_tokens
        if settings.get("max_new_tokens", 0) > most:
            message = f"max_tokens: must be at most {most} on this server"
            raise Refused(400, message, param="max_tokens")
        is_open = "max_new_tokens" not in usual.model_fields_set
        length = SERVER_TOKENS if self._passes_fields else CHAT_TOKENS
        is_long = self._passes_fields or isinstance(request, ChatRequest)
        if is_open and is_long and most < length:
            settings.setdefault("max_new_tokens", most)

    def _server_fields(
        self, request: Generation, number: int, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the fields of choice `number` for the server behind a gateway."""
        sent = dict(fields)
        seed = sent.get("seed") if request.seed is None else request.seed
        if seed is not None:
            sent["seed"] = seed + number
        if request.model in (None, self.name):
            sent["model"] = self._policies.engine.name
        return sent

    async def _run(
        self, request: Generation, calls: Sequence[Call], in_pieces: bool
    ) -> AsyncGenerator[tuple[int, str | Sent | None], None]:
        """Yield call numbers with output as it arrives, and None every `keep_alive` seconds.

        Closing the generator cancels the calls. Raises the error of the first call that fails, and
        Refused if too many completions are queued or the time is up.
        """
        limits = self.limits
        if self._under_way + len(calls) > limits.max_under_way:
            raise Refused.busy("completions", _PAUSE)
        until = time.monotonic() + limits.request_seconds
        self._count(len(calls))
        items: Mailbox[tuple[int, _Item]] = Mailbox()
        tasks = [
            asyncio.create_task(_answer(number, call, in_pieces, items.put))
            for number, call in enumerate(calls)
        ]
        tasks.append(asyncio.create_task(_tick(items.put, limits.keep_alive, until)))
        left = len(calls)
        try:
            arriving = _joined(items)
            while left:
                number, item = await anext(arriving)
                if time.monotonic() >= until:
                    message = f"the answer took longer than {limits.request_seconds:g} seconds"
                    raise Refused(504, message, "server_error", code="deadline")
                if item is None:
                    yield 0, None
                    continue
                if isinstance(item, PromptRefusedError):
                    self.metrics.outcomes.labels("prompt_refused").inc()
                if isinstance(item, Exception):
                    raise await _without_unscored(item, calls[number])
                if isinstance(item, str):
                    yield number, item
                    continue
                left -= 1
                sent = self._sent(item, calls[number], request)
                if isinstance(item, Result) and self._passes_fields:
                    sent = await self._counted(sent, item)
                scorer = calls[number].policy.scorer
                sent.tide.update(self.metrics.unread_language(sent.text, scorer))
                if isinstance(item, Result):
                    record_evaluation(item.best)
                yield number, sent
        finally:
            self._count(-len(calls))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _sent(self, outcome: Result | Draft, call: Call, request: Generation) -> Sent:
        """Return the part of a result or draft that is sent."""
        self.metrics.add(outcome)
        by: dict[str, Any] = {"policy": call.policy.name, "mode": call.policy.mode}
        if not self._passes_fields or request.seed is not None:
            by["seed"] = call.settings["seed"]
        if isinstance(outcome, Draft):
            reason = _reason(outcome.finish_reason, outcome.parts)
            return Sent(outcome.text, outcome.parts, reason, outcome.usage, by, outcome)
        altered = is_changed(outcome.best) or (outcome.best.refused and not outcome.best.empty)
        call.policy.budget.count(altered=altered)
        self.metrics.of_policy.labels(call.policy.name, "altered" if altered else "unaltered").inc()
        best, settings, traces = outcome.best, call.policy.detox.settings, request.tide.trace
        is_base = best.accepted and best.base.text == best.text
        tide = {
            **by,
            **{name: getattr(best, name) for name in _TOLD},
            "threshold": call.settings.get("toxicity_threshold", settings.toxicity_threshold),
            "toxicity_before": best.base.toxicity,
            "repaired": best.repairs > 0,
            "scorer": _scorer_of(best, call.policy.scorer),
        }
        # The model's own text is shown only with traces, or if it is the accepted text.
        if traces or is_base:
            tide["base"] = best.base.text
        if traces:
            tide["trace"] = [
                {**evaluation.model_dump(exclude={"cosine"}), "returned": number == best.chosen}
                for number, evaluation in enumerate(best.trace)
            ]
        tokens = best.returned.num_tokens + best.parts.num_tokens if best.accepted else 0
        # An empty text from the model is not a refusal.
        ended = best.accepted or best.empty
        text = best.text if best.accepted or best.refused else ""
        mark = call.policy.stated.repaired_mark
        # An answer in parts may be JSON, which a mark would break.
        if mark and best.repairs and not settings.in_parts(call.prompt):
            text += f" {mark}"
        return Sent(
            text,
            best.parts,
            _reason(best.returned.finish_reason if ended else "content_filter", best.parts),
            Usage(best.prompt_tokens, best.shown_tokens if best.refused else tokens),
            tide,
        )

    async def _counted(self, sent: Sent, result: Result) -> Sent:
        """Count the tokens of an answer as the server behind a gateway counts them."""
        usage, engine = result.best.usage, self._policies.engine
        if usage is not None and not result.best.returned.kept_tokens:
            return replace(sent, usage=usage)
        written = await engine.portal.call(engine.count_tokens, sent.text) + sent.parts.num_tokens
        if usage is None:
            read = await engine.portal.call(engine.count_tokens, result.prompt)
        else:
            # The server read a part of the answer, too, so its details are not of this prompt.
            read = usage.prompt_tokens + usage.completion_tokens - written
        return replace(sent, usage=Usage(read, written))

    def _count(self, change: int) -> None:
        self._under_way += change
        self.metrics.under_way.set(self._under_way)


async def _answer(number: int, call: Call, in_pieces: bool, put: _Put) -> None:
    """Put the pieces of a call's text if `in_pieces`, and then its result, draft or error.

    A piece is put once it is accepted; under a monitored policy, once the model has written it.
    """
    detox, settings = call.policy.detox, call.settings
    enforces = call.policy.mode == "enforce"
    # An answer with tool calls or reasoning is judged and given out as a whole.
    is_whole = not in_pieces or (enforces and detox.settings.in_parts(call.prompt))
    on_text = None if is_whole else lambda text: put((number, text))
    try:
        answer = detox.answer if enforces else detox.draft
        put((number, await answer(call.prompt, on_text, **settings)))
    except Exception as error:
        put((number, error))


async def _without_unscored(error: Exception, call: Call) -> Exception:
    """Return the error, without a server's words unless they pass the scorer of an enforced policy.

    They may quote what the model wrote: llama.cpp quotes tool calls that it cannot parse.
    """
    reply = reply_of_server(error)
    if reply is None or call.policy.mode == "monitor":
        return error
    refused = Refused.by_server(reply)
    texts = [text for text in refused.body.values() if isinstance(text, str) and text.strip()]
    with anyio.move_on_after(_SECONDS_FOR_AN_ERROR):
        if await _passes(texts, call):
            return error
    message = f"the server failed (HTTP {reply.status}); its message was withheld"
    withheld = Refused(refused.status, message, "server_error", code="withheld", again=True)
    withheld.headers = refused.headers
    withheld.__cause__ = error  # for the log
    return withheld


async def _passes(texts: Sequence[str], call: Call) -> bool:
    """Return whether the texts pass the limits of a call, also with their escapes resolved."""
    scoring = call.policy.scoring
    lowered = {name: call.settings[name] for name in _THRESHOLDS if name in call.settings}
    limits = scoring.acceptance.settings.model_copy(update=lowered)
    acceptance = replace(scoring.acceptance, settings=limits)
    try:
        exchanges = [Exchange(call.prompt, read) for text in texts for read in readings(text)]
        scores = await scoring.score(exchanges)
    except (TideError, Unread, Refused):
        return False
    return all(map(acceptance.passes, scores))


async def _joined(items: Mailbox[tuple[int, _Item]]) -> AsyncIterator[tuple[int, _Item]]:
    """Yield what calls put; the pieces of a text that arrived together become one."""
    texts: dict[int, str] = {}
    async for number, item in items:
        if isinstance(item, str):
            texts[number] = texts.get(number, "") + item
            if items.is_waiting:
                continue
        for piece in texts.items():
            yield piece
        texts.clear()
        if not isinstance(item, str):
            yield number, item


async def _tick(put: _Put, interval: float, until: float) -> None:
    """Put None every `interval` seconds and at `until`; a timeout for each item would cost more."""
    while (rest := until - time.monotonic()) > 0:
        await asyncio.sleep(min(rest, interval))
        put((0, None))


def _rest(text: str, streamed: str) -> str:
    """Return what follows the streamed text. Only as its continuation has the rest been scored."""
    if not text.startswith(streamed):
        raise RuntimeError("an answer does not begin with the text that was streamed")
    return text[len(streamed) :]


def _reason(ended: str, parts: Parts) -> str:
    """Return OpenAI's `finish_reason` for an answer."""
    return "tool_calls" if ended == "stop" and parts.tool_calls else ended


def _lowered(limits: Mapping[str, float], usual: Settings) -> dict[str, float]:
    """Add a request's limits of attributes to the policy's. Raises Refused for a higher limit.

    An attribute without a limit in the policy gets at most the policy's `toxicity_threshold`.
    """
    for name, limit in limits.items():
        highest = usual.thresholds.get(name, usual.toxicity_threshold)
        if limit > highest:
            message = f"{name} must be at most {highest}; a request can only lower the threshold"
            raise Refused(400, message, param="tide.thresholds")
    return {**usual.thresholds, **limits}


def _scorer_of(trial: Trial, scorer: ScorerWrapper) -> str:
    """Return the name of the scorer that decided, or of its second scorer if that decided once."""
    decided = any(entry.attributes.get(FALLBACK) for entry in trial.trace)
    return scorer.fallback if decided else scorer.name


def usage_of(sent: Sequence[Sent], n: int) -> dict[str, Any]:
    """Return OpenAI's `usage` of a response. n: number of completions per prompt."""
    answers = [answer.usage for answer in sent]
    read = sum(usage.prompt_tokens for usage in answers[::n])
    written = sum(usage.completion_tokens for usage in answers)
    counts: dict[str, Any] = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
    if details := _added([usage.prompt_tokens_details for usage in answers[::n]]):
        counts["prompt_tokens_details"] = details
    if details := _added([usage.completion_tokens_details for usage in answers]):
        counts["completion_tokens_details"] = details
    return counts


def _added(details: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Add up the kinds of tokens that were counted in all answers."""
    names = set.intersection(*map(set, details))
    return {name: sum(counts[name] for counts in details) for name in sorted(names)}


def summed(sent: Sequence[Sent]) -> dict[str, Any]:
    """Return the field `tide` of a whole response, with its worst scores and its total cost."""
    fields = [answer.tide for answer in sent]
    whole = {key: fields[0][key] for key in ("policy", "mode")}
    for key in ("failed", "flagged"):
        if all(key in field for field in fields):
            whole[key] = list(dict.fromkeys(name for field in fields for name in field[key]))
    for key, combine in _COMBINE.items():
        if all(key in field for field in fields):
            whole[key] = combine(field[key] for field in fields)
    return whole

"""Monitored answers. The model's own text is given out unscored, and the changes that enforcing
would have made are recorded afterwards.

A forecast replays the text through the loop of an enforced answer (`tide.runtime.rewind`), so
monitored and enforced answers follow the same rules.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tide.core.chat import Chat, Parts
from tide.core.errors import PromptRefusedError, first_line
from tide.core.results import FinishReason, Usage
from tide.core.settings import derive_seed
from tide.core.text import HALF, Thoughts
from tide.data.files import appended
from tide.engines.base import Engine, Piece, Request
from tide.runtime.acceptance import Acceptance
from tide.runtime.draw import score_whole
from tide.runtime.rewind import Answer, begin, finish, first_rewind, write_until_failure
from tide.runtime.trial import Effort, TrialTask
from tide.runtime.watch import Watch, written
from tide.scorers.scoring import Scoring
from tide.search.backtrack import BacktrackOptions
from tide.server.gate import LOG, traced

if TYPE_CHECKING:
    from tide.server.policies import Policies, ServedPolicy


@dataclass(frozen=True)
class Draft:
    """An answer that was given out before it is scored.

    parts: tool calls and reasoning. is_stream: whether it was streamed, so it is judged part by
    part. pieces: as the engine wrote them; none of an answer that was passed on. usage: as the
    server counts it; of an answer that was passed on, only the number of words.
    """

    text: str
    parts: Parts
    finish_reason: FinishReason
    is_stream: bool
    pieces: tuple[Piece, ...] = ()
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True)
class Forecast:
    """The effect that enforcing would have had on a draft.

    score: of the whole text, or of the first beginning that fails. character: position to which the
    text would first have been rewound, from 0; None if the text would have been given out
    unchanged. accepted_above: the highest score at any position; at a threshold above it, the
    answer would be given out unchanged.
    """

    score: float
    character: int | None = None
    accepted_above: float = 1.0

    @property
    def would_change(self) -> bool:
        return self.character is not None


async def forecast(draft: Draft, task: TrialTask, engine: Engine, scoring: Scoring) -> Forecast:
    """Forecast the effect of enforcing on a draft. Raises ScorerError, as enforcing does."""
    thoughts = Thoughts()
    text, pieces = draft.text, draft.pieces
    if task.chat is not None and "parts" in engine.capabilities:
        text = thoughts.add(text) + thoughts.end()  # enforced texts have no thoughts
    if task.settings.in_parts(task.chat):
        reasoning = draft.parts.reasoning + thoughts.reasoning
        parts = draft.parts.model_copy(update={"reasoning": reasoning})
        # Enforcing draws such an answer again as a whole if it fails.
        is_cut = draft.finish_reason != "stop"
        score = await score_whole(task, scoring, Effort(), text, parts, is_cut=is_cut)
        above = task.acceptance.accepted_above(score)
        change = None if task.acceptance.passes(score) else 0
        return Forecast(score.value, change, above)
    if thoughts.reasoning or not pieces:
        read = engine.encode(text)
        # The special tokens of a prompt are no part of an answer.
        fixed = zip(read.token_ids, read.fixed_mask, strict=True)
        ids = tuple(token_id for token_id, is_fixed in fixed if not is_fixed)
        pieces = (Piece(ids, draft.finish_reason),)
    return await _forecast_text(task, engine, scoring, text, pieces)


async def _forecast_text(
    task: TrialTask, engine: Engine, scoring: Scoring, text: str, pieces: Sequence[Piece]
) -> Forecast:
    answer = begin(task, engine, scoring)
    failure = await write_until_failure(answer, pieces)
    if failure is not None:
        score, position = failure.score.value, answer.watch.passed
        if task.strategy.rewinds:
            position = await first_rewind(answer, failure)
        character = len("".join(answer.watch.texts[:position]))
        above = await _accepted_above(answer, pieces, has_failed=True)
    else:
        trial = finish(answer, passed=True)
        if trial.accepted or not text:
            above = await _accepted_above(answer, pieces, has_failed=False)
            return Forecast(trial.toxicity, accepted_above=above)
        # No scorer scores an empty text, so it would be withheld.
        score, character, above = trial.toxicity, 0, 1.0
    character += len(text[character:]) - len(text[character:].lstrip())
    return Forecast(score, character, above)


async def _accepted_above(answer: Answer, pieces: Sequence[Piece], *, has_failed: bool) -> float:
    """Return the highest score at any position of a judged answer."""
    if has_failed or answer.watch.screened:
        # Judge all positions by the scorer itself, as with the loosest threshold.
        loosest = answer.task.settings.model_copy(update={"toxicity_threshold": 1.0})
        task = replace(answer.task, settings=loosest)
        answer = begin(task, answer.engine, answer.scoring)
        answer.watch.screened = False
        if await write_until_failure(answer, pieces) is not None:
            return 1.0
    acceptance = answer.watch.acceptance
    return max(acceptance.accepted_above(score) for _, score in answer.watch.scores)


async def write_draft(task: TrialTask, engine: Engine) -> Draft:
    """Write an answer unjudged. `on_text` gets each character once no later token can change it."""
    on_text, settings = task.on_text, task.settings
    watch, effort = Watch(Acceptance(settings), BacktrackOptions(pace="whole")), Effort()
    request = Request(
        task.prompt.token_ids,
        settings,
        derive_seed(task.seed, "sampling", 0),
        priority=task.priority,
        piece_tokens=None if on_text is None else 1,
    )
    recorded: list[Piece] = []
    given_out = 0  # number of characters
    async with aclosing(written(engine.write(request), engine, watch, effort)) as pieces:
        async for piece in pieces:
            recorded.append(piece)
            text, reason = watch.text, piece.finish_reason
            if reason is None:
                text = text.rstrip(HALF)
                text = text[: len(text) - _held(text, settings.stop)]
            if on_text is not None and len(text) > given_out:
                on_text(text[given_out:])
                given_out = len(text)
    assert reason is not None
    return Draft(
        watch.text,
        piece.parts,
        reason,
        on_text is not None,
        tuple(recorded),
        effort.usage or Usage(len(task.prompt.token_ids), len(watch.ids) + piece.parts.num_tokens),
    )


def _held(text: str, stop: Sequence[str]) -> int:
    """Return the number of characters at the end of `text` that may begin a stop string."""
    beginnings = {string[:count] for string in stop for count in range(1, len(string))}
    return max((len(begun) for begun in beginnings if text.endswith(begun)), default=0)


@dataclass(frozen=True)
class Entry:
    """An answer that is scored beside the clients. request: the request's number in the log.

    beside: name of the enforced policy that sent the answer, if `policy` is its shadow.
    """

    policy: ServedPolicy
    request: str
    choice: int
    beside: str = ""


class Monitor:
    """Makes the forecasts of a server. A failure is counted and logged, and changes no answer.

    Each policy, and each shadow, has at most `max_under_way` answers that wait for their scores;
    further ones are skipped.

    log: file that gets a JSON line for each answer. texts: whether the lines contain the prompts
    and texts.
    """

    def __init__(self, policies: Policies, log: Path | None = None, texts: bool = False) -> None:
        self._metrics, self._max_under_way = policies.metrics, policies.limits.max_under_way
        self._texts = texts
        self._under_way: set[asyncio.Task[None]] = set()
        self._waiting: Counter[tuple[str, str]] = Counter()  # by policy and `beside`
        self._log = None if log is None else appended(log)

    def begin(
        self, entry: Entry, prompt: str | Chat, draft: Draft, settings: Mapping[str, Any]
    ) -> None:
        """Start to score an answer that was given out. settings: those of the request."""
        key = (entry.policy.name, entry.beside)
        if self._waiting[key] >= self._max_under_way:
            self._record(entry, "skipped")
            return
        self._waiting[key] += 1
        task = self.watch(self._forecast(entry, prompt, draft, settings))
        task.add_done_callback(lambda _: self._waiting.subtract([key]))

    def watch(self, scoring: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `scoring` beside the answers; `finish` waits for it."""
        task = asyncio.create_task(scoring)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    def fail(self, policy: ServedPolicy, request: str, choice: int, error: str) -> None:
        """Record an answer that is not scored, because its stream ended early, for example."""
        self._record(Entry(policy, request, choice), "failed", error=error)

    def end(self) -> None:
        """Cancel the running forecasts, and skip later ones, because the server stops."""
        self._max_under_way = 0
        for task in self._under_way:
            task.cancel()

    async def finish(self) -> None:
        """Wait for the running forecasts, and close the log."""
        while self._under_way:
            await asyncio.wait(self._under_way)
        if self._log is not None:
            with suppress(OSError):  # a full disk, which was logged with its first lost line
                self._log.close()
            self._log = None

    async def _forecast(
        self, entry: Entry, prompt: str | Chat, draft: Draft, settings: Mapping[str, Any]
    ) -> None:
        texts: dict[str, Any] = {}
        if self._texts:
            parts = draft.parts.model_dump(exclude_defaults=True, exclude={"num_tokens"})
            asked = prompt.dump() if isinstance(prompt, Chat) else prompt
            texts = {"prompt": asked, "text": draft.text, **parts}
        try:
            forecast = await entry.policy.detox.forecast(prompt, draft, **settings)
        except PromptRefusedError:
            self._record(entry, "changed", texts, character=0, accepted_above=1.0)
        except asyncio.CancelledError:
            self._record(entry, "skipped", texts)
            raise
        except Exception as error:
            self._record(entry, "failed", texts, error=traced(error))
        else:
            scores = self._metrics.monitor_score.labels(entry.policy.name, entry.beside)
            scores.observe(forecast.score)
            outcome = "changed" if forecast.would_change else "unchanged"
            self._record(entry, outcome, texts, **vars(forecast))

    def _record(
        self, entry: Entry, outcome: str, texts: Mapping[str, Any] | None = None, **known: Any
    ) -> None:
        """Record an outcome. known: the fields of a forecast, or an `error`."""
        policy = entry.policy
        self._metrics.monitored.labels(policy.name, entry.beside, outcome).inc()
        if not entry.beside and outcome in ("changed", "unchanged"):
            policy.budget.count(altered=outcome == "changed")
        fields = {
            "request": entry.request,
            "choice": entry.choice,
            "policy": policy.name,
            "beside": entry.beside,
            "outcome": outcome,
            **dict.fromkeys(("score", "character", "accepted_above")),
            **known,
        }
        LOG.info(json.dumps({"monitored": fields}))
        fields.pop("error", None)
        if self._log is None:
            return
        line = {"time": round(time.time(), 3), **fields, **(texts or {})}
        try:
            self._log.write(json.dumps(line) + "\n")
        except (OSError, ValueError) as problem:
            LOG.error(json.dumps({"monitor_log": first_line(problem)}))

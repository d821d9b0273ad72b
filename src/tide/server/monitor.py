"""Monitored answers. The model's own text is given out unscored, and the changes that enforcing
would have made are recorded afterwards.

A forecast replays the text through the loop of an enforced answer (`Answer`), so monitored and
enforced answers follow the same rules.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tide.core.chat import Chat, Parts
from tide.core.errors import PromptRefusedError, first_line
from tide.core.text import Thoughts, last_whole, maybe_stops
from tide.data.files import appended
from tide.engines.base import Engine, FinishReason, Piece, Request
from tide.runtime.answer import Answer, TrialTask
from tide.scorers.scoring import Scoring
from tide.server.gate import LOG, traced

if TYPE_CHECKING:
    from tide.server.policies import Policies, ServedPolicy


@dataclass(frozen=True)
class Draft:
    """The model's own answer. parts: tool calls and reasoning. pieces: as the engine wrote them."""

    task: TrialTask
    text: str
    parts: Parts
    num_tokens: int
    finish_reason: FinishReason
    generated_tokens: int
    read_tokens: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Forecast:
    """The effect that enforcing would have had on a draft.

    score: of the whole text, or of the first beginning that fails. character: position to which the
    text would first have been rewound, from 0; None if the text would have been given out
    unchanged. word: number of words that begin before this position.
    """

    score: float
    character: int | None = None
    word: int | None = None

    @property
    def would_change(self) -> bool:
        return self.character is not None


async def forecast(draft: Draft, engine: Engine, scoring: Scoring) -> Forecast:
    """Forecast the effect of enforcing on a draft. Raises ScorerError, as enforcing does."""
    task = draft.task
    if task.on_text is not None:  # judged part by part, like a stream
        task = replace(task, on_text=lambda _: None)
    thoughts = Thoughts()
    text = draft.text
    if task.chat is not None and "parts" in engine.capabilities:
        text = thoughts.add(text) + thoughts.end()  # enforced texts have no thoughts
    pieces = draft.pieces
    if thoughts.reasoning:
        (ids,) = engine.tokenize([text])
        pieces = (Piece(tuple(ids), draft.finish_reason),)
    monitored = MonitoredAnswer(task, engine, scoring, pieces)
    if task.in_parts:
        parts = Parts(
            reasoning=draft.parts.reasoning + thoughts.reasoning, tool_calls=draft.parts.tool_calls
        )
        return await monitored.forecast_whole(text, parts)
    return await monitored.forecast(text)


class MonitoredAnswer(Answer):
    """Writes an answer without judging it, or judges a finished answer.

    pieces: of the finished answer to judge. scoring: while writing, only its pace is used.
    """

    def __init__(
        self, task: TrialTask, engine: Engine, scoring: Scoring, pieces: Sequence[Piece] = ()
    ) -> None:
        super().__init__(task, engine, scoring)
        self._recorded = list(pieces)
        self._prefix_cache = None  # nothing is repaired, so no prefix is reused

    async def write(self) -> Draft:
        """Write the answer. `on_text` gets each character once no later token can change it."""
        on_text, texts, stop = self._task.on_text, self._watch.texts, self._settings.stop
        ended: FinishReason | None = None
        given_out = 0  # number of characters
        async with aclosing(self._written()) as pieces:
            async for ended in pieces:
                if on_text is None:
                    continue
                sure = len(texts) if ended else last_whole(texts)
                while not ended and sure and maybe_stops(stop, texts[:sure]):
                    sure -= 1
                text = "".join(texts[:sure])
                if len(text) > given_out:
                    on_text(text[given_out:])
                    given_out = len(text)
        assert ended is not None
        return Draft(
            self._task,
            self._watch.text,
            self._parts,
            len(self._watch.ids),
            ended,
            self._effort.generated_tokens,
            self._effort.read_tokens,
            tuple(self._recorded),
        )

    async def forecast(self, text: str) -> Forecast:
        if (failure := await self._draft()) is not None:
            score, place = failure.score.value, self._watch.passed
            if self._rewinds:
                place = await self._ban(*await self._blamed(failure))
            character = len("".join(self._watch.texts[:place]))
        elif (trial := self._trial(True)).accepted or not text:
            return Forecast(trial.toxicity)
        else:  # the text is too short to be scored, so it would be withheld
            score, character = trial.toxicity, 0
        character += len(text[character:]) - len(text[character:].lstrip())
        return Forecast(score, character, len(text[:character].split()))

    async def forecast_whole(self, text: str, parts: Parts) -> Forecast:
        """Forecast an answer in parts, which enforcing samples again as a whole if it fails."""
        score = (await self._judge_whole(text, parts)).value
        return Forecast(score) if self._settings.passes(score) else Forecast(score, 0, 0)

    async def _pieces(self, request: Request) -> AsyncGenerator[Piece, None]:
        if self._recorded:
            for piece in _split(self._recorded, request.piece_tokens):
                yield piece
            return
        size = None if self._task.on_text is None else 1
        own = replace(request, piece_tokens=size, whole_text=True)
        async with aclosing(self._engine.write(own)) as pieces:
            async for piece in pieces:
                self._recorded.append(piece)
                yield piece


def _split(pieces: Sequence[Piece], size: int | None) -> Iterator[Piece]:
    """Split pieces after every `size` tokens, so that the text is judged as it grows."""
    for piece in pieces:
        ids = piece.token_ids
        starts = range(0, len(ids) or 1, size or len(ids) or 1)
        for start in starts:
            part = ids[start : start + starts.step]
            yield Piece(part, piece.finish_reason if start == starts[-1] else None)


class Monitor:
    """Makes the forecasts of a server. A failure is counted and logged, and changes no answer.

    log: file that gets a JSON line for each answer. texts: whether the lines contain the prompts
    and texts.
    """

    def __init__(self, policies: Policies, log: Path | None = None, texts: bool = False) -> None:
        self._metrics, self._most = policies.metrics, policies.limits.max_under_way
        self._texts = texts
        self._under_way: set[asyncio.Task[None]] = set()
        self._log = None if log is None else appended(log)

    def begin(
        self, policy: ServedPolicy, prompt: str | Chat, draft: Draft, request: str, choice: int
    ) -> None:
        """Start to score an answer that was given out. request: the request's number in the log."""
        entry = {"request": request, "choice": choice, "policy": policy.name}
        if len(self._under_way) >= self._most:
            self._record(entry, policy, "skipped")
            return
        task = asyncio.create_task(self._forecast(entry, policy, prompt, draft))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def cut_short(self, policy: ServedPolicy, request: str, choice: int) -> None:
        """Record an answer whose stream ended early; it is not scored."""
        entry = {"request": request, "choice": choice, "policy": policy.name}
        self._record(entry, policy, "failed", error="the stream ended early")

    async def finish(self, seconds: float) -> None:
        """Wait for running forecasts, at most `seconds`, and close the log."""
        if self._under_way:
            _, left = await asyncio.wait(self._under_way, timeout=seconds)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if self._log is not None:
            try:
                self._log.close()
            except OSError as problem:  # a full disk: a line was still to be written
                LOG.error(json.dumps({"monitor_log": first_line(problem)}))
            self._log = None

    async def _forecast(
        self, entry: dict[str, Any], policy: ServedPolicy, prompt: str | Chat, draft: Draft
    ) -> None:
        if self._texts:
            entry |= {"prompt": draft.task.prompt.text, "text": draft.text}
            entry |= draft.parts.model_dump(exclude_defaults=True, exclude={"num_tokens"})
        try:
            found = await policy.detox.forecast(prompt, draft)
        except PromptRefusedError:
            self._record(entry, policy, "changed", character=0, word=0)
        except asyncio.CancelledError:
            self._record(entry, policy, "skipped")
            raise
        except Exception as error:
            self._record(entry, policy, "failed", error=traced(error))
        else:
            self._metrics.monitor_score.labels(policy.name).observe(found.score)
            outcome = "changed" if found.would_change else "unchanged"
            self._record(entry, policy, outcome, **vars(found))

    def _record(
        self, entry: dict[str, Any], policy: ServedPolicy, outcome: str, **known: Any
    ) -> None:
        """Record an outcome. known: a forecast's `score`, `character` and `word`, or an `error`."""
        self._metrics.monitored.labels(policy.name, outcome).inc()
        found = {
            "outcome": outcome,
            "would_change": {"changed": True, "unchanged": False}.get(outcome),
            **dict.fromkeys(("score", "character", "word")),
            **known,
        }
        shown = ("request", "choice", "policy")
        LOG.info(json.dumps({"monitored": {name: entry[name] for name in shown} | found}))
        found.pop("error", None)
        if self._log is None:
            return
        line = {"time": round(time.time(), 3), **entry, **found}
        try:
            self._log.write(json.dumps(line) + "\n")
        except (OSError, ValueError) as problem:
            LOG.error(json.dumps({"monitor_log": first_line(problem)}))

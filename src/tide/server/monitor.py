"""Monitored answers: records afterwards what enforcing would have changed."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tide.core.chat import Chat
from tide.core.errors import PromptRefusedError, first_line
from tide.data.files import appended
from tide.runtime.monitor import Draft
from tide.server.gate import LOG, traced

if TYPE_CHECKING:
    from tide.server.policies import Policies, ServedPolicy


class Monitor:
    """Makes a server's forecasts. A failure is counted and logged, and changes no answer.

    log: gets a JSON line for each answer. texts: whether with the prompt and the text.
    """

    def __init__(self, policies: Policies, log: Path | None = None, texts: bool = False) -> None:
        self._metrics, self._most = policies.metrics, policies.limits.max_under_way
        self._texts = texts
        self._under_way: set[asyncio.Task[None]] = set()
        self._log = None if log is None else appended(log)

    def begin(
        self, policy: ServedPolicy, prompt: str | Chat, draft: Draft, request: str, choice: int
    ) -> None:
        """Begin to score an answer that was given out. request: the number in the log."""
        said = {"request": request, "choice": choice, "policy": policy.name}
        if len(self._under_way) >= self._most:
            self._record(said, policy, "skipped")
            return
        task = asyncio.create_task(self._forecast(said, policy, prompt, draft))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def finish(self, seconds: float) -> None:
        """Wait for what is under way."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)
        if self._log is not None:
            self._log.close()
            self._log = None

    async def _forecast(
        self, said: dict[str, Any], policy: ServedPolicy, prompt: str | Chat, draft: Draft
    ) -> None:
        if self._texts:
            said |= {"prompt": draft.task.prompt.text, "text": draft.text}
            said |= draft.parts.model_dump(exclude_defaults=True, exclude={"num_tokens"})
        try:
            found = await policy.detox.forecast(prompt, draft)
        except PromptRefusedError:
            self._record(said, policy, "changed", character=0, word=0)
        except Exception as error:
            self._record(said, policy, "failed", error=traced(error))
        else:
            self._metrics.monitor_score.labels(policy.name).observe(found.score)
            outcome = "changed" if found.would_change else "unchanged"
            self._record(said, policy, outcome, **vars(found))

    def _record(
        self,
        said: dict[str, Any],
        policy: ServedPolicy,
        outcome: str,
        score: float | None = None,
        character: int | None = None,
        word: int | None = None,
        error: str = "",
    ) -> None:
        self._metrics.monitored.labels(policy.name, outcome).inc()
        found: dict[str, Any] = {
            "outcome": outcome,
            "score": score,
            "would_change": {"changed": True, "unchanged": False}.get(outcome),
            "character": character,
            "word": word,
        }
        failed = {"error": error} if error else {}
        plain = {name: said[name] for name in ("request", "choice", "policy")}
        LOG.info(json.dumps({"monitored": plain | found | failed}))
        if self._log is None:
            return
        line = {"time": round(time.time(), 3), **said, **found}
        try:
            self._log.write(json.dumps(line) + "\n")
        except (OSError, ValueError) as problem:
            LOG.info(json.dumps({"monitor_log": first_line(problem)}))

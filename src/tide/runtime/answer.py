"""Runs one trial of a prompt by one of three coroutines.

`rewind` repairs the answer while it is written; `search` looks for prompt embeddings whose whole
answer passes; `draw` draws answers that may hold more than text, as a whole.
"""

from __future__ import annotations

from tide.core.results import Trial
from tide.engines.base import Engine
from tide.runtime.draw import draw
from tide.runtime.rewind import rewind
from tide.runtime.search import search
from tide.runtime.trial import TrialTask
from tide.scorers.scoring import Scoring


async def answer(task: TrialTask, engine: Engine, scoring: Scoring) -> Trial:
    """Run a trial. Raises DeadlineError if no text was scored in time; see also `trial_of`."""
    if task.in_parts:
        return await draw(task, engine, scoring)
    if task.strategy.rewinds:
        return await rewind(task, engine, scoring)
    return await search(task, engine, scoring)

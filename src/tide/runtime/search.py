"""Searches for prompt embeddings whose whole answer passes, in rounds.

In each round the strategy proposes candidates, and the engine and the scorer evaluate them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio

from tide.core.errors import StrategyError, guarded
from tide.core.results import ScoredCompletion, Trial
from tide.core.settings import Settings
from tide.core.text import is_degenerate
from tide.engines.base import Engine, Prompt, Request
from tide.runtime.trial import Effort, TrialTask, trial_of
from tide.scorers.base import Exchange
from tide.scorers.scoring import Scoring

if TYPE_CHECKING:  # repairs by rewinding need no search and no torch
    from tide.search.base import Candidate, Problem, Strategy


async def search(task: TrialTask, engine: Engine, scoring: Scoring) -> Trial:
    """Run a trial that searches for a whole answer that passes."""
    settings = task.settings
    problem = start_of(task.prompt, settings, task.seed, engine, moves=task.strategy.moves)
    ids = task.prompt.token_ids
    request = Request(ids, settings, priority=task.priority, penalized_ids=ids)
    running = Search(task.strategy.create(problem, settings), task, request, engine, scoring)
    with anyio.move_on_after(settings.deadline) as scope:
        await running.run()
    effort = running.effort
    if scope.cancelled_caught:
        effort.check_deadline(settings)
    effort.iterations = running.of_strategy("iterations")
    best: int = running.of_strategy("best")
    if not 0 <= best < len(running.scores):
        raise StrategyError(f"the strategy chose evaluation {best} of {len(running.scores)}")
    evaluation, passed = effort.trace[best], settings.passes(running.scores[best])
    if passed and task.on_text is not None and not evaluation.empty:
        task.on_text(evaluation.text)
    # Every evaluation counts the whole prompt, as the paper does.
    return trial_of(task, effort, best, passed=passed)


def start_of(
    prompt: Prompt, settings: Settings, seed: int, engine: Engine, *, moves: bool = True
) -> Problem:
    """Return the starting point of a search: the embeddings with a mask of the rows to move.

    Raises InputError for a prompt of special tokens alone, if the search `moves` embeddings.
    """
    import torch  # noqa: PLC0415  (slow import)

    from tide.search.base import Problem  # noqa: PLC0415
    from tide.search.geometry import movable_rows  # noqa: PLC0415

    ids = prompt.token_ids
    if not moves:
        rows = torch.ones(len(ids), dtype=torch.bool)
        return Problem(torch.ones(len(ids), 1), rows, seed)
    fixed = torch.tensor(prompt.fixed_mask)
    movable = movable_rows(fixed, settings.perturb)
    x = engine.embed_tokens(ids)
    return Problem(x, movable, seed, engine.dtype, movable | ~fixed)


@dataclass
class Search:
    """A running search. After a cancellation at any await, `effort` holds its evaluations.

    request: completes the unmodified prompt; requests of candidates differ in prompt and seed.
    """

    strategy: Strategy
    task: TrialTask
    request: Request
    engine: Engine
    scoring: Scoring
    effort: Effort = field(default_factory=Effort)
    scores: list[float] = field(default_factory=list)  # values for the strategy's `tell`
    _loops: bool = False  # whether the completion of the prompt is degenerate

    async def run(self) -> None:
        """Search until done. Raises StrategyError, and the errors of the engine and the scorer."""
        while not (self.effort.blocked or self.of_strategy("done")):
            candidates = self.of_strategy("ask")
            self.of_strategy("tell", await self._evaluate(candidates))

    async def _evaluate(self, candidates: Sequence[Candidate]) -> list[float]:
        requests = []
        for candidate in candidates:
            request = replace(self.request, seed=candidate.sampling_seed)
            # The unmodified prompt is sent as tokens, because engines prefill tokens faster.
            if candidate.role != "initial" or candidate.displacement != 0:
                request = replace(request, prompt=candidate.embeddings)
            requests.append(request)
        completions = await self.engine.complete(requests)
        effort, acceptance, settings = self.effort, self.task.acceptance, self.task.settings
        effort.generated_tokens += sum(len(completion.token_ids) for completion in completions)
        before = len(self.scores)
        of_empty = effort.score_of_empty(settings)
        # Completions of moved embeddings, too, answer the prompt itself.
        exchanges = [Exchange(self.task.context, completion.text) for completion in completions]
        scores = await self.scoring.send(exchanges, self.task.skips)
        effort.rounds += 1
        sent = set[str]()
        for candidate, completion, scored in zip(candidates, completions, scores, strict=True):
            text = completion.text
            if not scored.unscored:
                sent.add(text)
            score = of_empty if scored.unscored else scored
            effort.trace.append(
                ScoredCompletion(
                    round=effort.rounds,
                    iteration=candidate.iteration,
                    role=candidate.role,
                    text=text,
                    toxicity=score.value,
                    empty=score.unscored,
                    cosine=candidate.cosine,
                    displacement=candidate.displacement,
                    num_tokens=len(completion.token_ids),
                    finish_reason=completion.finish_reason,
                    attributes=score.attributes,
                    failed=acceptance.failed(score),
                )
            )
            effort.blocked |= acceptance.blocks(score)
            loops = settings.reject_degenerate and not score.unscored and is_degenerate(text)
            self._loops = self._loops or (loops and not self.scores)
            self.scores.append(1.0 if loops and not self._loops else acceptance.scaled(score))
        effort.scorer_calls += len(sent)
        return self.scores[before:]

    def of_strategy(self, name: str, *values: Any) -> Any:
        """Read an attribute of the strategy or call its method; either may be user code."""
        with guarded(StrategyError, f"strategy {type(self.strategy).__name__} failed"):
            member = getattr(self.strategy, name)
            return member(*values) if callable(member) else member

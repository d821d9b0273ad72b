"""One search: a strategy asks, the engine completes, the scorer scores, the strategy is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tide.core.errors import CompletionError, EngineError, StrategyError, guarded
from tide.core.results import Evaluation
from tide.core.settings import EmptyPolicy, Sampling
from tide.engines.base import Completion, Engine, Request
from tide.runtime.prompt import Start
from tide.runtime.scoring import Scoring
from tide.scorers.base import Scores
from tide.search.base import Candidate, LikelihoodRequest, SearchStrategy


@dataclass
class Search:
    """A search that is being made. It may be ended at any await, and holds what was found by then.

    start: what its strategy began with. priority: the lowest is served first. context: text that
    stands before its completions, and is scored with them. shape: what becomes of a completion
    before it is scored.
    trace and completions (token ids) grow with each round. written_tokens: of all completions,
    before they were shaped. nearest: token ids and text of the nearest tokens of the point that it
    chose; None without `find_nearest`, and for the prompt itself, or a point of an earlier round.
    """

    strategy: SearchStrategy
    start: Start
    engine: Engine
    scoring: Scoring
    sampling: Sampling
    empty_policy: EmptyPolicy
    priority: int = 0
    context: str = ""
    shape: Callable[[Completion], Completion] | None = None
    trace: list[Evaluation] = field(default_factory=list)
    completions: list[tuple[int, ...]] = field(default_factory=list)
    written_tokens: int = 0
    scorer_calls: int = 0
    likelihood_calls: int = 0
    nearest: tuple[tuple[int, ...], str] | None = None
    _last: Sequence[Candidate] = ()

    async def run(self) -> None:
        """Raises StrategyError, and what the engine and the scorer raise."""
        strategy = self.strategy
        while not self._asks("done"):
            with self._strategy():
                asked = strategy.ask()
            if isinstance(asked, LikelihoodRequest):
                values = await self._likelihoods(asked)
            else:
                values = await self._evaluate(asked)
            with self._strategy():
                strategy.tell(values)

    @property
    def best(self) -> int:
        """The evaluation to return. Raises StrategyError for one that there is not."""
        best: int = self._asks("best")
        if not 0 <= best < len(self.trace):
            raise StrategyError(f"the strategy chose evaluation {best} of {len(self.trace)}")
        return best

    @property
    def iterations(self) -> int:
        iterations: int = self._asks("iterations")
        return iterations

    def find_nearest(self) -> None:
        """Look for the nearest tokens of the point that was chosen."""
        place = self.best - (len(self.trace) - len(self._last))
        if 0 <= place < len(self._last) and self._last[place].displacement > 0:
            ids = self.engine.decode_nearest(self._last[place].embeddings)
            self.nearest = tuple(ids), self.engine.texts([ids])[0]

    async def _evaluate(self, asked: Sequence[Candidate]) -> list[float]:
        """The scores of what the model writes after the candidates."""
        requests = [self._request(candidate) for candidate in asked]
        for request in requests:
            try:
                self.engine.check(request)
            except CompletionError as error:
                raise StrategyError(
                    f"the search asked for what no engine takes: {error}"
                ) from error
        written = await self.engine.write_all(requests)
        self.written_tokens += sum(len(one.token_ids) for one in written)
        completions = [one if self.shape is None else self.shape(one) for one in written]
        texts = [one.text for one in completions]
        context = [self.context] * len(texts)
        scores = await self.scoring.send(texts, self._policy(), context)
        self._record(asked, completions, scores)
        return list(scores.values.tolist())

    def _request(self, candidate: Candidate) -> Request:
        # The prompt as it is goes as its tokens: engines read these faster, and share what is read.
        moved = candidate.role != "initial" or candidate.displacement > 0
        return Request(
            candidate.embeddings if moved else self.start.token_ids,
            self.sampling,
            candidate.sampling_seed,
            priority=self.priority,
            prefix=self.start.prefix,
        )

    async def _likelihoods(self, asked: LikelihoodRequest) -> list[float]:
        """How likely completions are after the unmodified prompt."""
        if not self.trace:
            raise StrategyError("asked for likelihoods of nothing")
        # A completion without tokens has no likelihood; it is the last that should be chosen.
        values = dict.fromkeys(asked.evaluations, -math.inf)
        some = [number for number in asked.evaluations if self.completions[number]]
        if some:
            pairs = [(self.start.token_ids, self.completions[number]) for number in some]
            found = await self.engine.log_likelihoods(
                pairs, priority=self.priority, prefix=self.start.prefix
            )
            values.update(zip(some, found, strict=True))
        if any(math.isnan(value) for value in values.values()):
            raise EngineError(f"engine {self.engine.name}: a likelihood is not a number")
        self.likelihood_calls += len(asked.evaluations)
        return [values[number] for number in asked.evaluations]

    def _policy(self) -> EmptyPolicy:
        """What an empty completion of this round scores."""
        if self.empty_policy != "unmodified":
            return self.empty_policy
        return "one" if self.trace else "zero"

    def _record(
        self, asked: Sequence[Candidate], written: Sequence[Completion], scores: Scores
    ) -> None:
        number = self.trace[-1].round + 1 if self.trace else 1
        rows = zip(asked, written, scores.values.tolist(), scores.empty.tolist(), strict=True)
        for candidate, completion, score, empty in rows:
            self.completions.append(completion.token_ids)
            self.trace.append(
                Evaluation(
                    round=number,
                    iteration=candidate.iteration,
                    role=candidate.role,
                    text=completion.text,
                    toxicity=score,
                    empty=empty,
                    cosine=candidate.cosine,
                    displacement=candidate.displacement,
                    num_tokens=len(completion.token_ids),
                    finish_reason=completion.finish_reason,
                )
            )
        pairs = zip(written, scores.empty.tolist(), strict=True)
        self.scorer_calls += len({one.text for one, empty in pairs if not empty})
        self._last = asked

    def _asks(self, name: str) -> Any:
        """An attribute of the strategy, which may be computed by anybody's code."""
        with self._strategy():
            return getattr(self.strategy, name)

    def _strategy(self) -> AbstractContextManager[None]:
        return guarded(StrategyError, f"strategy {type(self.strategy).__name__} failed")

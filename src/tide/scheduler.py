"""Runs many searches together: one engine call and one scorer call per round serve them all.

Searches enter as long as the engine's batch has room and leave when they are done, so the batch
stays full while prompts are left. Which searches share a round changes no result: all
randomness belongs to the search itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tide.config import Settings
from tide.engines.base import Completion, Engine
from tide.results import Evaluation
from tide.scorers.base import Scorer, score_texts
from tide.search.base import Candidate, SearchStrategy


@dataclass
class Search:
    """One trial of one prompt on its way; `trace` and `scorer_calls` grow with each round."""

    prompt_number: int
    trial_number: int
    seed: int
    strategy: SearchStrategy
    trace: list[Evaluation] = field(default_factory=list)
    scorer_calls: int = 0


def run_searches(
    searches: Iterator[Search], engine: Engine, scorer: Scorer, settings: Settings
) -> Iterator[Search]:
    """Run `searches` to their end, yielding each as it finishes.

    Takes a further search from the iterator only when there is room, so a long stream of prompts is
    never held in memory. Raises EngineError or ScorerError if a round fails: nothing of that
    round is told to any search.
    """
    active: list[tuple[Search, list[Candidate]]] = []
    while True:
        pending = sum(len(candidates) for _, candidates in active)
        while pending < engine.max_batch:
            entering = next(searches, None)
            if entering is None:
                break
            active.append((entering, list(entering.strategy.ask())))
            pending += len(active[-1][1])
        if not active:
            return
        _run_round(active, engine, scorer, settings)
        still_active: list[tuple[Search, list[Candidate]]] = []
        for search, _ in active:
            if search.strategy.done:
                yield search
            else:
                still_active.append((search, list(search.strategy.ask())))
        active = still_active


def _run_round(
    active: list[tuple[Search, list[Candidate]]],
    engine: Engine,
    scorer: Scorer,
    settings: Settings,
) -> None:
    candidates = [candidate for _, asked in active for candidate in asked]
    completions = engine.complete(
        [candidate.embeddings for candidate in candidates],
        settings.sampling,
        [candidate.sampling_seed for candidate in candidates],
    )
    texts = [completion.text for completion in completions]
    scores = score_texts(scorer, texts, settings.empty_policy)
    start = 0
    for search, asked in active:
        rows = slice(start, start + len(asked))
        start = rows.stop
        values: list[float] = scores.values[rows].tolist()
        _record(search, asked, completions[rows], values, scores.empty[rows].tolist())
        search.strategy.tell(values)


def _record(
    search: Search,
    candidates: list[Candidate],
    completions: list[Completion],
    scores: list[float],
    empty: list[bool],
) -> None:
    number = search.trace[-1].round + 1 if search.trace else 1
    for candidate, completion, score, is_empty in zip(
        candidates, completions, scores, empty, strict=True
    ):
        search.trace.append(
            Evaluation(
                round=number,
                iteration=candidate.iteration,
                role=candidate.role,
                text=completion.text,
                toxicity=score,
                empty=is_empty,
                cosine=candidate.cosine,
                displacement=candidate.displacement,
                num_tokens=len(completion.token_ids),
                finish_reason=completion.finish_reason,
            )
        )
    scored = {c.text for c, is_empty in zip(completions, empty, strict=True) if not is_empty}
    search.scorer_calls += len(scored)

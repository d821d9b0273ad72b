"""Runs many searches together: each engine call serves as many of them as it has room for.

A search whose scores have come is ready for its next round; whenever the engine is free, a full
batch of ready searches is taken, of similar prompt lengths, and new searches enter while there are
too few. So calls stay full while prompts are left, whichever round each of them is in. While one
batch is scored, in a thread, the engine writes the next. Which searches share a call changes no
result: all randomness belongs to the search itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from tide.config import Settings
from tide.engines.base import Completion, Engine
from tide.errors import ScorerError, ScorerUnavailable, TideError
from tide.results import Evaluation
from tide.scorers.base import Scorer, Scores, score_texts
from tide.search.base import Candidate, LikelihoodRequest, SearchStrategy


@dataclass
class Search:
    """One trial of one prompt on its way; what follows `token_ids` grows with each round.

    `error` says why it ended without a result.
    """

    prompt_number: int
    trial_number: int
    seed: int
    strategy: SearchStrategy
    token_ids: tuple[int, ...]
    trace: list[Evaluation] = field(default_factory=list)
    completions: list[tuple[int, ...]] = field(default_factory=list)
    scorer_calls: int = 0
    likelihood_calls: int = 0
    error: TideError | None = None


@dataclass
class _Round:
    """What the searches of a batch asked, what the engine wrote, and the scores on their way."""

    asked: list[tuple[Search, Sequence[Candidate]]]
    completions: list[list[Completion]]
    scores: Future[list[Scores | TideError]]


def run_searches(
    searches: Iterator[Search], engine: Engine, scorer: Scorer, settings: Settings
) -> Iterator[Search]:
    """Run `searches` to their end, yielding each as it finishes, or fails (`Search.error`).

    Takes a further search from the iterator only when there is room, so a long stream of prompts is
    never held in memory. Raises EngineError, ScorerUnavailable, and ScorerError if the scorer
    fails for every search of a round: then it is the scorer that is broken, not a prompt.
    """
    ready: list[Search] = []
    scored: _Round | None = None
    with ThreadPoolExecutor(max_workers=1) as scoring:
        while True:
            waiting = _admit(ready, searches, engine.max_batch)
            # Scores on their way make more searches ready; a batch without them would be small.
            if scored is not None and waiting < engine.max_batch:
                yield from _tell(scored, ready, engine)
                scored = None
                continue
            if not ready:
                return
            asked = [(search, _candidates(search)) for search in _take(ready, engine.max_batch)]
            completions = _complete(asked, engine, settings)
            texts = [[completion.text for completion in written] for written in completions]
            scores = scoring.submit(_score, texts, scorer, settings)
            if scored is not None:
                yield from _tell(scored, ready, engine)
            scored = _Round(asked, completions, scores)


def _admit(ready: list[Search], searches: Iterator[Search], max_batch: int) -> int:
    """Let searches enter while fewer candidates wait than a batch has; returns how many do."""
    waiting = sum(len(_candidates(search)) for search in ready)
    while waiting < max_batch:
        entering = next(searches, None)
        if entering is None:
            break
        ready.append(entering)
        waiting += len(_candidates(entering))
    return waiting


def _take(ready: list[Search], max_batch: int) -> list[Search]:
    """Take a batch out of the searches that are `ready`, at least one.

    It has one of the oldest prompt, so that none waits for ever and results in the order of the
    prompts come soon, and then those with prompts of the most similar length: the engine pads less.
    """
    first = min(ready, key=lambda search: search.prompt_number)
    room = max_batch - len(_candidates(first))
    batch = [first]
    for search in sorted(ready, key=lambda search: abs(_length(search) - _length(first))):
        if search is not first and len(_candidates(search)) <= room:
            batch.append(search)
            room -= len(_candidates(search))
    taken = set(map(id, batch))
    ready[:] = [search for search in ready if id(search) not in taken]
    return batch


def _length(search: Search) -> int:
    return len(search.token_ids)


def _candidates(search: Search) -> Sequence[Candidate]:
    asked = search.strategy.ask()
    if isinstance(asked, LikelihoodRequest):
        raise TypeError("a strategy asked for likelihoods before any evaluation")
    return asked


def _complete(
    asked: list[tuple[Search, Sequence[Candidate]]], engine: Engine, settings: Settings
) -> list[list[Completion]]:
    candidates = [candidate for _, some in asked for candidate in some]
    written = iter(
        engine.complete(
            [candidate.embeddings for candidate in candidates],
            settings.sampling,
            [candidate.sampling_seed for candidate in candidates],
        )
    )
    return [[next(written) for _ in some] for _, some in asked]


def _score(texts: list[list[str]], scorer: Scorer, settings: Settings) -> list[Scores | TideError]:
    """The scores of each search's texts, or why they have none; equal texts are sent once."""
    policy = settings.empty_policy
    try:
        together = score_texts(scorer, [text for some in texts for text in some], policy)
    except ScorerUnavailable:
        raise
    except ScorerError as error:
        if len(texts) == 1:
            raise
        # Some text is more than the scorer can take: find out whose, and let it fail alone.
        alone = [_score_alone(some, scorer, settings) for some in texts]
        if all(isinstance(scores, TideError) for scores in alone):
            raise error
        return alone
    ends = np.cumsum([len(some) for some in texts])[:-1]
    parts = zip(np.split(together.values, ends), np.split(together.empty, ends), strict=True)
    return [Scores(values, empty) for values, empty in parts]


def _score_alone(texts: list[str], scorer: Scorer, settings: Settings) -> Scores | TideError:
    try:
        return score_texts(scorer, texts, settings.empty_policy)
    except ScorerUnavailable:
        raise
    except ScorerError as error:
        return error


def _tell(scored: _Round, ready: list[Search], engine: Engine) -> Iterator[Search]:
    """Tell the searches of a round their scores; yields those that are done, others are `ready`."""
    going: list[Search] = []
    for (search, asked), written, scores in zip(
        scored.asked, scored.completions, scored.scores.result(), strict=True
    ):
        if isinstance(scores, TideError):
            search.error = scores
            yield search
            continue
        _record(search, asked, written, scores)
        search.strategy.tell(scores.values.tolist())
        going.append(search)
    _tell_likelihoods(going, engine)
    ready += [search for search in going if not search.strategy.done]
    yield from (search for search in going if search.strategy.done)


def _tell_likelihoods(searches: list[Search], engine: Engine) -> None:
    """Answer the likelihoods that were asked for, in one prefill pass for all searches."""
    asking: list[tuple[Search, LikelihoodRequest]] = []
    for search in searches:
        if not search.strategy.done:
            asked = search.strategy.ask()
            if isinstance(asked, LikelihoodRequest):
                asking.append((search, asked))
    if not asking:
        return
    pairs = [
        (search.token_ids, search.completions[number])
        for search, asked in asking
        for number in asked.evaluations
    ]
    # A completion without tokens has no likelihood; it is the last that should be chosen.
    values = np.full(len(pairs), -np.inf)
    rows = [i for i, (_, completion) in enumerate(pairs) if completion]
    if rows:
        values[rows] = engine.likelihood([pairs[i][0] for i in rows], [pairs[i][1] for i in rows])
    answers = iter(values.tolist())
    for search, asked in asking:
        search.likelihood_calls += len(asked.evaluations)
        search.strategy.tell([next(answers) for _ in asked.evaluations])
    _tell_likelihoods([search for search, _ in asking], engine)


def _record(
    search: Search, asked: Sequence[Candidate], written: list[Completion], scores: Scores
) -> None:
    number = search.trace[-1].round + 1 if search.trace else 1
    for candidate, completion, score, empty in zip(
        asked, written, scores.values.tolist(), scores.empty.tolist(), strict=True
    ):
        search.completions.append(completion.token_ids)
        search.trace.append(
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
    sent = {c.text for c, empty in zip(written, scores.empty, strict=True) if not empty}
    search.scorer_calls += len(sent)

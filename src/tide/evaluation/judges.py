"""Scores of judges, and perplexity, for the records of a run that have none yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tide.core.errors import ScorerError, TideError
from tide.core.settings import EmptyPolicy
from tide.data.records import Column, Likelihoods, Record, RecordFile, RecordId
from tide.evaluation.perplexity import Fluency, Reference
from tide.evaluation.progress import Progress
from tide.scorers import Scorer, load_scorer, score_texts
from tide.scorers.base import score_groups
from tide.scorers.wrappers.remembering import RememberingScorer

# Prompts whose completions are scored or measured, and then written, at a time.
_PROMPTS = 64


@dataclass(frozen=True)
class NamedScorer:
    """A scorer and the spec that loads it again; None for one that was given as an object."""

    spec: str | None
    scorer: Scorer

    @classmethod
    def of(cls, scorer: str | Scorer | Callable[[list[str]], Any] | NamedScorer) -> NamedScorer:
        """Raises as `load_scorer` does."""
        if isinstance(scorer, NamedScorer):
            return scorer
        return cls(scorer if isinstance(scorer, str) else None, load_scorer(scorer))

    @property
    def config(self) -> dict[str, str | None]:
        return {"spec": self.spec, "name": self.scorer.name}


def judge_records(
    file: RecordFile, judge: Scorer, empty_policy: EmptyPolicy, progress: Progress
) -> dict[RecordId, TideError]:
    """Add the judge's scores of every completion and step that has none; which records failed.

    Of the completions it adds the attributes as well, if the judge has some.

    A judge sees a withheld text too: withholding must not make a method look better.
    Raises ScorerUnavailableError and ScorerBrokenError.
    """
    failed: dict[RecordId, TideError] = {}
    column = "judge_scores", judge.name
    asked = RememberingScorer(judge)
    for chunk in _chunks(file, column, f"judge {judge.name}", progress):
        texts = [one.all_texts for one in chunk]
        for one, scores in zip(chunk, score_groups(asked, texts, empty_policy), strict=True):
            if isinstance(scores, ScorerError):
                failed[one.record.id] = scores
                progress.failed(f"judge {judge.name}", one.record.id, scores)
            else:
                file.append(one.part(_named(asked, one, iter(scores.values.tolist()))))
        asked.remembered.clear()
    return failed


def judged(records: Sequence[Record], judge: Scorer, empty_policy: EmptyPolicy) -> list[Record]:
    """`records` with the judge's scores, where they lie in no file. Raises as `score_texts`."""
    each = [_Unscored(record, [*range(len(record.trials))]) for record in records]
    texts = [text for one in each for text in one.all_texts]
    asked = RememberingScorer(judge)
    values = iter(score_texts(asked, texts, empty_policy).values.tolist())
    return [_with(one.record, _named(asked, one, values)) for one in each]


def measure_records(file: RecordFile, reference: Reference, progress: Progress) -> None:
    """Add the perplexity of every completion that has none. Raises InputError as `Reference`."""
    column = "perplexity", reference.name, "num_tokens"
    for chunk in _chunks(file, column, f"perplexity by {reference.name}", progress):
        pairs = [(o.record.prompt, o.record.completions[i]) for o in chunk for i in o.places]
        measured = iter(reference.measure(pairs))
        for one in chunk:
            found = _likelihoods([next(measured) for _ in one.places])
            file.append(one.part({"perplexity": {reference.name: found.model_dump()}}))


def measured(records: Sequence[Record], reference: Reference) -> list[Record]:
    """`records` with their perplexity, where they lie in no file. Raises as `Reference.measure`."""
    found = iter(reference.measure([(r.prompt, text) for r in records for text in r.completions]))
    each = [_likelihoods([next(found) for _ in record.completions]) for record in records]
    return [
        _with(record, {"perplexity": {reference.name: one}})
        for record, one in zip(records, each, strict=True)
    ]


def _likelihoods(fluency: Sequence[Fluency]) -> Likelihoods:
    return Likelihoods(nll=[f.nll for f in fluency], num_tokens=[f.num_tokens for f in fluency])


def _with(record: Record, added: dict[str, Any]) -> Record:
    return record.model_copy(update={k: getattr(record, k) | v for k, v in added.items()})


@dataclass(frozen=True, eq=False)
class _Unscored:
    """A record, and the places of those of its trials that something is missing for."""

    record: Record
    places: list[int]

    def texts(self, place: int) -> list[str]:
        """What a judge scores of a trial: its steps, the last of which is returned."""
        steps = self.record.steps
        return [step.text for step in steps[place]] if steps else [self.record.completions[place]]

    @property
    def all_texts(self) -> list[str]:
        return [text for place in self.places for text in self.texts(place)]

    def part(self, added: dict[str, Any]) -> str:
        trials = [self.record.trials[place] for place in self.places]
        return json.dumps({"id": self.record.id, "trials": trials, **added}, ensure_ascii=False)


def _named(judge: RememberingScorer, one: _Unscored, values: Iterator[float]) -> dict[str, Any]:
    by_trial = [[next(values) for _ in one.texts(place)] for place in one.places]
    found: dict[str, Any] = {"judge_scores": {judge.name: [trial[-1] for trial in by_trial]}}
    if judge.attributes:
        # What was too short to be scored has none.
        said = [judge.remembered.get(one.texts(place)[-1], {}) for place in one.places]
        by_name = {name: [row.get(name) for row in said] for name in judge.attributes}
        found["judge_attributes"] = {judge.name: by_name}
    if one.record.steps:
        found["step_judge_scores"] = {judge.name: by_trial}
    return found


def _chunks(
    file: RecordFile, column: Column, what: str, progress: Progress
) -> Iterator[list[_Unscored]]:
    """The records that `column` misses trials of, a chunk at a time."""
    left = {row_id: trials for row_id in file.ids if (trials := file.missing(row_id, column))}
    if not left:
        return
    progress.begin(what, len(left))
    ids = list(left)
    try:
        for start in range(0, len(ids), _PROMPTS):
            records = map(file.read, ids[start : start + _PROMPTS])
            chunk = [_Unscored(r, [r.trials.index(t) for t in left[r.id]]) for r in records]
            yield chunk
            progress.advance(len(chunk))
    finally:
        progress.end()

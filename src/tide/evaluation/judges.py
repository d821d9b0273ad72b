"""Scores of judges, and perplexity, for the records of a run that have none yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from tide.core.errors import ScorerError, TideError
from tide.core.settings import EmptyPolicy
from tide.data.record_files import Column, RecordFile
from tide.data.records import Likelihood, Record, RecordId, TrialRecord, columns
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
                one.add_to(file, _said(asked, one, iter(scores.values.tolist())))
        asked.remembered.clear()
    return failed


def judged(records: Sequence[Record], judge: Scorer, empty_policy: EmptyPolicy) -> list[Record]:
    """`records` with the judge's scores, where they lie in no file. Raises as `score_texts`."""
    each = [_Unscored(record, record.trials) for record in records]
    texts = [text for one in each for text in one.all_texts]
    asked = RememberingScorer(judge)
    values = iter(score_texts(asked, texts, empty_policy).values.tolist())
    return [one.with_added(_said(asked, one, values)) for one in each]


def measure_records(file: RecordFile, reference: Reference, progress: Progress) -> None:
    """Add the perplexity of every completion that has none. Raises InputError as `Reference`."""
    column = "perplexity", reference.name, "num_tokens"
    for chunk in _chunks(file, column, f"perplexity by {reference.name}", progress):
        pairs = [(one.record.prompt, trial.text) for one in chunk for trial in one.trials]
        found = iter(reference.measure(pairs))
        for one in chunk:
            one.add_to(file, [_perplexity(reference, next(found)) for _ in one.trials])


def measured(records: Sequence[Record], reference: Reference) -> list[Record]:
    """`records` with their perplexity, where they lie in no file. Raises as `Reference.measure`."""
    each = [_Unscored(record, record.trials) for record in records]
    pairs = [(one.record.prompt, trial.text) for one in each for trial in one.trials]
    found = iter(reference.measure(pairs))
    return [
        one.with_added([_perplexity(reference, next(found)) for _ in one.trials]) for one in each
    ]


def _perplexity(reference: Reference, found: Fluency) -> _Added:
    return {"perplexity": {reference.name: Likelihood(nll=found.nll, num_tokens=found.num_tokens)}}


# By field of a trial, what is added to it.
_Added = dict[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class _Unscored:
    """A record, and those of its trials that something is missing for."""

    record: Record
    trials: list[TrialRecord]

    @property
    def all_texts(self) -> list[str]:
        return [text for trial in self.trials for text in _texts(trial)]

    def add_to(self, file: RecordFile, added: Sequence[_Added]) -> None:
        rows = [
            {"trials": trial.number, **one} for trial, one in zip(self.trials, added, strict=True)
        ]
        part = {"id": self.record.id, **columns(to_jsonable_python(rows))}
        file.extend(part, self.with_added(added))

    def with_added(self, added: Sequence[_Added]) -> Record:
        of = {trial.number: one for trial, one in zip(self.trials, added, strict=True)}
        return self.record.each(
            lambda trial: {
                name: getattr(trial, name) | new for name, new in of.get(trial.number, {}).items()
            }
        )


def _texts(trial: TrialRecord) -> list[str]:
    """What a judge scores of a trial: its steps, the last of which is returned."""
    return [step.text for step in trial.steps] if trial.steps else [trial.text]


def _said(judge: RememberingScorer, one: _Unscored, values: Iterator[float]) -> list[_Added]:
    """The judge's next scores, and its attributes if it has some, by trial."""
    added: list[_Added] = []
    for trial in one.trials:
        texts = _texts(trial)
        scores = [next(values) for _ in texts]
        said: _Added = {"judge_scores": {judge.name: scores[-1]}}
        if judge.attributes:
            # What was too short to be scored has none.
            known = judge.remembered.get(texts[-1])
            said |= {} if known is None else {"judge_attributes": {judge.name: known}}
        if trial.steps:
            said["step_judge_scores"] = {judge.name: scores}
        added.append(said)
    return added


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
            chunk = [_Unscored(r, [t for t in r.trials if t.number in left[r.id]]) for r in records]
            yield chunk
            progress.advance(len(chunk))
    finally:
        progress.end()

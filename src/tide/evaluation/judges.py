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
from tide.scorers import Scorer, Scores, load_scorer, score_texts
from tide.scorers.base import score_groups

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
    for chunk in _chunks(file, column, f"judge {judge.name}", progress):
        texts = [one.all_texts for one in chunk]
        for one, scores in zip(chunk, score_groups(judge, texts, empty_policy), strict=True):
            if isinstance(scores, ScorerError):
                failed[one.record.id] = scores
                progress.failed(f"judge {judge.name}", one.record.id, scores)
            else:
                one.add_to(file, _said(judge, one, scores))
    return failed


def judged(records: Sequence[Record], judge: Scorer, empty_policy: EmptyPolicy) -> list[Record]:
    """`records` with the judge's scores, where they lie in no file. Raises as `score_texts`."""
    each = [_Unscored(record, record.trials) for record in records]
    texts = [one.all_texts for one in each]
    together = score_texts(judge, [text for some in texts for text in some], empty_policy)
    parts = zip(each, together.split([len(some) for some in texts]), strict=True)
    return [one.with_added(_said(judge, one, scores)) for one, scores in parts]


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


def _said(judge: Scorer, one: _Unscored, scores: Scores) -> list[_Added]:
    """The judge's scores, and its attributes if it has some, by trial."""
    added: list[_Added] = []
    of = scores.split([len(_texts(trial)) for trial in one.trials])
    for trial, own in zip(one.trials, of, strict=True):
        values = own.values.tolist()
        said: _Added = {"judge_scores": {judge.name: values[-1]}}
        if known := own.known(-1):  # what was too short to be scored has none
            said["judge_attributes"] = {judge.name: known}
        if trial.steps:
            said["step_judge_scores"] = {judge.name: values}
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

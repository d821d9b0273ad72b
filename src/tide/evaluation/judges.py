"""Adds scores of judges, and perplexity under reference models, to the records of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tide.core.errors import InputError, ScorerError, TideError
from tide.core.settings import EmptyPolicy
from tide.data.record_files import RecordFile
from tide.data.records import Added, Record, RecordId, TrialRecord
from tide.evaluation.perplexity import Reference
from tide.evaluation.progress import Progress
from tide.scorers import Scorer, Scores, load_scorer, score_texts
from tide.scorers.base import code_of, score_groups

# Prompts per chunk; the scores or perplexities of a chunk are written together.
_PROMPTS = 64


@dataclass(frozen=True)
class NamedScorer:
    """A scorer, and the spec that loads it again (None if the scorer was given as an object)."""

    spec: str | None
    scorer: Scorer

    @classmethod
    def of(cls, scorer: str | Scorer | Callable[[list[str]], Any] | NamedScorer) -> NamedScorer:
        """Load a scorer by its spec, or wrap a scorer. Raises as `load_scorer` does."""
        if isinstance(scorer, NamedScorer):
            return scorer
        return cls(scorer if isinstance(scorer, str) else None, load_scorer(scorer))

    @property
    def config(self) -> dict[str, str | None]:
        config = {"spec": self.spec, "name": self.scorer.name}
        if code := code_of(self.scorer):
            config["code"] = code
        return config


def check_names(scorers: Sequence[NamedScorer], option: str = "--judges") -> None:
    """Raise InputError for two scorers of one name, since their scores are kept by name."""
    seen: dict[str, str | Scorer] = {}
    for one in scorers:
        name, own = one.scorer.name, one.spec or one.scorer
        if seen.setdefault(name, own) != own:
            raise InputError(
                f"{option}: two scorers have the same name, {name}: {seen[name]} and {own}; change "
                "the name of one"
            )


def judge_records(
    file: RecordFile, judge: Scorer, empty_policy: EmptyPolicy, progress: Progress
) -> dict[RecordId, TideError]:
    """Score every completion and step that the judge has not scored; returns errors by record id.

    Also adds the attributes of completions, if the judge has attributes.
    Withheld texts are scored, too, so that withholding does not make a method look better.
    Raises ScorerUnavailableError, ScorerRefusedError and ScorerBrokenError.
    """
    failed: dict[RecordId, TideError] = {}
    what = f"judge {judge.name}"
    for chunk in _chunks(file, ("judge_scores", judge.name), what, progress):
        texts = [_texts(trials) for _, trials in chunk]
        scored = score_groups(judge, texts, empty_policy)
        for (record, trials), scores in zip(chunk, scored, strict=True):
            if isinstance(scores, ScorerError):
                failed[record.id] = scores
                progress.failed(what, record.id, scores)
            else:
                file.extend(record.id, _to_add(judge, trials, scores))
    return failed


def judged(record: Record, judge: Scorer, empty_policy: EmptyPolicy) -> Record:
    """Add the judge's scores to `record`; writes no file. Raises as `score_texts` does."""
    scores = score_texts(judge, _texts(record.trials), empty_policy)
    return record.with_added(_to_add(judge, record.trials, scores))


def measure_records(file: RecordFile, reference: Reference, progress: Progress) -> None:
    """Add the perplexity of every completion that lacks it. Raises as `Reference.measure` does."""
    name = reference.name
    for chunk in _chunks(file, ("perplexity", name), f"perplexity by {name}", progress):
        pairs = [(record.prompt, trial.text) for record, trials in chunk for trial in trials]
        found = iter(reference.measure(pairs))
        for record, trials in chunk:
            file.extend(
                record.id, {one.number: {"perplexity": {name: next(found)}} for one in trials}
            )


def _steps(trial: TrialRecord) -> list[str]:
    """Return the texts of a trial to score: its steps, if any. The last text is the completion."""
    return [step.text for step in trial.steps] if trial.steps else [trial.text]


def _texts(trials: Sequence[TrialRecord]) -> list[str]:
    return [text for trial in trials for text in _steps(trial)]


def _to_add(judge: Scorer, trials: Sequence[TrialRecord], scores: Scores) -> Added:
    """Return the judge's scores, and attributes if it has any, as entries to add to each trial."""
    added: Added = {}
    of = scores.split([len(_steps(trial)) for trial in trials])
    for trial, own in zip(trials, of, strict=True):
        values = own.values.tolist()
        entry = added[trial.number] = {"judge_scores": {judge.name: values[-1]}}
        if known := own.known(-1):  # a text too short to be scored has no attributes
            entry["judge_attributes"] = {judge.name: known}
        if trial.steps:
            entry["step_judge_scores"] = {judge.name: values}
    return added


def _chunks(
    file: RecordFile, lacking: tuple[str, str], what: str, progress: Progress
) -> Iterator[list[tuple[Record, list[TrialRecord]]]]:
    """Yield chunks of records, each record with its trials that lack the entry (field, name)."""
    left = {row_id: trials for row_id in file.ids if (trials := file.missing(row_id, *lacking))}
    if not left:
        return
    progress.begin(what, len(left))
    ids = list(left)
    try:
        for start in range(0, len(ids), _PROMPTS):
            records = map(file.read, ids[start : start + _PROMPTS])
            chunk = [(r, [t for t in r.trials if t.number in left[r.id]]) for r in records]
            yield chunk
            progress.advance(len(chunk))
    finally:
        progress.end()

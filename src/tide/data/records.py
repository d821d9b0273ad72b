"""Records of a run: a prompt and its trials, and the files that hold them.

A run has a file with a line per trial, and one with a line per score that is added later. Both only
grow. Reading joins the lines by the id of the prompt and the number of the trial, and drops a
half-written last line, as left by a killed process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, StrictInt, StrictStr
from pydantic_core import to_json

from tide.core.chat import Chat, Message
from tide.core.errors import InputError
from tide.core.results import FinishReason, Result, Role, Score, Trial
from tide.data.files import parse_object, parsed, read_objects, reported

RecordId = int | str
_Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Round, iteration, role, toxicity, cosine and displacement of one evaluation.
TraceEntry = Annotated[
    tuple[NonNegativeInt, NonNegativeInt, Role, Score, FiniteFloat, FiniteFloat],
    Field(strict=False),
]
T = TypeVar("T")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Likelihood(_Frozen):
    """Likelihood of a completion under a reference model.

    nll: mean negative log-likelihood per token (nats); None for a completion without tokens, and if
    the model's numbers overflow.
    num_tokens: length of the completion in the reference model's tokens.
    """

    nll: _Positive | None = None
    num_tokens: NonNegativeInt


class TrialRecord(_Frozen):
    """One trial. A field is None if the method does not have it (a baseline has no base text).

    text: empty if the completion was withheld (`refused`); `withheld_text` is then the completion,
    and its score is kept. attributes: the scorer's scores besides `toxicity` (threat, insult...),
    if any. failed: names of the limits that any text of the trial reached ("toxicity" or an
    attribute of `thresholds`).
    trace: all evaluations. finish_reason: "length" if `max_new_tokens` cut the text off.
    base_text: the unmodified model's completion. base_partial: whether it is only the text before
    the first repair; judges then do not score it.
    seconds: the trial's share of the time. judge_scores: by judge, the score of the completion
    (before it was withheld). base_judge_scores: by judge, the score of `base_text`.
    perplexity: by reference model, the likelihood of the completion.
    """

    number: NonNegativeInt
    text: str
    withheld_text: str | None = None
    toxicity: Score
    attributes: dict[str, Score] = {}
    failed: list[str] = []
    iterations: NonNegativeInt | None = None
    cosine: FiniteFloat | None = None
    displacement: FiniteFloat | None = None
    accepted: bool | None = None
    refused: bool | None = None
    empty: bool | None = None
    evaluations: NonNegativeInt | None = None
    rounds: NonNegativeInt | None = None
    num_tokens: NonNegativeInt | None = None
    finish_reason: FinishReason | None = None
    generated_tokens: NonNegativeInt | None = None
    forward_tokens: NonNegativeInt | None = None
    scorer_calls: NonNegativeInt | None = None
    seconds: _Positive | None = None
    base_text: str | None = None
    base_toxicity: Score | None = None
    base_partial: bool = False
    trace: Annotated[list[TraceEntry], Field(min_length=1)] | None = None
    judge_scores: dict[str, Score] = {}
    base_judge_scores: dict[str, Score] = {}
    perplexity: dict[str, Likelihood] = {}

    def with_score(self, score: JudgeScore | PerplexityScore) -> TrialRecord:
        """Copy the trial, and add what a judge or a reference model found."""
        if isinstance(score, PerplexityScore):
            likelihood = Likelihood(nll=score.nll, num_tokens=score.num_tokens)
            perplexity = {**self.perplexity, score.reference: likelihood}
            return self.model_copy(update={"perplexity": perplexity})
        update = {"judge_scores": {**self.judge_scores, score.judge: score.score}}
        if score.base_score is not None:
            base_scores = {**self.base_judge_scores, score.judge: score.base_score}
            update["base_judge_scores"] = base_scores
        return self.model_copy(update=update)

    def base_score(self, judge: str | None = None) -> float | None:
        """Return the score of the unmodified model's completion, by the scorer or a judge.

        None if the score is unknown, or if only a part of the completion was written.
        """
        if self.base_partial:
            return None
        return self.base_toxicity if judge is None else self.base_judge_scores.get(judge)

    @property
    def not_accepted(self) -> bool:
        """Whether a search ended with a completion that is neither accepted nor empty."""
        return self.accepted is False and not self.empty


class JudgeScore(_Frozen):
    """What a judge found about trial `number` of record `id`: the scores of its completion and of
    its `base_text`, if that is whole.
    """

    id: StrictInt | StrictStr
    number: NonNegativeInt
    judge: str
    score: Score
    base_score: Score | None = None


class PerplexityScore(Likelihood):
    """What a reference model found about trial `number` of record `id`."""

    id: StrictInt | StrictStr
    number: NonNegativeInt
    reference: str


class Record(_Frozen):
    """One prompt, and its trials in the order of their numbers.

    messages: the chat that the prompt was rendered from, if any.
    """

    id: StrictInt | StrictStr
    prompt: str
    messages: list[Message] | None = None
    group: str | None = None
    trials: list[TrialRecord] = Field(min_length=1)

    @property
    def asked(self) -> str:
        """The prompt, or a chat's messages as JSON, since a template may write today's date."""
        if self.messages is None:
            return self.prompt
        return json.dumps([message.dump() for message in self.messages])

    @property
    def context(self) -> str | Chat:
        """What the completions answer, for scorers that read exchanges. May raise InputError."""
        return self.prompt if self.messages is None else Chat.of(self.messages)

    @property
    def worst(self) -> TrialRecord:
        """The first of the most toxic trials."""
        return max(self.trials, key=lambda trial: trial.toxicity)

    def first(self, num_trials: int) -> Record:
        """Return the record without its later trials."""
        return self.model_copy(update={"trials": self.trials[:num_trials]})

    def lines(self) -> list[bytes]:
        """Return a line of a .jsonl file for each trial."""
        about = self.model_dump(exclude={"trials"}, exclude_defaults=True)
        return [
            to_json({**about, **trial.model_dump(exclude_defaults=True)}) + b"\n"
            for trial in self.trials
        ]


def to_record(
    row_id: RecordId, result: Result, *, seconds: float | None = None, **more: Any
) -> Record:
    """Make a record of a result. seconds: time of all trials. more: further fields."""
    share = None if seconds is None else seconds / len(result.trials)
    trials = [_trial(trial, share) for trial in result.trials]
    return Record(id=row_id, prompt=result.prompt, trials=trials, **more)


def _trial(trial: Trial, seconds: float | None) -> TrialRecord:
    shared = {
        name: getattr(source, name)
        for source in (trial.returned, trial)
        for name in TrialRecord.model_fields
        if hasattr(source, name)
    }
    trace = [
        (
            evaluation.round,
            evaluation.iteration,
            evaluation.role,
            evaluation.toxicity,
            round(evaluation.cosine, 6),
            round(evaluation.displacement, 6),
        )
        for evaluation in trial.trace
    ]
    derived = {
        "trace": trace,
        "withheld_text": trial.returned.text if trial.refused else None,
        "base_text": trial.base.text,
        "base_toxicity": trial.base.toxicity,
    }
    return TrialRecord(**shared | derived, seconds=seconds)


SomeScore = JudgeScore | PerplexityScore
_OF_PROMPT = ("id", "prompt", "messages", "group")


def read_records(path: Path, scores: Path | None = None) -> list[Record]:
    """Read the records of a file, with the scores of another file, in the order of their ids.

    Raises InputError, with the line's number, for a line that is not a trial or a score.
    """
    records: dict[RecordId, Record] = {}
    for where, values in read_objects(path, drop_cut=True):
        about = {name: values[name] for name in _OF_PROMPT if name in values}
        trial = {name: value for name, value in values.items() if name not in _OF_PROMPT}
        line = parsed(Record, {**about, "trials": [trial]}, f"{where}: not a record of a run")
        records[line.id] = _joined(records.get(line.id), line)
    added: dict[RecordId, list[SomeScore]] = {}
    if scores is not None and scores.exists():
        for where, values in read_objects(scores, drop_cut=True):
            kind: type[SomeScore] = JudgeScore if "judge" in values else PerplexityScore
            score = parsed(kind, values, f"{where}: not a score of a run")
            added.setdefault(score.id, []).append(score)
    for row_id in added.keys() & records.keys():
        records[row_id] = with_scores(records[row_id], added[row_id])
    return sorted(records.values(), key=lambda record: (isinstance(record.id, str), record.id))


def _joined(record: Record | None, further: Record) -> Record:
    """Add the trials of `further` to a record of the same prompt, in the order of their numbers."""
    if record is None:
        return further
    trials = sorted([*record.trials, *further.trials], key=lambda trial: trial.number)
    return record.model_copy(update={"trials": trials})


def with_scores(record: Record, scores: Iterable[SomeScore]) -> Record:
    """Copy a record, and add scores to its trials."""
    trials = {trial.number: trial for trial in record.trials}
    for score in scores:
        if score.number in trials:
            trials[score.number] = trials[score.number].with_score(score)
    return record.model_copy(update={"trials": list(trials.values())})


class RecordFile:
    """The records of a run, read whole, and open to be extended by trials and scores.

    The caller holds the lock of the file (`writing`). overwrite: delete the old records and scores.
    Raises InputError if the file cannot be written, or if it is not a file of records.
    """

    def __init__(self, path: Path, scores: Path, *, overwrite: bool = False) -> None:
        self.path, self._scores = path, scores
        self.records: dict[RecordId, Record] = {}
        if overwrite:
            with reported(path, "written"):
                scores.unlink(missing_ok=True)
                path.write_bytes(b"")
        for file in (path, scores):
            _end_last_line(file)
        if path.exists():
            self.records = {record.id: record for record in read_records(path, scores)}

    def trials(self, row_id: RecordId) -> list[int]:
        """Return the numbers of the existing trials of a record."""
        record = self.records.get(row_id)
        return [] if record is None else [trial.number for trial in record.trials]

    def add(self, record: Record) -> None:
        """Append a record, or further trials of an existing record.

        Raises InputError if the file cannot be written.
        """
        self._append(self.path, record.lines())
        self.records[record.id] = _joined(self.records.get(record.id), record)

    def add_scores(self, row_id: RecordId, scores: Sequence[SomeScore]) -> None:
        """Append scores of the trials of a record. Raises InputError like `add`."""
        lines = [to_json(score.model_dump(exclude_defaults=True)) + b"\n" for score in scores]
        self._append(self._scores, lines)
        self.records[row_id] = with_scores(self.records[row_id], scores)

    def _append(self, path: Path, lines: Sequence[bytes]) -> None:
        with reported(path, "written"), path.open("ab") as file:
            file.write(b"".join(lines))


def _end_last_line(path: Path) -> None:
    """Remove a half-written last line, or add the newline that a whole last line lacks."""
    if not path.exists():
        return
    with reported(path, "written"):
        content = path.read_bytes()
        start = content.rfind(b"\n") + 1
        if start == len(content):
            return
        try:
            parse_object(content[start:], str(path))
        except InputError:
            os.truncate(path, start)
        else:
            with path.open("ab") as file:
                file.write(b"\n")

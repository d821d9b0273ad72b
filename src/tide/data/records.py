"""Records of a run: what each prompt became, one entry a trial in every list; and their file.

A file of records is a log while work is under way: each line is a part of the record of an id.
The first holds its first trials. Later parts hold further trials, a judge's scores, or the
perplexity under a reference model; `trials` says which trials the lists of a part are of. Reading
merges the parts. When the work is done, the file is written anew with one line a record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    computed_field,
    model_validator,
)

from tide.core.chat import Chat, Message
from tide.core.errors import InputError
from tide.core.results import Block, Result, Role, Score, Trial
from tide.core.validation import problem
from tide.data.files import numbered, replaced, reported, without_mark, writing
from tide.data.jsonl import leaves, parse_object, read_objects

RecordId = int | str
# The name of a list inside a record: ("completions",), ("judge_scores", NAME).
Column = tuple[str, ...]
# Sums and squares of these are finite, too.
_Finite = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
_Positive = Annotated[float, Field(ge=0, le=1e100, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=2**53)]
# Round, iteration, role, toxicity, cosine and displacement of one evaluation.
TraceEntry = Annotated[
    tuple[_Count, _Count, Role, Score, _Finite, _Finite],
    Field(strict=False),
]
_DERIVED = ("avg_toxicity", "max_toxicity")
# What is not a list with one entry a trial.
_OF_THE_PROMPT = ("id", "prompt", "messages", "group", "trials", "seconds", *_DERIVED)
# Lists that are added to finished records, and how deep they lie; the others come with the trials.
_ADDED = {"judge_scores": 2, "step_judge_scores": 2, "judge_attributes": 3, "perplexity": 3}
_FIRST: Column = ("completions",)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Step(_Frozen):
    """What a search would return if it were cut off after so many evaluations."""

    evaluations: int = Field(ge=1, le=2**53)
    text: str
    toxicity: Score


class BlockEntry(_Frozen):
    """A block of an answer; see `tide.Block`. trace: as those of a record."""

    text: str
    toxicity: Score
    num_tokens: _Count
    context_tokens: _Count
    rollbacks: _Count
    chosen: _Count
    trace: list[TraceEntry] = Field(min_length=1)


class Likelihoods(_Frozen):
    """Under a reference model, one entry a trial; None where that trial was not measured yet.

    nll: mean negative log-likelihood a token (nats); None for a completion without tokens, too.
    num_tokens: length of the completion in the reference model's tokens.
    """

    nll: list[_Positive | None]
    num_tokens: list[_Count | None]


class Record(_Frozen):
    """One prompt. A list is None where the method has no such thing (a baseline has no steps).

    A superset of the published format (`id, prompt, completions, toxicity_scores,
    num_iter_steps, cosine_sims, avg_toxicity, max_toxicity`).

    messages: the chat that the prompt is made from, if it is one.
    changed_tokens, decoded_prompts: of accepted points, as a `tide.Trial` has them; None where none
    was decoded.
    trials: their numbers, ascending; `trials[i]` is what entry i of every list is of. completions:
    a withheld one is an empty text that keeps its score and is marked in `refused`.
    steps: what a search would return if it were cut off, from its first evaluation to the one that
    is returned or withheld. traces: all evaluations. blocks: of answers that were written in
    blocks, whose traces hold the whole answer as drafted and as returned, and whose evaluations are
    those of all blocks. whole_toxicity: of these as a whole; None where a block had failed.
    judge_scores: by judge, of the completions as they were before any was withheld.
    step_judge_scores: by judge, of each step. Both hold None where a judge has not scored yet.
    judge_attributes: by judge and attribute (threat, insult...), of the completions, for judges
    that have some; None also for a completion that was too short to be scored.
    perplexity: by reference model. seconds: of all trials together.
    """

    id: StrictInt | StrictStr
    prompt: str
    messages: list[Message] | None = None
    group: str | None = None
    trials: list[_Count] = Field(min_length=1)
    completions: list[str]
    toxicity_scores: list[Score]
    num_iter_steps: list[_Count] | None = None
    cosine_sims: list[_Finite] | None = None
    displacements: list[_Finite] | None = None
    accepted: list[bool] | None = None
    refused: list[bool] | None = None
    empty: list[bool] | None = None
    changed_tokens: list[_Count | None] | None = None
    decoded_prompts: list[str | None] | None = None
    evaluations: list[_Count] | None = None
    rounds: list[_Count] | None = None
    num_tokens: list[_Count] | None = None
    generated_tokens: list[_Count] | None = None
    drafted_tokens: list[_Count] | None = None
    forward_tokens: list[_Count] | None = None
    scorer_calls: list[_Count] | None = None
    likelihood_calls: list[_Count] | None = None
    base_completions: list[str] | None = None
    base_toxicity_scores: list[Score] | None = None
    traces: list[Annotated[list[TraceEntry], Field(min_length=1)]] | None = None
    steps: list[Annotated[list[Step], Field(min_length=1)]] | None = None
    blocks: list[Annotated[list[BlockEntry], Field(min_length=1)]] | None = None
    whole_toxicity: list[Score | None] | None = None
    seconds: _Positive | None = None
    judge_scores: dict[str, list[Score | None]] = {}
    step_judge_scores: dict[str, list[list[Score] | None]] = {}
    judge_attributes: dict[str, dict[str, list[Score | None]]] = {}
    perplexity: dict[str, Likelihoods] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_derived(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A recorded average is not believed: it follows from the scores."""
        return {name: value for name, value in values.items() if name not in _DERIVED}

    @model_validator(mode="after")
    def _one_score_a_step(self) -> Record:
        for judge, trials in self.step_judge_scores.items():
            counts = [len(steps) for steps in self.steps or ()] or [0] * len(trials)
            for number, scores in zip(counts, trials, strict=True):
                if scores is not None and len(scores) != number:
                    raise ValueError(f"step_judge_scores.{judge} has not one score a step")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def avg_toxicity(self) -> float:
        return sum(self.toxicity_scores) / len(self.toxicity_scores)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def max_toxicity(self) -> float:
        return max(self.toxicity_scores)

    @property
    def not_accepted(self) -> int:
        """How many completions, but for empty ones, a search gave out or withheld unaccepted."""
        pairs = zip(self.accepted or (), self.empty or (), strict=False)
        return sum(not (accepted or empty) for accepted, empty in pairs)

    def scores_by(self, judge: str) -> list[float] | None:
        """One score a trial; None if the judge has not scored them all."""
        scores = [score for score in self.judge_scores.get(judge, ()) if score is not None]
        return scores if len(scores) == len(self.trials) else None

    def base_scores_by(self, judge: str) -> list[float] | None:
        """The judge's scores of the prompt's own completions; None if it has not all."""
        scores = [steps[0] for steps in self.step_judge_scores.get(judge, ()) if steps]
        return scores if len(scores) == len(self.trials) else None

    def to_json(self, *, further: bool = False) -> str:
        """One line. further: as a part that adds these trials to a record that is there."""
        excluded = {"prompt", "messages", "group", *_DERIVED} if further else None
        return self.model_dump_json(exclude_defaults=True, exclude=excluded)


def to_record(row_id: RecordId, result: Result, **more: Any) -> Record:
    """One prompt as a search left it; `more` fills further fields."""
    trials = result.trials
    return Record(
        id=row_id,
        prompt=result.prompt,
        trials=[trial.number for trial in trials],
        completions=[trial.text for trial in trials],
        toxicity_scores=[trial.toxicity for trial in trials],
        num_iter_steps=[trial.iterations for trial in trials],
        cosine_sims=[trial.returned.cosine for trial in trials],
        displacements=[trial.returned.displacement for trial in trials],
        accepted=[trial.accepted for trial in trials],
        refused=[trial.refused for trial in trials],
        empty=[trial.returned.empty for trial in trials],
        evaluations=[trial.evaluations for trial in trials],
        rounds=[trial.rounds for trial in trials],
        num_tokens=[trial.returned.num_tokens for trial in trials],
        generated_tokens=[trial.generated_tokens for trial in trials],
        scorer_calls=[trial.scorer_calls for trial in trials],
        likelihood_calls=[trial.likelihood_calls for trial in trials],
        base_completions=[trial.base.text for trial in trials],
        base_toxicity_scores=[trial.base.toxicity for trial in trials],
        traces=[_trace(trial) for trial in trials],
        steps=[_steps(trial) for trial in trials],
        **(_in_blocks(trials) if trials[0].blocks else {}),
        **_decoded(trials),
        **more,
    )


def _decoded(trials: Sequence[Trial]) -> dict[str, Any]:
    changed = [trial.changed_tokens for trial in trials]
    if changed.count(None) == len(changed):
        return {}
    return {
        "changed_tokens": changed,
        "decoded_prompts": [trial.decoded_prompt for trial in trials],
    }


def _in_blocks(trials: Sequence[Trial]) -> dict[str, Any]:
    return {
        "blocks": [[_block(block) for block in trial.blocks] for trial in trials],
        "whole_toxicity": [trial.whole_toxicity for trial in trials],
        "drafted_tokens": [trial.drafted_tokens for trial in trials],
    }


def _block(block: Block) -> BlockEntry:
    return BlockEntry(
        text=block.text,
        toxicity=block.toxicity,
        num_tokens=block.num_tokens,
        context_tokens=block.context_tokens,
        rollbacks=block.rollbacks,
        chosen=block.chosen,
        trace=_trace(block),
    )


def _trace(of: Trial | Block) -> list[TraceEntry]:
    return [
        (e.round, e.iteration, e.role, e.toxicity, round(e.cosine, 6), round(e.displacement, 6))
        for e in of.trace
    ]


def _steps(trial: Trial) -> list[Step]:
    """The least toxic completion so far, whenever that changes, and at the end what is returned."""
    trace = trial.trace
    spent = trial.chosen + 1 if trial.accepted else len(trace)
    least = [0]
    for number in range(1, spent):
        if trace[number].toxicity < trace[least[-1]].toxicity:
            least.append(number)
    ends = [(number + 1, number) for number in least]
    if trial.blocks:  # as drafted, after at least one evaluation; as returned, after all of them
        ends = [(1, 0), (trial.evaluations, trial.chosen)][-len(trace) :]
    elif least[-1] != trial.chosen:
        ends = [*(end for end in ends if end[0] < spent), (spent, trial.chosen)]
    return [
        Step(evaluations=count, text=trace[number].text, toxicity=trace[number].toxicity)
        for count, number in ends
    ]


class RecordPart:
    """What one line, at `where`, says of a record; `trials` says which trials its lists are of.

    Raises InputError without an id, or for lists that do not fit the trials.
    """

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where, self.values = where, values
        row_id, trials = values.get("id"), values.get("trials", [])
        if not isinstance(row_id, int | str) or isinstance(row_id, bool):
            raise InputError(f"{where}: not a record of a run: no id that is a number or a text")
        if "trials" not in values and isinstance(texts := values.get("completions"), list):
            trials = list(range(len(texts)))  # as in published records
        numbers = trials if isinstance(trials, list) else [None]
        if not all(type(n) is int for n in numbers) or len(set(numbers)) < len(numbers):
            raise InputError(f"{where}: not a record of a run: trials are not distinct numbers")
        seconds = values.get("seconds", 0.0)
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise InputError(f"{where}: not a record of a run: seconds: is not a number")
        self.id: RecordId = row_id
        self.columns: dict[Column, dict[int, Any]] = {}
        lists = {name: value for name, value in values.items() if name not in _OF_THE_PROMPT}
        for column, entries in leaves(lists):
            name = ".".join(column)
            if len(column) != _ADDED.get(column[0], 1):
                raise InputError(f"{where}: not a record of a run: {name} is not at its place")
            if not isinstance(entries, list) or len(entries) != len(trials):
                raise InputError(f"{where}: {name} has not one entry a trial ({len(trials)})")
            self.columns[column] = dict(zip(trials, entries, strict=True))


def read_records(path: Path) -> list[Record]:
    """All records of a file, in the order in which their first parts stand in it.

    A last line that was cut off is left out. Raises InputError, with the line's number, for a line
    that is not a part of a record, or that repeats what is there already.
    """
    parts: dict[RecordId, list[RecordPart]] = {}
    for where, values in read_objects(path, drop_cut=True):
        part = RecordPart(where, values)
        parts.setdefault(part.id, []).append(part)
    return [merged(some) for some in parts.values()]


def merged(parts: Sequence[RecordPart]) -> Record:
    """The record that consists of these parts.

    Raises InputError for a part that repeats what is there, and for a field that is wrong.
    """
    begin, first = parts[0].where, parts[0].values
    own = ("id", "prompt", "messages", "group")
    found: dict[str, Any] = {name: first[name] for name in own if name in first}
    columns: dict[Column, dict[int, Any]] = {}
    for part in parts:
        if part is not parts[0] and "prompt" in part.values:
            raise InputError(f"{part.where}: record {part.id!r} is there already ({begin})")
        if "seconds" in part.values:
            found["seconds"] = found.get("seconds", 0.0) + part.values["seconds"]
        for column, entries in part.columns.items():
            known = columns.setdefault(column, {})
            for trial in entries:
                if known.get(trial) is not None:
                    name = f"{'.'.join(column)} of trial {trial}"
                    raise InputError(f"{part.where}: {name} is there already ({begin})")
            known |= entries
    found["trials"] = sorted(columns.get(_FIRST, {}))
    for (*outer, last), known in columns.items():
        if unknown := known.keys() - set(found["trials"]):
            name = ".".join((*outer, last))
            raise InputError(f"{begin}: {name} of trial {min(unknown)}, which is not there")
        target = found
        for name in outer:
            target = target.setdefault(name, {})
        target[last] = [known.get(trial) for trial in found["trials"]]
    try:
        return Record.model_validate(found)
    except ValidationError as error:
        raise InputError(f"{begin}: not a record of a run: {problem(error)}") from None


class RecordFile:
    """A file of records that a command reads, adds parts to, and rewrites at its end.

    Nobody else writes to it meanwhile. Every record in it is validated when it is opened. Holds
    where the parts of each record stand and which trials they cover, never their texts. A last line
    that was cut off is dropped from the file. Leaving the context without an error compacts it.

    instead: begin a new file. It takes the place of what is there, inside of this context, when its
    first record is written, or at the end of the work if there is none.

    Raises InputError if another process writes to the file, if it cannot be written, or if it is no
    file of records.
    """

    def __init__(self, path: Path, *, instead: AbstractContextManager[None] | None = None) -> None:
        self.path, self._instead = path, instead
        self._order: Sequence[RecordId] = ()
        with ExitStack() as stack:
            self._real = stack.enter_context(writing(path))
            self._at = self._real.with_name(f"{self._real.name}.part") if instead else self._real
            if instead is not None:
                with reported(path, "written"):
                    self._at.open("wb").close()
                stack.callback(self._forget)
            self._open()
            stack.callback(self._close)
            self._scan()
            self._closing = stack.pop_all()

    def _open(self) -> None:
        with reported(self.path, "written"):
            # Unbuffered: what is not written yet is not written later, after an error.
            self._out = self._at.open("ab", buffering=0)
            self._file = self._at.open("rb")

    def _close(self) -> None:
        self._out.close()
        self._file.close()

    def _forget(self) -> None:
        if self._instead is not None:
            with suppress(OSError):
                self._at.unlink()

    @property
    def ids(self) -> list[RecordId]:
        return list(self._places)

    def expect(self, prompts: dict[RecordId, str | Chat], most: int | None = None) -> None:
        """Say which records there will be: the compacted file has them first, in this order.

        A chat is compared by its messages: a template may write the day into its text.

        most: so many prompts were ever asked for, if that is known.
        Raises InputError if a record that is there was made from another prompt, or from none.
        """
        foreign = [row_id for row_id in self.ids if row_id not in prompts]
        if most is not None and foreign and len(prompts) + len(foreign) > most:
            raise InputError(
                f"{self.path}: record {foreign[0]!r} is of no prompt of the input; write "
                "elsewhere, or start again with --overwrite"
            )
        for row_id, prompt in prompts.items():
            asked = _digest(prompt.dump() if isinstance(prompt, Chat) else prompt)
            if self._prompts.get(row_id, asked) != asked:
                raise InputError(
                    f"{self.path}: record {row_id!r} was made from another prompt than the input "
                    "has; write elsewhere, or start again with --overwrite"
                )
        self._order = list(prompts)

    def trials(self, row_id: RecordId) -> tuple[int, ...]:
        """The numbers of the trials that are there."""
        return self._covered.get(row_id, {}).get(_FIRST, ())

    def missing(self, row_id: RecordId, column: Column) -> list[int]:
        """The numbers of the trials that are there, but not in `column`."""
        covered = self._covered[row_id].get(column, ())
        return [trial for trial in self.trials(row_id) if trial not in covered]

    def read(self, row_id: RecordId) -> Record:
        parts = []
        for number, offset in self._places[row_id]:
            with reported(self.path, "read"):
                self._file.seek(offset)
                line = self._file.readline()
            parts.append(self._part(line, f"{self.path}, line {number}"))
        return merged(parts)

    def add(self, record: Record) -> None:
        """Append a record, or further trials of one that is there, and hand it to the system."""
        self.append(record.to_json(further=record.id in self._places))

    def append(self, line: str) -> None:
        """Append a part, as JSON, and hand it to the operating system at once.

        Raises InputError if it cannot be written whole; then nothing of it is left in the file.
        """
        content, offset = line.encode() + b"\n", os.fstat(self._out.fileno()).st_size
        self._index(offset, self._part(content, f"{self.path}, line {self._lines + 1}"))
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[self._out.write(rest) :]
        except BaseException as error:
            with suppress(OSError):
                self._out.truncate(offset)
            if not isinstance(error, OSError):
                raise
            raise InputError(
                f"{self.path}: cannot be written: {error.strerror}; the records before are kept, "
                "and the same command goes on"
            ) from error
        self._replace()

    def _replace(self) -> None:
        if self._instead is not None:
            with self._instead, reported(self.path, "written"):
                os.replace(self._at, self._real)
            self._at, self._instead = self._real, None

    def compact(self) -> None:
        """Write one line a record, in the order expected, beside the file and then in its place."""
        self._replace()
        wanted = [row_id for row_id in self._order if row_id in self._places]
        wanted = list(dict.fromkeys([*wanted, *self._places]))
        if wanted == self.ids and all(len(places) == 1 for places in self._places.values()):
            return
        with replaced(self._real) as file:
            for row_id in wanted:
                file.write(self.read(row_id).to_json().encode() + b"\n")
        self._close()
        self._open()
        self._scan()

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._closing:
            if kind is None:
                self.compact()

    def _scan(self) -> None:
        self._places: dict[RecordId, list[tuple[int, int]]] = {}  # numbers and offsets of lines
        self._covered: dict[RecordId, dict[Column, tuple[int, ...]]] = {}
        self._prompts: dict[RecordId, bytes] = {}
        self._lines = offset = 0
        with reported(self.path, "read"):
            for where, line in numbered(self._file, self.path):
                if not line.endswith(b"\n"):
                    break
                self._index(offset, part := self._part(line, where))
                offset += len(line)
                if len(self._places[part.id]) == 1:
                    merged([part])
            if offset < os.fstat(self._out.fileno()).st_size:
                self._out.truncate(offset)
        for row_id, places in self._places.items():
            if len(places) > 1:
                self.read(row_id)

    def _part(self, line: bytes, where: str) -> RecordPart:
        return RecordPart(where, parse_object(without_mark(line), where))

    def _index(self, offset: int, part: RecordPart) -> None:
        where, row_id, prompt = part.where, part.id, part.values.get("prompt")
        if "prompt" in part.values:
            if row_id in self._places or not isinstance(prompt, str):
                raise InputError(f"{where}: not a record of a run, or there already ({row_id!r})")
            self._prompts[row_id] = _digest(part.values.get("messages") or prompt)
        elif row_id not in self._places:
            raise InputError(f"{where}: not a record of a run: no prompt")
        covered = self._covered.setdefault(row_id, {})
        for column, entries in part.columns.items():
            if column == _FIRST or column[0] in _ADDED:
                there = [trial for trial, value in entries.items() if value is not None]
                before = covered.get(column, ())
                if set(before).intersection(there):
                    raise InputError(f"{where}: repeats {'.'.join(column)} of record {row_id!r}")
                covered[column] = (*before, *there)
        self._lines += 1
        self._places.setdefault(row_id, []).append((self._lines, offset))


def _digest(asked: Any) -> bytes:
    """Of a prompt, or of the messages of a chat as JSON has them."""
    text = asked if isinstance(asked, str) else json.dumps(asked, sort_keys=True)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()

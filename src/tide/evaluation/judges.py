"""Judges and reference models, and what they add to the records of a run: scores and perplexity.

The perplexity of a completion is exp of the mean negative log-likelihood of its tokens after its
prompt, in batches. The reference is a larger model of the same family, or one model for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tide.core.errors import InputError, ScorerError, TideError
from tide.core.settings import EmptyPolicy
from tide.data.record_files import RecordFile
from tide.data.records import Added, Likelihood, Record, RecordId, TrialRecord
from tide.detoxifier.presets import preset_for
from tide.engines import load_engine
from tide.evaluation.progress import Progress
from tide.pocket import FOLDERS
from tide.scorers import Scorer, Scores, load_scorer, score_texts
from tide.scorers.base import score_groups

# Number of prompts that are scored or measured, and then written, at a time.
_PROMPTS = 64


@dataclass(frozen=True)
class NamedScorer:
    """A scorer, and the spec that loads it again (None if the scorer was given as an object)."""

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
    """Score every completion and step that the judge has not scored; returns the failed records.

    It adds the attributes of completions as well, if the judge has some.

    A judge sees a withheld text too: withholding must not make a method look better.
    Raises ScorerUnavailableError and ScorerBrokenError.
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
                file.extend(record.id, _said(judge, trials, scores))
    return failed


def judged(record: Record, judge: Scorer, empty_policy: EmptyPolicy) -> Record:
    """The record, which is in no file, with the judge's scores. Raises as `score_texts`."""
    scores = score_texts(judge, _texts(record.trials), empty_policy)
    return record.with_added(_said(judge, record.trials, scores))


def measure_records(file: RecordFile, reference: Reference, progress: Progress) -> None:
    """Add the perplexity of every completion that has none. Raises InputError as `Reference`."""
    name = reference.name
    for chunk in _chunks(file, ("perplexity", name), f"perplexity by {name}", progress):
        pairs = [(record.prompt, trial.text) for record, trials in chunk for trial in trials]
        found = iter(reference.measure(pairs))
        for record, trials in chunk:
            file.extend(
                record.id, {one.number: {"perplexity": {name: next(found)}} for one in trials}
            )


def _steps(trial: TrialRecord) -> list[str]:
    """The texts of a trial that a judge scores: its steps, the last being the completion."""
    return [step.text for step in trial.steps] if trial.steps else [trial.text]


def _texts(trials: Sequence[TrialRecord]) -> list[str]:
    return [text for trial in trials for text in _steps(trial)]


def _said(judge: Scorer, trials: Sequence[TrialRecord], scores: Scores) -> Added:
    """The judge's scores, and its attributes if it has some."""
    added: Added = {}
    of = scores.split([len(_steps(trial)) for trial in trials])
    for trial, own in zip(trials, of, strict=True):
        values = own.values.tolist()
        said = added[trial.number] = {"judge_scores": {judge.name: values[-1]}}
        if known := own.known(-1):  # a text too short to be scored has no attributes
            said["judge_attributes"] = {judge.name: known}
        if trial.steps:
            said["step_judge_scores"] = {judge.name: values}
    return added


def _chunks(
    file: RecordFile, lacking: tuple[str, str], what: str, progress: Progress
) -> Iterator[list[tuple[Record, list[TrialRecord]]]]:
    """Chunks of records, each with its trials that lack the entry `name` of `field`."""
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


# The references of the paper, by the name of the model that is evaluated.
REFERENCES = {
    "gpt2-large": "openai-community/gpt2-xl",
    "gemma-2-2b": "google/gemma-2-9b",
    "qwen3-4b": "Qwen/Qwen3-8B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-70B",
}
# The paper's one reference for all models, by which their texts can be compared.
_GLOBAL = "Qwen/Qwen3-14B"
# Number of completions measured at a time, sorted by length.
_CHUNK = 512


def reference_named(name: str, model: str) -> str | None:
    """The reference model that `name` means for `model`, which "auto" and "global" depend on.

    "auto": the paper's for its family, the bundled one, or None if none is known.
    """
    if name != "auto":
        return _GLOBAL if name == "global" else name
    return "pocket-reference" if model in FOLDERS else REFERENCES.get(preset_for(model))


class Reference:
    """A causal LM that measures texts. Raises EngineError as any model does that cannot load.

    engine: "vllm" for a model that needs several GPUs (`tensor_parallel_size=4`).
    Raises InputError for an engine without a local tokenizer, and for unknown options.
    """

    def __init__(self, model: str, engine: str = "transformers", **engine_options: Any) -> None:
        self.name = model
        self._engine: Any = load_engine(engine, model, **engine_options)
        if not hasattr(self._engine, "tokenizer"):
            self._engine.close()
            raise InputError(f"reference engine {engine!r}: has no tokenizer; use 'vllm'")

    def measure(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """The likelihood of each completion after its prompt.

        Measured are the completion's tokens in the text of prompt and completion. Where the
        tokenizer joins the end of the prompt and the start of the completion into one token, they
        are tokenised apart. A value differs from the same one measured in other company in the
        seventh digit:
        the lengths in a batch decide the order in which numbers are added.
        Raises InputError where both together exceed the model's context.
        """
        return [
            one
            for start in range(0, len(pairs), _CHUNK)
            for one in self._measure(pairs[start : start + _CHUNK])
        ]

    def _measure(self, pairs: Sequence[tuple[str, str]]) -> Iterator[Likelihood]:
        prompts = self._engine.tokenize([prompt for prompt, _ in pairs])
        completions = self._completions(pairs, prompts)
        limit = self._engine.context_length
        for prompt, completion in zip(prompts, completions, strict=True):
            if limit is not None and len(prompt) + len(completion) > limit:
                raise InputError(
                    f"reference {self.name}: {len(prompt)} tokens of a prompt and "
                    f"{len(completion)} of its completion exceed its context of {limit}; "
                    "choose another with --reference"
                )
        rows = [i for i, ids in enumerate(completions) if ids]
        values = np.full(len(pairs), np.nan)
        if rows:
            asked = [(prompts[i], completions[i]) for i in rows]
            found = self._engine.portal.run(self._engine.log_likelihoods, asked)
            values[rows] = [-one.mean for one in found]
        for value, ids in zip(values.tolist(), completions, strict=True):
            # A rounding error may push the probability of a token above 1.
            nll = max(value, 0.0) if math.isfinite(value) else None
            yield Likelihood(nll=nll, num_tokens=len(ids))

    def _completions(
        self, pairs: Sequence[tuple[str, str]], prompts: Sequence[list[int]]
    ) -> list[list[int]]:
        joint = self._engine.tokenize([prompt + completion for prompt, completion in pairs])
        apart = self._engine.tokenizer(
            [completion for _, completion in pairs], add_special_tokens=False
        )["input_ids"]
        rows = zip(pairs, prompts, joint, apart, strict=True)
        return [
            whole[len(prompt) :] if completion and whole[: len(prompt)] == prompt else alone
            for (_, completion), prompt, whole, alone in rows
        ]

    def close(self) -> None:
        self._engine.close()

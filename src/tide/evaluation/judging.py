"""Adds scores of judges, and perplexity under reference models, to the records of a run.

Perplexity is exp of the mean negative log-likelihood of a completion's tokens after its prompt. The
reference is a larger model of the same family, or one model for all evaluated models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

from tide.core.errors import (
    CompletionError,
    EngineError,
    InputError,
    ScorerError,
    TideError,
    guarded,
)
from tide.data.records import (
    JudgeScore,
    Likelihood,
    PerplexityScore,
    Record,
    RecordFile,
    RecordId,
    TrialRecord,
    with_scores,
)
from tide.detoxifier.presets import preset_for
from tide.engines import load_engine
from tide.evaluation.console import Progress, chunks
from tide.pocket import FOLDERS
from tide.scorers import load_scorer
from tide.scorers.base import (
    Exchange,
    Scorer,
    TextScore,
    close_scorer,
    code_of,
    is_nearly_empty,
    score_groups,
    score_texts,
    split,
)

AnyScorer = str | Scorer | Callable[[list[Any]], Any]

# Prompts per chunk; the scores or perplexities of a chunk are written together.
_PROMPTS = 64


@dataclass(frozen=True)
class NamedScorer:
    """A scorer, and the spec that loads it again (None if the scorer was given as an object)."""

    spec: str | None
    scorer: Scorer

    @property
    def config(self) -> dict[str, str | None]:
        return {"spec": self.spec, "name": self.scorer.name, "code": code_of(self.scorer) or None}


def open_scorer(scorer: AnyScorer, stack: ExitStack) -> NamedScorer:
    """Return a scorer; `stack` closes it if it was loaded here. Raises as `load_scorer` does."""
    named = NamedScorer(scorer if isinstance(scorer, str) else None, load_scorer(scorer))
    if named.spec is not None:
        stack.callback(close_scorer, named.scorer)
    return named


def open_scorers(
    scorers: Sequence[AnyScorer], stack: ExitStack, option: str = "--judges"
) -> list[NamedScorer]:
    """Open scorers. Raises InputError for two of one name, since their scores are kept by name."""
    opened = [open_scorer(scorer, stack) for scorer in scorers]
    seen: dict[str, str | Scorer] = {}
    for named in opened:
        name, source = named.scorer.name, named.spec or named.scorer
        if seen.setdefault(name, source) != source:
            raise InputError(f"{option}: two scorers have the name {name}; rename one")
    return opened


def without_guide(
    judges: Sequence[NamedScorer], guide: str, progress: Progress, *, where: str = "--judges"
) -> list[NamedScorer]:
    """Leave out a judge that is the scorer `guide` of a run, which has its scores, and say so."""
    independent = [judge for judge in judges if judge.scorer.name != guide]
    if len(independent) < len(judges):
        progress.say(f"{where}: {guide} is the scorer of this run, not a judge; it has its scores")
    return independent


def judge_records(file: RecordFile, judge: Scorer, progress: Progress) -> dict[RecordId, TideError]:
    """Score the completions and base texts that lack the judge; returns errors by record id.

    A judge that reads exchanges gets the prompts, too.

    Nearly empty completions score 0.0. Withheld texts are scored, too, so that withholding does not
    make a method look better.
    Raises ScorerUnavailableError, ScorerRefusedError and ScorerBrokenError.
    """
    failed: dict[RecordId, TideError] = {}
    title = f"judge {judge.name}"
    lacking = _lacking(file, lambda trial: judge.name not in trial.judge_scores)
    for chunk in chunks(lacking, _PROMPTS, title, progress):
        scored = score_groups(judge, [_exchanges(record) for record in chunk], is_nearly_empty)
        for record, scores in zip(chunk, scored, strict=True):
            if isinstance(scores, ScorerError):
                failed[record.id] = scores
                progress.failed(title, record.id, scores)
            else:
                file.add_scores(record.id, _judge_scores(judge, record, scores))
    return failed


def judged(record: Record, judge: Scorer) -> Record:
    """Add the judge's scores to `record`; writes no file. Raises as `score_texts` does."""
    scores = score_texts(judge, _exchanges(record), is_nearly_empty)
    return with_scores(record, _judge_scores(judge, record, scores))


def measure_records(file: RecordFile, reference: Reference, progress: Progress) -> None:
    """Add the perplexity of every completion that lacks it. Raises as `Reference.measure` does."""
    name = reference.name
    lacking = _lacking(file, lambda trial: name not in trial.perplexity)
    for chunk in chunks(lacking, _PROMPTS, f"perplexity by {name}", progress):
        pairs = [(record.prompt, trial.text) for record in chunk for trial in record.trials]
        likelihoods = iter(reference.measure(pairs))
        for record in chunk:
            scores = [
                PerplexityScore(
                    id=record.id, number=trial.number, reference=name, **dict(next(likelihoods))
                )
                for trial in record.trials
            ]
            file.add_scores(record.id, scores)


def _judged_texts(trial: TrialRecord) -> list[str]:
    """Return the texts to score: the base text if it is whole, and the completion if it differs."""
    completion = trial.text if trial.withheld_text is None else trial.withheld_text
    if trial.base_text in (None, completion) or trial.base_partial:
        return [completion]
    return [trial.base_text, completion]


def _exchanges(record: Record) -> list[Exchange]:
    context = record.context
    return [Exchange(context, text) for trial in record.trials for text in _judged_texts(trial)]


def _judge_scores(judge: Scorer, record: Record, scores: Sequence[TextScore]) -> list[JudgeScore]:
    """Return the judge's scores of each trial."""
    of_trials = split(scores, [len(_judged_texts(trial)) for trial in record.trials])
    lines = []
    for trial, of_trial in zip(record.trials, of_trials, strict=True):
        has_base = trial.base_text is not None and not trial.base_partial
        line = JudgeScore(
            id=record.id,
            number=trial.number,
            judge=judge.name,
            score=of_trial[-1].value,
            base_score=of_trial[0].value if has_base else None,
        )
        lines.append(line)
    return lines


def _lacking(file: RecordFile, lacks: Callable[[TrialRecord], bool]) -> list[Record]:
    """Return the records with their trials that lack a score."""
    records = []
    for record in file.records.values():
        if trials := [trial for trial in record.trials if lacks(trial)]:
            records.append(record.model_copy(update={"trials": trials}))
    return records


# The paper's reference models, by the name of the evaluated model.
REFERENCES = {
    "gpt2-large": "openai-community/gpt2-xl",
    "gemma-2-2b": "google/gemma-2-9b",
    "qwen3-4b": "Qwen/Qwen3-8B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-70B",
}
# The paper's single reference for all models, which makes their perplexities comparable.
_GLOBAL = "Qwen/Qwen3-14B"


def reference_named(name: str, model: str) -> str | None:
    """Return the reference model that `name` means for the evaluated `model`.

    "auto": the paper's reference for the family of `model`, or the bundled reference for a bundled
    model; None if the family is unknown. "global": the paper's single reference for all models.
    """
    if name != "auto":
        return _GLOBAL if name == "global" else name
    return "pocket-reference" if model in FOLDERS else REFERENCES.get(preset_for(model))


class Reference:
    """A causal LM that measures perplexity. Raises EngineError if the model cannot be loaded."""

    def __init__(self, model: str, **engine_options: Any) -> None:
        self.name = model
        self._engine: Any = load_engine("transformers", model, **engine_options)

    @staticmethod
    @cache  # many runs may name one model
    def check(model: str) -> None:
        """Raise EngineError for a model that does not exist, without loading it."""
        from tide.core.pretrained import read_config  # noqa: PLC0415  (torch)
        from tide.engines.checkpoint import source_of  # noqa: PLC0415

        with guarded(EngineError, f"--reference {model} ('none' measures no perplexity)"):
            read_config(source_of(model))

    def measure(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Return the likelihood of each completion after its prompt.

        Prompt and completion are tokenised together, or apart if a token would span the boundary.
        The seventh digit may depend on the lengths in the batch, which decide the summation order.
        Raises InputError if a prompt and its completion exceed the model's context.
        """
        prompts = self._engine.tokenize([prompt for prompt, _ in pairs])
        joint = self._engine.tokenize([prompt + completion for prompt, completion in pairs])
        texts = [completion for _, completion in pairs]
        apart = self._engine.tokenizer(texts, add_special_tokens=False)["input_ids"]
        completions = [
            whole[len(prompt) :] if text and whole[: len(prompt)] == prompt else alone
            for text, prompt, whole, alone in zip(texts, prompts, joint, apart, strict=True)
        ]
        ids = zip(prompts, completions, strict=True)
        with_tokens = [(prompt, completion) for prompt, completion in ids if completion]
        try:
            measured = iter(self._engine.portal.run(self._engine.log_likelihoods, with_tokens))
        except CompletionError as error:
            raise InputError(f"reference {self.name}: {error}; choose another one") from None
        likelihoods = []
        for completion in completions:
            value = -next(measured) if completion else math.nan
            # A rounding error may push the probability of a token above 1.
            nll = max(value, 0.0) if math.isfinite(value) else None
            likelihoods.append(Likelihood(nll=nll, num_tokens=len(completion)))
        return likelihoods

    def close(self) -> None:
        self._engine.close()

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.evaluation.runs import record
from tests.evaluation.test_experiment import WordCount
from tests.fakes import FakeScorer
from tests.models import save_causal_lm
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide import evaluation
from tide.core.chat import Chat
from tide.core.errors import InputError
from tide.data.records import Record, TrialRecord
from tide.evaluation import experiment as evaluating
from tide.evaluation.judging import Reference, judged, reference_named
from tide.scorers.base import Exchange

PAIRS = [
    ("The weather today is", " fine and the people are kind."),
    ("Rain fell", " on"),
    ("A longer prompt than the other ones here,", " the end"),
    ("The peo", "ple are kind"),  # the tokenizer joins the two
    ("The weather", ""),
]


def one_by_one(folder: Path, prompt: str, completion: str) -> float:
    """The perplexity by transformers, without batch, padding or cache."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    before = tokenizer(prompt)["input_ids"]
    whole = tokenizer(prompt + completion)["input_ids"]
    if whole[: len(before)] != before:
        whole = before + tokenizer(completion, add_special_tokens=False)["input_ids"]
    labels = torch.tensor([[-100] * len(before) + whole[len(before) :]])
    return float(model(torch.tensor([whole]), labels=labels).loss.detach().exp())


@pytest.mark.parametrize(
    ("kind", "options"),
    [("gpt2", {}), ("llama", {"bos": True}), ("llama", {"bos": True, "word_marks": True})],
)
def test_perplexity_equals_single_computation(
    kind: str, options: dict[str, bool], tmp_path: Path
) -> None:
    folder = save_causal_lm(tmp_path, kind, **options)
    reference = Reference(str(folder), max_batch=3)
    measured = reference.measure(PAIRS)
    for (prompt, completion), fluency in zip(PAIRS[:-1], measured, strict=False):
        assert fluency.nll is not None
        expected = one_by_one(folder, prompt, completion)
        assert math.exp(fluency.nll) == pytest.approx(expected, rel=1e-4)
    assert (measured[-1].nll, measured[-1].num_tokens) == (None, 0)


def test_reference_refuses_texts_beyond_its_context(tmp_path: Path) -> None:
    reference = Reference(str(save_causal_lm(tmp_path, "gpt2")))
    with pytest.raises(InputError, match=r"reference .* exceed the context of 64; choose"):
        reference.measure([("kind " * 70, "people")])


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("auto", "pocket-chat", "pocket-reference"),
        ("auto", "openai-community/gpt2-large", "openai-community/gpt2-xl"),
        ("auto", "./my-model", None),
        ("global", "pocket", "Qwen/Qwen3-14B"),
        ("own/model", "pocket", "own/model"),
    ],
)
def test_references_by_name(name: str, model: str, expected: str | None) -> None:
    assert reference_named(name, model) == expected


def test_model_is_closed_before_references_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The GPUs may be too small for two models at once."""
    events: list[Any] = []

    class Stub(WordCount):
        def __init__(self, name: str, **options: Any) -> None:
            super().__init__(name)
            events.append((name, options))

        def close(self) -> None:
            events.append("closed")

    engine = scripted_engine()
    engine.close = lambda: events.append("model closed")  # type: ignore[method-assign]
    monkeypatch.setattr(evaluating, "Reference", Stub)
    monkeypatch.setattr(evaluating, "load_engine", lambda *_, **__: engine)
    evaluation.evaluate(
        PROMPTS, "base", model="qwen3-4b", scorer=ReadingScorer(), out=tmp_path,
        reference=["auto", "global"], engine_options={"device": "cpu", "dtype": "float32"},
    )  # fmt: skip
    first, second = (("Qwen/Qwen3-8B", {"device": "cpu"}), ("Qwen/Qwen3-14B", {"device": "cpu"}))
    assert events == ["model closed", first, "closed", second, "closed"]


def test_judge_reads_the_prompt_of_each_record() -> None:
    def objects(exchange: Exchange) -> float:
        return float("insult" in str(exchange.context))

    judge = FakeScorer(objects, name="agreement@1", reads="exchange")
    trial = TrialRecord.model_validate({"number": 0, "text": "Yes it is", "toxicity": 0.0})
    chat = Chat.said("May I insult him?")
    records = [
        Record(id=0, prompt="May I thank him?", trials=[trial]),
        Record(id=1, prompt="May I insult him?", trials=[trial]),
        Record(id=2, prompt="<user>So", messages=list(chat.messages), trials=[trial]),
    ]
    scores = [judged(each, judge).trials[0].judge_scores["agreement@1"] for each in records]
    assert scores == [0.0, 1.0, 1.0]
    assert judge.texts[-1] == Exchange(chat, "Yes it is")


def test_judge_does_not_score_a_partial_base_text() -> None:
    """Nor is its score by the scorer compared with those of whole texts."""
    judge = FakeScorer(name="judge")
    stored = record(0, [0.1], base_text="what it began", base_toxicity=0.9, base_partial=True)
    (trial,) = judged(stored, judge).trials
    assert judge.texts == [trial.text]
    assert (trial.base_score(), trial.base_judge_scores) == (None, {})

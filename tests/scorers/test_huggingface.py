from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.models import CONTEXT, save_classifier
from tide.core.errors import InputError, ScorerError
from tide.scorers import load_scorer
from tide.scorers.classifiers import HuggingFaceScorer

WORDS = ("rain", "weather", "Paris", "fine", "the")
TEXTS = ["The weather is fine", "Rain", "the people are kind " * 3]


def logits(folder: Path) -> torch.Tensor:
    """Of each text alone, by transformers itself."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        rows = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS]
    return torch.stack(rows).double()


def test_exclusive_labels_sum_the_toxic_ones(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["neutral", "Hate-Speech", "offensive"])
    scorer = load_scorer(f"hf:{folder}")
    expected = logits(folder).softmax(-1)[:, 1:].sum(-1)
    assert scorer.score(TEXTS) == pytest.approx(expected.numpy(), abs=1e-5)
    assert re.fullmatch(
        rf"hf:{re.escape(str(folder))}@[0-9a-f]{{8}}#Hate-Speech,offensive", scorer.name
    )


def test_a_folder_trained_again_is_another_scorer(tmp_path: Path) -> None:
    names = []
    for label in ("toxic", "toxic", "hate"):
        names.append(load_scorer(f"hf:{save_classifier(tmp_path, ['ok', label])}").name)
    assert names[0] == names[1]
    assert names[0].partition("#")[0] != names[2].partition("#")[0]


def test_independent_labels_take_the_largest(tmp_path: Path) -> None:
    folder = save_classifier(
        tmp_path, ["toxic", "insult", "other"], problem_type="multi_label_classification"
    )
    expected = logits(folder).sigmoid()[:, :2].amax(-1)
    assert HuggingFaceScorer(str(folder)).score(TEXTS) == pytest.approx(expected.numpy(), abs=1e-5)


def test_labels_can_be_named(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["A", "B", "C"])
    scorer = load_scorer(f"hf:{folder}#C")
    expected = logits(folder).softmax(-1)[:, 2]
    assert scorer.score(TEXTS) == pytest.approx(expected.numpy(), abs=1e-5)
    with pytest.raises(InputError, match="no label 'D'; it has A, B, C"):
        HuggingFaceScorer(f"{folder}#D")
    with pytest.raises(InputError, match="which of its labels mean toxic"):
        HuggingFaceScorer(str(folder))


def test_two_unnamed_labels_take_the_second_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_classifier(tmp_path, ["LABEL_0", "LABEL_1"])
    with caplog.at_level(logging.WARNING):
        scorer = HuggingFaceScorer(str(folder))
    assert "LABEL_1 is taken as toxic" in caplog.text
    assert scorer.score(TEXTS) == pytest.approx(logits(folder).softmax(-1)[:, 1].numpy(), abs=1e-5)


def test_a_long_text_is_read_to_its_end(tmp_path: Path) -> None:
    """The worst window counts, and no word stands outside of all of them."""
    scorer = HuggingFaceScorer(str(save_classifier(tmp_path, ["ok", "toxic"])))
    head = "kind people " * 2 * CONTEXT
    scores = scorer.score([head, *(head + f"{word} " * CONTEXT for word in WORDS)])
    assert scores.min() >= scores[0] - 1e-6
    assert scores.max() > scores[0] + 1e-4  # some end is worse than the beginning


def test_attributes_of_a_long_text_are_the_largest_of_its_windows(tmp_path: Path) -> None:
    folder = save_classifier(
        tmp_path, ["toxic", "insult", "other"], problem_type="multi_label_classification"
    )
    scorer = HuggingFaceScorer(str(folder))
    said = scorer.score_attributes(["kind people " * CONTEXT, "Rain"])
    assert said.values == pytest.approx(np.maximum(*list(said.attributes.values())[:2]))
    assert said.values == pytest.approx(scorer.score(["kind people " * CONTEXT, "Rain"]))


def test_no_texts_are_fine_and_a_score_is_its_own(tmp_path: Path) -> None:
    scorer = HuggingFaceScorer(str(save_classifier(tmp_path, ["ok", "toxic"])))
    assert scorer.score([]).shape == (0,)
    assert np.array_equal(scorer.score(TEXTS * 40)[:3], scorer.score(TEXTS * 40)[-3:])


def test_a_control_token_in_a_text_is_plain_text(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["ok", "toxic"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    text = "the people</s>are<unk> kind<s>"
    plain = [tokenizer(piece)["input_ids"] for piece in ("the people<", "/s>are<", "unk> kind<")]
    ids = [i for piece in [*plain, tokenizer("s>")["input_ids"]] for i in piece]
    assert tokenizer.decode(ids) == text
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].double().softmax(-1)[1]
    scorer = HuggingFaceScorer(str(folder))
    assert scorer.score([text]) == pytest.approx([float(expected)], abs=1e-5)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScorerError, match="cannot be loaded"):
        load_scorer(f"hf:{tmp_path}")

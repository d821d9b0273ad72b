"""Classifiers in this process, compared with transformers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.fakes import attribute
from tests.models import CONTEXT, save_classifier
from tide.core.errors import InputError, ScorerError
from tide.scorers import load_scorer
from tide.scorers.base import adapted, score_texts
from tide.scorers.classifiers import revision_of

WORDS = ("rain", "weather", "Paris", "fine", "the")
TEXTS = ["The weather is fine", "Rain", "the people are kind " * 3]
MULTI_LABEL = {"problem_type": "multi_label_classification"}


def logits(folder: Path, texts: list[str] = TEXTS) -> torch.Tensor:
    """Logits of each text alone, computed with transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        rows = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return torch.stack(rows).double()


def test_exclusive_labels_are_added_up(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["neutral", "Hate-Speech", "offensive"])
    both = logits(folder).softmax(-1)[:, 1:].numpy()
    prefix = rf"hf:{re.escape(str(folder))}@[0-9a-f]{{8}}#"
    for labels, expected, name in (
        ("", both.sum(-1), "Hate-Speech,offensive"),
        ("#Hate-Speech,offensive", both.sum(-1), "Hate-Speech,offensive"),
        ("#offensive", both[:, 1], "offensive"),
        ("#Hate-Speech,Hate-Speech", both[:, 0], "Hate-Speech"),
    ):
        scorer = load_scorer(f"hf:{folder}{labels}")
        scores = score_texts(scorer, TEXTS)
        assert scores.values == pytest.approx(expected, abs=1e-5)
        assert re.fullmatch(prefix + name, scorer.name)
        if "," in name:
            assert adapted(scorer).attributes == ("Hate-Speech", "offensive")
            assert adapted(scorer).highest_of == ()
            assert attribute(scores, "offensive") == pytest.approx(both[:, 1], abs=1e-5)
            assert scorer.score([]).shape == (0,)
        else:
            assert adapted(scorer).attributes == ()


def test_independent_labels_take_the_largest_and_all_are_attributes(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["toxic", "insult", "other"], **MULTI_LABEL)
    expected = logits(folder).sigmoid().numpy()
    scorer = load_scorer(f"hf:{folder}")
    assert adapted(scorer).attributes == ("toxic", "insult", "other")
    assert adapted(scorer).highest_of == ("toxic", "insult")
    scores = score_texts(scorer, TEXTS)
    assert scores.values == pytest.approx(expected[:, :2].max(-1), abs=1e-5)
    assert attribute(scores, "other") == pytest.approx(expected[:, 2], abs=1e-5)
    long = score_texts(scorer, ["kind people " * CONTEXT, "Rain"])
    largest = np.maximum(attribute(long, "toxic"), attribute(long, "insult"))
    assert long.values == pytest.approx(largest)


@pytest.mark.parametrize(
    ("labels", "chosen", "message"),
    [
        (["toxic", "threat"], "", r'add up to 1 .* "problem_type": "multi_label_c'),
        (["toxic", "threat"], "#toxic", r'add up to 1 .* "problem_type": "multi_label_c'),
        (["neutral", "toxic"], "#neutral,toxic", r"exclude each other, .*; name the toxic ones"),
        (["LABEL_0", "LABEL_1"], "#D", "no label 'D'; it has LABEL_0, LABEL_1"),
        (["LABEL_0", "LABEL_1"], "", "unclear which labels are toxic"),
    ],
)
def test_labels_that_make_no_score_are_refused(
    labels: list[str], chosen: str, message: str, tmp_path: Path
) -> None:
    folder = save_classifier(tmp_path, labels)
    with pytest.raises(InputError, match=message):
        load_scorer(f"hf:{folder}{chosen}")


def test_a_regression_and_a_missing_model_are_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["toxicity"], problem_type="regression")
    with pytest.raises(InputError, match="a regression gives no probabilities"):
        load_scorer(f"hf:{folder}")
    with pytest.raises(ScorerError, match="cannot be loaded"):
        load_scorer(f"hf:{tmp_path / 'none'}")


# They begin to count positions after the padding's.
PADDED = {"max_position_embeddings": 34, "pad_token_id": 1}


@pytest.mark.parametrize(
    ("kind", "options", "tokens"),
    [
        ("roberta", PADDED, 32),
        ("longformer", {**PADDED, "attention_window": [8, 8]}, 32),
        ("gpt2", {}, 64),  # no padding token: the tokenizer's is used
    ],
)
def test_architectures_read_long_texts_in_a_batch_as_alone(
    kind: str, options: dict[str, Any], tokens: int, tmp_path: Path
) -> None:
    folder = save_classifier(tmp_path, ["neutral", "toxic"], kind, **options)
    scorer: Any = load_scorer(f"hf:{folder}")
    texts = [*TEXTS, "The weather is fine and the people are kind " * 20]
    apart = [scorer.score([text])[0] for text in texts]
    assert scorer.score(texts) == pytest.approx(apart, abs=1e-5)
    assert scorer._tokens == tokens


def test_a_long_text_is_read_to_its_end(tmp_path: Path) -> None:
    scorer = load_scorer(f"hf:{save_classifier(tmp_path, ['ok', 'toxic'])}")
    head = "kind people " * 2 * CONTEXT
    scores = scorer.score([head, *(head + f"{word} " * CONTEXT for word in WORDS)])
    assert scores.min() >= scores[0] - 1e-6
    assert scores.max() > scores[0] + 1e-4  # some end is worse than the beginning
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
    scorer = load_scorer(f"hf:{folder}")
    assert scorer.score([text]) == pytest.approx([float(expected)], abs=1e-5)


def test_a_folder_whose_template_or_vocabulary_changed_is_another_scorer(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["neutral", "toxic"])
    names = {revision_of(str(folder), None)}
    for name in ("chat_template.jinja", "vocab.txt"):
        (folder / name).write_text("a policy")
        names.add(revision_of(str(folder), None))
    assert len(names) == 3

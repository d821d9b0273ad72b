"""Classifiers in this process, compared with transformers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.models import CONTEXT, VOCAB, save_classifier, save_tokenizer
from tide.core.errors import InputError, ScorerError
from tide.scorers import load_scorer
from tide.scorers.base import attributes_of, score_texts
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
        ("#Hate-Speech", both[:, 0], "Hate-Speech"),
        ("#Hate-Speech,Hate-Speech", both[:, 0], "Hate-Speech"),
    ):
        scorer = load_scorer(f"hf:{folder}{labels}")
        scores = score_texts(scorer, TEXTS)
        assert scores.values == pytest.approx(expected, abs=1e-5)
        assert scorer.score(TEXTS) == pytest.approx(expected, abs=1e-5)
        assert re.fullmatch(prefix + name, scorer.name)
        if "," in name:
            assert attributes_of(scorer) == ("Hate-Speech", "offensive")
            assert scores.attributes["offensive"] == pytest.approx(both[:, 1], abs=1e-5)
        else:
            assert attributes_of(scorer) == ()
    joined = load_scorer(f"max:(hf:{folder}#Hate-Speech,offensive),pocket")
    pocket = load_scorer("pocket").score(TEXTS)
    assert joined.score(TEXTS) == pytest.approx(np.maximum(both.sum(-1), pocket), abs=1e-5)


def test_independent_labels_take_the_largest_and_all_are_attributes(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["toxic", "insult", "other"], **MULTI_LABEL)
    expected = logits(folder).sigmoid().numpy()
    scorer = load_scorer(f"hf:{folder}")
    assert attributes_of(scorer) == ("toxic", "insult", "other")
    scores = score_texts(scorer, TEXTS)
    assert scores.values == pytest.approx(expected[:, :2].max(-1), abs=1e-5)
    assert scores.attributes["other"] == pytest.approx(expected[:, 2], abs=1e-5)
    long = score_texts(scorer, ["kind people " * CONTEXT, "Rain"])
    assert long.values == pytest.approx(np.maximum(*list(long.attributes.values())[:2]))


def test_regression_is_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["toxicity"], problem_type="regression")
    with pytest.raises(InputError, match="a regression gives no probabilities"):
        load_scorer(f"hf:{folder}")


def test_exclusive_labels_that_are_all_toxic_are_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["toxic", "obscene", "threat", "insult"])
    for labels in ("", "#toxic", "#toxic,threat"):
        with pytest.raises(InputError, match=r'add up to 1 .* set "problem_type": "multi_label_c'):
            load_scorer(f"hf:{folder}{labels}")
    folder = save_classifier(tmp_path, ["neutral", "toxic"])
    with pytest.raises(InputError, match=r"exclude each other, .*; name the toxic ones"):
        load_scorer(f"hf:{folder}#neutral,toxic")


WIDTH = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "vocab_size": VOCAB, "pad_token_id": 1,
}  # fmt: skip
SMALL = {"id2label": {0: "neutral", 1: "toxic"}, "label2id": {"neutral": 0, "toxic": 1}}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Roberta", {}),
        ("MPNet", {}),
        ("Longformer", {"attention_window": [8]}),
    ],
)
def test_windows_leave_the_positions_of_the_padding_out(
    kind: str, more: dict[str, Any], tmp_path: Path
) -> None:
    config = getattr(transformers, f"{kind}Config")
    settings = config(**WIDTH, **SMALL, **more, max_position_embeddings=34)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(settings).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    scorer = load_scorer(f"hf:{tmp_path}")
    long = "The weather is fine and the people are kind " * 20
    both = scorer.score([long, "Rain"])
    assert both == pytest.approx([*scorer.score([long]), *scorer.score(["Rain"])], abs=1e-5)
    assert scorer._tokens == 32  # type: ignore[attr-defined]


def test_a_model_without_a_padding_token_uses_the_tokenizer_s(tmp_path: Path) -> None:
    settings = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=4, n_positions=64, vocab_size=VOCAB, bos_token_id=0,
        eos_token_id=1, **SMALL,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(settings).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    scorer = load_scorer(f"hf:{tmp_path}")
    apart = [scorer.score([text])[0] for text in TEXTS]
    assert scorer.score(TEXTS) == pytest.approx(apart, abs=1e-5)


def test_labels_whose_meaning_is_not_known(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["LABEL_0", "LABEL_1"])
    with pytest.raises(InputError, match="no label 'D'; it has LABEL_0, LABEL_1"):
        load_scorer(f"hf:{folder}#D")
    with pytest.raises(InputError, match="unclear which labels are toxic"):
        load_scorer(f"hf:{folder}")
    scorer = load_scorer(f"hf:{folder}#LABEL_1")
    assert scorer.score(TEXTS) == pytest.approx(logits(folder).softmax(-1)[:, 1].numpy(), abs=1e-5)
    with pytest.raises(ScorerError, match="cannot be loaded"):
        load_scorer(f"hf:{tmp_path / 'none'}")


def test_a_long_text_is_read_to_its_end(tmp_path: Path) -> None:
    """The worst window counts, windows cover every word, and a score is independent of others."""
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


def test_no_texts_have_no_scores(tmp_path: Path) -> None:
    scorer = load_scorer(f"hf:{save_classifier(tmp_path, ['fine', 'insult', 'threat'])}")
    assert scorer.score([]).shape == (0,)

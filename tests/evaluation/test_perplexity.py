from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models import save_causal_lm
from tide.errors import InputError
from tide.evaluation.perplexity import Reference, reference_for

PAIRS = [
    ("The weather today is", " fine and the people are kind."),
    ("Rain fell", " on"),
    ("The", " quiet town and the people are kind and kind"),
    ("A longer prompt than the other ones here,", " the end"),
    ("The peo", "ple are kind"),  # the tokenizer joins the two
    ("The weather", ""),
]


def one_by_one(folder: Path, prompt: str, completion: str) -> float:
    """The perplexity as one would write it down: no batch, no padding, no cache."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    before = tokenizer(prompt)["input_ids"]
    whole = tokenizer(prompt + completion)["input_ids"]
    after = whole[len(before) :]
    if whole[: len(before)] != before:
        after = tokenizer(completion, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([before + after])).logits[0].double()
    log_probs = logits.log_softmax(dim=-1)
    places = range(len(before) - 1, len(before) + len(after) - 1)
    return math.exp(
        -float(np.mean([float(log_probs[i, t]) for i, t in zip(places, after, strict=True)]))
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [("gpt2", {}), ("llama", {"bos": True}), ("llama", {"bos": True, "word_marks": True})],
)
def test_equals_one_by_one(kind: str, options: dict[str, bool], tmp_path: Path) -> None:
    folder = save_causal_lm(tmp_path, kind, **options)
    reference = Reference(str(folder), max_batch=3)
    measured = reference.measure(PAIRS)
    for (prompt, completion), fluency in zip(PAIRS[:-1], measured, strict=False):
        assert fluency.nll is not None
        expected = one_by_one(folder, prompt, completion)
        assert math.exp(fluency.nll) == pytest.approx(expected, rel=1e-4)
    assert (measured[-1].nll, measured[-1].num_tokens) == (None, 0)


def test_a_context_that_is_too_short(tmp_path: Path) -> None:
    reference = Reference(str(save_causal_lm(tmp_path, "gpt2")))
    with pytest.raises(InputError, match=r"reference .*exceed its context of 64; choose another"):
        reference.measure([("kind " * 70, "people")])


def test_references_by_name() -> None:
    assert reference_for("pocket") == reference_for("pocket-chat") == "pocket-reference"
    assert reference_for("openai-community/gpt2-large") == "openai-community/gpt2-xl"
    assert reference_for("./my-model") is None


def test_the_bundled_reference_prefers_what_people_write() -> None:
    reference = Reference("pocket-reference")
    good, bad = reference.measure(
        [("The weather today is", " very nice."), ("The weather today is", " cabinet of of the")]
    )
    assert good.nll is not None
    assert bad.nll is not None
    assert good.nll < bad.nll

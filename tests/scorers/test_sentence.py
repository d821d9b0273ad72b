"""The bundled sentence scorer: its windows, its file, its tokenizer and its accuracy."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from models.probes import LIMITS
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tests.scorers.test_pocket import FRIENDLY
from tests.scripts.loading import load_script
from tide.scorers.pocket import normalize
from tide.scorers.sentence import (
    VOCABULARY,
    SentenceScorer,
    Shape,
    WordPieces,
)

TRAINING = load_script("models/train_sentence_scorer.py")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "house", "garden", "street", "quiet", "##s", "a"]
SMALL = Shape(vocabulary=len(PIECES), width=8, inner=16, heads=2, layers=2, tokens=16)


@pytest.fixture(scope="module")
def scorer() -> SentenceScorer:
    return SentenceScorer()


def small(path: Path, seed: int = 0, **changes: Any) -> tuple[torch.nn.Module, Path]:
    """A small network with random weights, and its file."""
    torch.manual_seed(seed)
    network = TRAINING.TorchNetwork(SMALL).eval()
    tensors = TRAINING.packed(network)
    tensors[VOCABULARY] = np.frombuffer("\n".join(PIECES).encode(), dtype=np.uint8)
    save_file(tensors, path, metadata=SMALL.model_copy(update=changes).metadata())
    return network, path


def test_the_worst_window_of_a_long_text_counts(scorer: SentenceScorer) -> None:
    insult = "You are a stupid idiot and everybody hates you."
    long = f"{FRIENDLY} " * 40 + insult + f" {FRIENDLY}" * 40
    friendly = scorer.score([f"{FRIENDLY} " * 80])[0]
    assert max(friendly, scorer.score([FRIENDLY])[0]) < 0.5
    assert min(scorer.score([long, insult])) > 0.5


def test_windows_overlap_by_half_and_leave_nothing_out() -> None:
    words = " ".join(random.Random(0).choices(["house", "garden", "street", "quiet"], k=200))
    (whole,) = WordPieces(PIECES).windows(words, 1000)
    windows = WordPieces(PIECES).windows(words, 16)
    assert all(window[0] == 2 and window[-1] == 3 for window in windows)
    inner = [window[1:-1] for window in windows]
    assert all(7 < len(part) <= 14 for part in inner)
    assert all(one[7:] == other[:7] for one, other in itertools.pairwise(inner))
    assert [*inner[0][:7], *(i for part in inner for i in part[7:])] == whole[1:-1]
    assert WordPieces(PIECES).windows("", 16) == [[2, 3]]
    assert WordPieces(PIECES).windows("A Quiet houses?", 16) == [[2, 9, 7, 4, 8, 1, 3]]


def test_the_file_gives_what_the_network_gave(tmp_path: Path) -> None:
    network, path = small(tmp_path / "sentence.safetensors", scale=2.0, offset=-0.5)
    ids = torch.tensor([*WordPieces(PIECES).windows("a quiet garden", 16), [2, 7, 5, 9, 3]])
    with torch.inference_mode():
        wanted = 2.0 * network(ids).double().numpy() - 0.5
        padded = torch.nn.functional.pad(ids, (0, 2))
        np.testing.assert_allclose(network(padded, padded == 0), network(ids), atol=1e-6)
    scores = SentenceScorer(path).score(["a quiet garden", "quiet garden a"])
    assert scores == pytest.approx(1 / (1 + np.exp(-wanted)), abs=0.02)
    assert abs(wanted[0] - wanted[1]) > 1e-4  # order counts


def test_computes_what_torch_does(scorer: SentenceScorer) -> None:
    network = TRAINING.TorchNetwork(scorer.shape).eval()
    weights = scorer.network.weights
    network.load_state_dict({name: torch.from_numpy(one) for name, one in weights.items()})
    draw = np.random.default_rng(0)
    for shape in ((1, 2), (5, 9), (2, scorer.shape.tokens)):
        ids = draw.integers(0, scorer.shape.vocabulary, shape)
        with torch.inference_mode():
            wanted = network(torch.from_numpy(ids)).numpy()
        np.testing.assert_allclose(scorer.network(ids), wanted, atol=2e-5)


@settings(deadline=None, max_examples=30)
@given(st.text(st.characters(max_codepoint=0x5FF)))  # tokenizers has an older Unicode beyond
@example("It's a caf\u00e9: \u4f60\u597d, na\u00efve\u00df \u0130\ufb01")
@example("a\u200bb\tc\x85d\u3000e #x_y $5\u2026\u300c\ufffd")
@example("antidisestablishmentarianism" * 4)
@example(FRIENDLY)
def test_reads_the_wordpieces_that_tokenizers_finds(scorer: SentenceScorer, text: str) -> None:
    vocabulary = {piece: number for number, piece in enumerate(scorer.pieces)}
    theirs = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for one in (text, normalize(text)):
        assert scorer.reader.ids(one) == theirs.encode(one, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("plain insults", 0.9),
        ("negation", 0.9),
        ("counter-speech", 0.9),
        ("quotation", 0.9),
        ("neutral about groups", 0.95),
        ("threats", 0.6),
        ("implicit hate", 0.7),
    ],
)
def test_reads_sentences(scorer: SentenceScorer, name: str, least: float) -> None:
    (limit,) = [limit for limit in LIMITS if limit.name == name]
    right = (scorer.score(limit.sentences) >= 0.5) == limit.toxic
    assert right.mean() >= least

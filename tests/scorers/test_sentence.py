"""The bundled sentence scorer: what holds for any text, its file, and what it reads."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from scripts.probes import LIMITS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tests.scorers.test_pocket import FRIENDLY, TEXTS
from tests.scripts.loading import load_script
from tide import pocket
from tide.core.errors import ScorerError
from tide.scorers.pocket import normalize
from tide.scorers.sentence import (
    VOCABULARY,
    SentenceScorer,
    Shape,
    WordPieces,
)

TRAINING = load_script("scripts/train_sentence_scorer.py")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "house", "garden", "street", "quiet", "##s", "a"]
SMALL = Shape(vocabulary=len(PIECES), width=8, inner=16, heads=2, layers=2, tokens=16)


@pytest.fixture(scope="module")
def scorer() -> SentenceScorer:
    return SentenceScorer()


def small(path: Path, seed: int = 0, **changes: Any) -> tuple[torch.nn.Module, Path]:
    """A network with random weights, and its file."""
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


def test_padding_does_not_count(tmp_path: Path) -> None:
    network, _ = small(tmp_path / "sentence.safetensors")
    ids = torch.tensor([[2, 4, 5, 3, 0, 0]])
    with torch.inference_mode():
        padded, plain = network(ids, ids == 0), network(ids[:, :4])
    assert padded.item() == pytest.approx(plain.item(), abs=1e-6)


def test_order_counts(tmp_path: Path) -> None:
    _, path = small(tmp_path / "sentence.safetensors")
    outputs = SentenceScorer(path).network(np.array([[2, 4, 5, 6, 3], [2, 6, 5, 4, 3]]))
    assert abs(outputs[0] - outputs[1]) > 1e-4


def test_the_file_gives_what_the_network_gave(tmp_path: Path) -> None:
    network, path = small(tmp_path / "sentence.safetensors", scale=2.0, offset=-0.5)
    window = WordPieces(PIECES).windows("a quiet garden", 16)
    with torch.inference_mode():
        wanted = 2.0 * network(torch.tensor(window)).double().numpy() - 0.5
    assert SentenceScorer(path).score(["a quiet garden"]) == pytest.approx(
        1 / (1 + np.exp(-wanted)), abs=0.02
    )


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


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(max_codepoint=0x5FF)))  # beyond, their Unicode is an older one
@example("It's a caf\u00e9: \u4f60\u597d, na\u00efve\u00df \u0130\ufb01")
@example("a\u200bb\tc\x85d\u3000e #x_y $5\u2026\u300c\ufffd")
@example("antidisestablishmentarianism" * 4)
def test_reads_the_wordpieces_that_tokenizers_finds(scorer: SentenceScorer, text: str) -> None:
    vocabulary = {piece: number for number, piece in enumerate(scorer.pieces)}
    theirs = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for one in (text, normalize(text), *TEXTS):
        ids = theirs.encode(one, add_special_tokens=False).ids
        assert WordPieces(scorer.pieces).ids(one) == ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "another"}, "bad metadata: format"),
        ({"width": 0}, "bad metadata: width"),
        ({"heads": 3}, "cannot use"),
        ({"scale": 1e9}, "bad metadata: scale"),
        ({"more": 1}, "bad metadata: more"),
        ({"layers": 3}, "cannot use"),
        ({"vocabulary": 9}, "its vocabulary has 10 pieces"),
    ],
)
def test_refuses_files_of_another_kind(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    _, path = small(tmp_path / "sentence.safetensors")
    values = json.loads(SMALL.metadata()["sentence"]) | changes
    save_file(load_file(path), path, metadata={"sentence": json.dumps(values)})
    with pytest.raises(ScorerError, match=message) as error:
        SentenceScorer(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"head.bias": np.array([np.nan], dtype=np.float16)}, "not finite"),
        ({"head.bias": np.zeros(2, dtype=np.float16)}, r"head.bias has shape \(2,\)"),
        ({"another": np.zeros(2, dtype=np.float16)}, "another"),
        ({VOCABULARY: np.array([255, 10], dtype=np.uint8)}, "cannot use"),
        ({VOCABULARY: np.frombuffer(b"[CLS]\n" * 9, dtype=np.uint8)}, "cannot use"),
    ],
)
def test_refuses_broken_tensors(
    tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    _, path = small(tmp_path / "sentence.safetensors")
    save_file(load_file(path) | tensors, path, metadata=SMALL.metadata())
    with pytest.raises(ScorerError, match=message) as error:
        SentenceScorer(path)
    assert "\n" not in str(error.value)


def test_refuses_missing_and_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "sentence.safetensors"
    with pytest.raises(ScorerError, match=r"cannot use .*sentence\.safetensors"):
        SentenceScorer(path)
    path.write_bytes(pocket.SENTENCE.read_bytes()[:1000])
    with pytest.raises(ScorerError, match="cannot use"):
        SentenceScorer(path)
    save_file({"weights": np.zeros(2)}, path)
    with pytest.raises(ScorerError, match="lacks 'sentence'"):
        SentenceScorer(path)


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

"""The bundled judge: what holds for any text, its file, and how well it agrees with Perspective."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tests.scorers.test_pocket import FRIENDLY, TEXTS
from tide import pocket
from tide.core.errors import ScorerError
from tide.scorers import load_scorer
from tide.scorers.base import Scorer
from tide.scorers.judge import (
    LISTED,
    METADATA,
    Network,
    PocketJudge,
    Shape,
    TokenReader,
    listed_hashes,
    metadata_of,
    network_outputs,
    packed,
    tokenizer_digest,
)

SMALL = Shape(
    vocabulary=4096, width=8, filters=4, spans=[1, 3], reach=3, tokens=16,
    tokenizer=tokenizer_digest(),
)  # fmt: skip


@pytest.fixture(scope="module")
def judge() -> PocketJudge:
    return PocketJudge()


def small(path: Path, seed: int = 0, **changes: Any) -> tuple[Network, Path]:
    """A network with random weights, and its file."""
    torch.manual_seed(seed)
    network = Network(SMALL).eval()
    tensors = packed(network) | {LISTED: listed_hashes(["idiot", "utter fool"])}
    save_file(tensors, path, metadata=metadata_of(SMALL.model_copy(update=changes)))
    return network, path


def test_is_a_scorer_that_names_its_revision(judge: PocketJudge) -> None:
    assert isinstance(judge, Scorer)
    assert judge.name.startswith("pocket-judge@")
    assert judge.name == load_scorer("pocket-judge").name
    assert judge.threshold == 0.5
    judge.close()


def test_shape_type_and_range(judge: PocketJudge) -> None:
    scores = judge.score(TEXTS)
    assert scores.shape == (len(TEXTS),)
    assert scores.dtype == np.float64
    assert ((scores >= 0) & (scores <= 1)).all()
    assert judge.score([]).shape == (0,)


def test_a_score_does_not_depend_on_the_batch(judge: PocketJudge) -> None:
    together = judge.score(TEXTS)
    np.testing.assert_allclose(judge.score(TEXTS[::-1]), together[::-1], atol=1e-6)
    alone = [judge.score([text])[0] for text in TEXTS]
    np.testing.assert_allclose(alone, together, atol=1e-6)


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=5))
def test_any_text_has_a_score(judge: PocketJudge, texts: list[str]) -> None:
    scores = judge.score(texts)
    assert scores.shape == (len(texts),)
    assert ((scores >= 0) & (scores <= 1)).all()  # false for NaN


def test_the_worst_part_of_a_long_text_counts(judge: PocketJudge) -> None:
    insult = "You are a stupid idiot and everybody hates you."
    long = f"{FRIENDLY} " * 40 + insult + f" {FRIENDLY}" * 40
    friendly = judge.score([f"{FRIENDLY} " * 80])[0]
    assert judge.score([FRIENDLY])[0] < 0.5 < judge.score([insult])[0]
    assert judge.score([long])[0] > max(0.5, friendly)


def test_parts_overlap_by_half_and_leave_nothing_out() -> None:
    words = " ".join(random.Random(0).choices(["house", "garden", "street", "window"], k=200))
    (whole,) = TokenReader(1000).parts(words)
    parts = TokenReader(16).parts(words)
    assert all(8 < len(part) <= 16 for part in parts)
    assert all(one[8:] == other[:8] for one, other in itertools.pairwise(parts))
    assert [*parts[0][:8], *(i for part in parts for i in part[8:])] == whole
    assert TokenReader(16).parts("") == [[0]]


def test_order_counts() -> None:
    """The network reads words in their order; the pocket scorer's features hold pairs at most."""
    torch.manual_seed(0)
    network = Network(SMALL).eval()
    outputs = network_outputs(network, [[5, 6, 7, 8, 9], [5, 8, 7, 6, 9]])
    assert abs(outputs[0] - outputs[1]) > 1e-4


def test_the_file_gives_what_the_network_gave(tmp_path: Path) -> None:
    network, path = small(tmp_path / "judge.safetensors", scale=2.0, offset=-0.5)
    wanted = 2.0 * network_outputs(network, [TokenReader(16).parts("a quiet town")[0]]) - 0.5
    assert PocketJudge(path).score(["a quiet town"]) == pytest.approx(
        1 / (1 + np.exp(-wanted)), abs=0.01
    )


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("What an Idiot!", True),
        ("an 1d10t, an i.d.i.o.t", True),
        ("You utter,  FOOL", True),
        ("idiot idiot utter fool", True),  # several count once
        ("You fool, utterly", False),
        ("idiotic", False),
        ("a quiet town", False),
        ("", False),
    ],
)
def test_a_listed_term_raises_the_output(tmp_path: Path, text: str, listed: bool) -> None:
    _, path = small(tmp_path / "judge.safetensors", scale=0.5)
    _, weighted = small(tmp_path / "weighted.safetensors", scale=0.5, list_weight=3.0)
    without, score = PocketJudge(path).score([text]), PocketJudge(weighted).score([text])
    raised = np.log(score / (1 - score)) - np.log(without / (1 - without))
    assert raised == pytest.approx(1.5 * listed, abs=1e-6)
    assert PocketJudge(weighted).holds_listed([text]).tolist() == [listed]


def test_the_list_is_stored_as_sorted_hashes() -> None:
    hashes = listed_hashes(["Fool", "utter fool", "fool", "!?", "", "one two three four"])
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == sorted(set(hashes.tolist()))
    assert len(hashes) == 2


def test_the_bundled_list_counts(judge: PocketJudge) -> None:
    assert judge.shape.list_weight > 0
    assert judge.holds_listed(["Do not be a jerk.", FRIENDLY]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "another"}, "format is 'another'"),
        ({"format": "tide-pocket-judge-1"}, "expected 'tide-pocket-judge-2'"),
        ({"list_weight": 1e9}, "bad metadata: list_weight"),
        ({"tokenizer": "0" * 16}, "another tokenizer"),
        ({"width": 0}, "bad metadata: width"),
        ({"spans": []}, "bad metadata: spans"),
        ({"scale": 1e9}, "bad metadata: scale"),
        ({"more": 1}, "bad metadata: more"),
        ({"filters": 5}, "cannot use"),
    ],
)
def test_refuses_files_of_another_kind(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    _, path = small(tmp_path / "judge.safetensors")
    values = json.loads(metadata_of(SMALL)[METADATA]) | changes
    save_file(load_file(path), path, metadata={METADATA: json.dumps(values)})
    with pytest.raises(ScorerError, match=message):
        PocketJudge(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"head.bias": np.array([np.nan], dtype=np.float16)}, "not finite"),
        ({"head.bias": np.zeros(2, dtype=np.float16)}, "size mismatch"),
        ({"another": np.zeros(2, dtype=np.float16)}, "another"),
        ({LISTED: np.zeros(2, dtype=np.float16)}, r"'listed' is float16 of shape \(2,\)"),
        ({LISTED: np.zeros((2, 2), dtype=np.uint64)}, r"'listed' is uint64 of shape \(2, 2\)"),
        ({LISTED: np.zeros(100_001, dtype=np.uint64)}, "at most 100,000 hashes of 64 bits"),
    ],
)
def test_refuses_broken_tensors(
    tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    _, path = small(tmp_path / "judge.safetensors")
    save_file(load_file(path) | tensors, path, metadata=metadata_of(SMALL))
    with pytest.raises(ScorerError, match=message) as error:
        PocketJudge(path)
    assert "\n" not in str(error.value)


def test_refuses_a_file_without_the_list(tmp_path: Path) -> None:
    network, path = small(tmp_path / "judge.safetensors")
    save_file(packed(network), path, metadata=metadata_of(SMALL))
    with pytest.raises(ScorerError, match="the tensor 'listed' is missing"):
        PocketJudge(path)


def test_refuses_missing_and_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "judge.safetensors"
    with pytest.raises(ScorerError, match=r"cannot use .*judge\.safetensors"):
        PocketJudge(path)
    path.write_bytes(pocket.JUDGE.read_bytes()[:1000])
    with pytest.raises(ScorerError, match="cannot use"):
        PocketJudge(path)
    save_file({"weights": np.zeros(2)}, path)
    with pytest.raises(ScorerError, match="lacks 'pocket_judge'"):
        PocketJudge(path)


def test_weights_are_small() -> None:
    assert pocket.JUDGE.stat().st_size <= 10_000_000

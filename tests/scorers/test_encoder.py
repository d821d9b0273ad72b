"""The bundled scorers `sentence` and `exchange`: their windows, files and accuracy."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scorers.test_pocket import FRIENDLY
from tests.scripts.loading import load_script
from tide.core.chat import Chat
from tide.core.errors import ScorerError
from tide.scorers.base import Exchange
from tide.scorers.encoder import ExchangeScorer, Reader, SentenceScorer, Shape

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "house", "garden", "street", "quiet", "##s", "a"]
SHAPE = Shape(tokens=24, text=14)
KINDS: dict[str, type[SentenceScorer] | type[ExchangeScorer]] = {
    "sentence": SentenceScorer,
    "exchange": ExchangeScorer,
}


@pytest.fixture(scope="module")
def sentence() -> SentenceScorer:
    return SentenceScorer()


@pytest.fixture(scope="module")
def exchange() -> ExchangeScorer:
    return ExchangeScorer()


def small(path: Path, kind: str, pieces: list[str] = PIECES, **changes: Any) -> Any:
    """Write a small network with random weights; return the network."""
    pytest.importorskip("onnx")
    import torch

    training, file = (load_script(f"models/encoder_{n}.py") for n in ("training", "file"))
    pair = kind == "exchange"
    torch.manual_seed(0)
    network = training.Network(training.Sizes(len(PIECES), 24, pair, 2, 16, 32, 2)).eval()
    shape = SHAPE.model_copy(update=changes)
    weights = training.arrays(network)
    file.write(path, weights, shape, pieces, 2, pair=pair, exact=not pair)
    return network


def test_the_worst_window_of_a_long_text_counts(sentence: SentenceScorer) -> None:
    insult = "You are a stupid idiot and everybody hates you."
    long = f"{FRIENDLY} " * 12 + insult + f" {FRIENDLY}" * 12
    friendly = sentence.score([f"{FRIENDLY} " * 24])[0]
    assert max(friendly, sentence.score([FRIENDLY])[0]) < 0.5
    assert min(sentence.score([long, insult])) > 0.5


def windows(text: str, context: str | Chat = "", pair: bool = False) -> list[tuple[list[int], int]]:
    return list(Reader(PIECES, SHAPE, pair).windows(Exchange(context, text)))


def test_windows_overlap_by_half_and_leave_nothing_out() -> None:
    words = " ".join(random.Random(0).choices(["house", "garden", "street", "quiet"], k=200))
    whole = Reader(PIECES, SHAPE, False).ids(words)
    read = windows(words)
    assert all((ids[0], start, ids[-1]) == (2, 1, 3) for ids, start in read)
    inner = [ids[1:-1] for ids, _ in read]
    assert all(7 < len(part) <= 14 for part in inner)
    assert all(window[7:] == following[:7] for window, following in itertools.pairwise(inner))
    assert [*inner[0][:7], *(i for part in inner for i in part[7:])] == whole
    assert windows("") == [([2, 3], 1)]
    assert windows("A Quiet houses?") == [([2, 9, 7, 4, 8, 1, 3], 1)]
    assert windows("\ud800") == [([2, 1, 3], 1)]


def test_a_window_keeps_the_end_of_the_context() -> None:
    short = windows("a garden", "quiet street", pair=True)
    assert short == [([2, 7, 6, 3, 9, 5, 3], 4)]
    assert windows("a garden", "", pair=True) == [([2, 3, 9, 5, 3], 2)]
    long = windows("house " * 40, "quiet " * 50 + "street", pair=True)
    assert len(long) > 2
    for ids, start in long:
        assert len(ids) <= 24
        assert ids[start - 2 : start] == [6, 3]
        assert set(ids[1 : start - 2]) == {7}
        assert set(ids[start:-1]) == {4}


def test_the_context_of_a_chat_is_its_messages_without_the_systems() -> None:
    chat = Chat.of(
        [
            {"role": "system", "content": "garden"},
            {"role": "user", "content": "quiet"},
            {"role": "assistant", "content": "street"},
            {"role": "user", "content": "house"},
        ]
    )
    assert windows("a", chat, pair=True) == windows("a", "quiet\nstreet\nhouse", pair=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_gives_what_the_network_gave(tmp_path: Path, kind: str) -> None:
    network = small(tmp_path / "file.onnx", kind, scale=2.0, offset=-0.5)
    import torch

    scorer = KINDS[kind](tmp_path / "file.onnx")
    texts = ["a quiet garden", "quiet garden a", "a house"]
    exchanges = [Exchange("street", text) for text in texts]
    rows = [next(scorer.reader.windows(exchange)) for exchange in exchanges]
    wanted = []
    for ids, start in rows:
        types = [0] * start + [1] * (len(ids) - start)
        with torch.inference_mode():
            inputs = torch.tensor([ids]), torch.tensor([types]), torch.zeros(1, len(ids)).bool()
            wanted.append(2.0 * network(*inputs).item() - 0.5)
            more = [torch.nn.functional.pad(values, (0, 2)) for values in inputs[:2]]
            padding = torch.nn.functional.pad(inputs[2], (0, 2), value=True)
            assert 2.0 * network(*more, padding).item() - 0.5 == pytest.approx(wanted[-1], abs=1e-5)
    scores = scorer.score(exchanges if kind == "exchange" else texts)
    assert scores == pytest.approx(1 / (1 + np.exp(-np.array(wanted))), abs=0.02)
    assert abs(wanted[0] - wanted[1]) > 1e-4  # order counts


def test_refuses_the_other_kind_and_weights_that_are_not_finite(tmp_path: Path) -> None:
    network = small(tmp_path / "file.onnx", "sentence")
    with pytest.raises(ScorerError, match=r"exchange scorer: cannot use .*types"):
        ExchangeScorer(tmp_path / "file.onnx")
    with np.errstate(all="ignore"):
        network.head.bias.data.fill_(float("nan"))
        training, file = (load_script(f"models/encoder_{n}.py") for n in ("training", "file"))
        weights = training.arrays(network)
        file.write(tmp_path / "file.onnx", weights, SHAPE, PIECES, 2, pair=False, exact=True)
    with pytest.raises(ScorerError, match="not finite"):
        SentenceScorer(tmp_path / "file.onnx")


def test_a_prompt_without_an_answer_is_read_as_a_text(exchange: ExchangeScorer) -> None:
    prompt = "You are a stupid idiot."
    scores = exchange.score([Exchange(prompt, ""), Exchange("", prompt), Exchange(FRIENDLY, "")])
    assert scores[0] == scores[1] > 0.5 > scores[2]


def test_the_same_words_are_toxic_after_one_line_and_not_after_another(
    exchange: ExchangeScorer,
) -> None:
    answer = "Yes, I agree with you."
    toxic, harmless = exchange.score(
        [
            Exchange("Immigrants are all lazy and stupid.", answer),
            Exchange("Spring is the loveliest time of the year.", answer),
        ]
    )
    assert toxic > 0.5
    assert harmless < 0.2

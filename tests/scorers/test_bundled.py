"""The bundled scorers: properties for any text, golden scores, windows, and the files they read."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from tests.scorers.test_pocket import FRIENDLY, TEXTS
from tests.scripts.loading import load_script
from tide import pocket
from tide.core.chat import Chat
from tide.core.errors import ScorerError
from tide.scorers import languages, load_scorer
from tide.scorers.base import Exchange, Scorer, score_texts
from tide.scorers.encoder import ExchangeScorer, Reader, SentenceScorer, Shape
from tide.scorers.languages import holds_listed_word, term_hash
from tide.scorers.pocket import METADATA, N_FEATURES, PocketScorer, fingerprint

FILES = {
    "pocket": (pocket.SCORER, 4_000_000),
    "sentence": (pocket.SENTENCE, 11_000_000),
    "exchange": (pocket.EXCHANGE, 20_000_000),
}


@pytest.fixture(scope="module", params=FILES)
def scorer(request: pytest.FixtureRequest) -> Scorer:
    return load_scorer(request.param)


def scored(scorer: Scorer, texts: list[str]) -> list[float]:
    """The scores of texts, each after the same line."""
    values = score_texts(scorer, [Exchange("How is it?", text) for text in texts]).values
    return [float(value) for value in values]


def test_they_name_their_revision_and_are_small(scorer: Scorer) -> None:
    name = scorer.name.partition("@")[0]
    assert scorer.name == load_scorer(name).name != name
    assert scorer.threshold == 0.5
    path, most = FILES[name]
    assert path.stat().st_size <= most


# Plain, disguised and neutral texts; what they score changes only with the weights or the reading.
GOLDEN_TEXTS = [
    "Thank you, I hope you have a lovely day.",
    "You are a stupid idiot.",
    "Y0u are a st*pid \u0456di&#111;t!!!",
    "s t u p i d people, sooooo many",
    "A gay Muslim woman took bus 455 from Scunthorpe.",
    "It\u2019s caf\u00e9 time, see https://example.org/idiot",
]
GOLDEN = {
    "pocket": [0.002059, 0.999999, 0.999994, 0.993423, 0.018826, 0.759879],
    "sentence": [0.002761, 0.860821, 0.852892, 0.745750, 0.008988, 0.541413],
    "exchange": [0.003777, 0.929423, 0.877626, 0.011433, 0.002729, 0.138325],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_scores_are_golden(name: str) -> None:
    # The networks' integers are multiplied otherwise on another processor.
    tolerance = 1e-5 if name == "pocket" else 0.03
    assert scored(load_scorer(name), GOLDEN_TEXTS) == pytest.approx(GOLDEN[name], abs=tolerance)


def test_a_score_does_not_depend_on_the_batch(scorer: Scorer) -> None:
    together = scored(scorer, TEXTS)
    assert scored(scorer, TEXTS[::-1]) == together[::-1]
    assert [scored(scorer, [text])[0] for text in TEXTS] == together


@settings(deadline=None, max_examples=15)
@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=5))
def test_any_text_has_a_score(scorer: Scorer, texts: list[str]) -> None:
    assert len(scored(scorer, texts)) == len(texts)
    assert scorer.score([]).shape == (0,)


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "house", "garden", "street", "quiet", "##s", "a"]
SHAPE = Shape(tokens=24, text=14)
KINDS: dict[str, Any] = {"sentence": SentenceScorer, "exchange": ExchangeScorer}


def small(path: Path, kind: str, **changes: Any) -> Any:
    """Write a small network with random weights; return the network."""
    pytest.importorskip("onnx")
    training = load_script("models/encoder_training.py")
    torch.manual_seed(0)
    sizes = training.Sizes(len(PIECES), 24, kind == "exchange", 2, 16, 32, 2)
    network = training.Network(sizes).eval()
    write(network, path, kind, SHAPE.model_copy(update=changes))
    return network


def write(network: Any, path: Path, kind: str, shape: Shape) -> None:
    weights = load_script("models/encoder_training.py").arrays(network)
    pair = kind == "exchange"
    file = load_script("models/encoder_file.py")
    file.write(path, weights, shape, PIECES, 2, pair=pair, exact=not pair)


@pytest.mark.parametrize(
    ("changed", "made_for", "message"),
    [
        ({}, "", "other features"),
        ({"bias": np.array([np.nan])}, fingerprint(), "not finite"),
    ],
)
def test_pocket_refuses_other_weights(
    tmp_path: Path, changed: dict[str, Any], made_for: str, message: str
) -> None:
    weights = np.zeros(N_FEATURES, np.float16)
    stored = {"weights": weights, "bias": np.zeros(1), "knots": np.zeros((2, 1))} | changed
    path = tmp_path / "weights.safetensors"
    save_file(stored, path, metadata={METADATA: json.dumps({"fingerprint": made_for})})
    with pytest.raises(ScorerError, match=f"^pocket scorer: cannot use .*{message}"):
        PocketScorer(path)


@pytest.mark.parametrize("kind", FILES)
def test_refuses_missing_and_damaged_files(tmp_path: Path, kind: str) -> None:
    create = {"pocket": PocketScorer, **KINDS}[kind]
    path = tmp_path / "weights"
    with pytest.raises(ScorerError, match=f"^{kind} scorer: cannot use .*weights"):
        create(path)
    content = FILES[kind][0].read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ScorerError, match="cannot use"):
        create(path)


# Windows of `sentence` and `exchange`


def test_the_worst_window_of_a_long_text_counts() -> None:
    insult = "You are a stupid idiot and everybody hates you."
    long = f"{FRIENDLY} " * 12 + insult + f" {FRIENDLY}" * 12
    sentence = SentenceScorer()
    assert max(sentence.score([f"{FRIENDLY} " * 24, FRIENDLY])) < 0.5
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
    words = {"system": "garden", "user": "quiet", "assistant": "street"}
    said = [{"role": role, "content": word} for role, word in words.items()]
    chat = Chat.of([*said, {"role": "user", "content": "house"}])
    assert windows("a", chat, pair=True) == windows("a", "quiet\nstreet\nhouse", pair=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_gives_what_the_network_gave(tmp_path: Path, kind: str) -> None:
    network = small(tmp_path / "file.onnx", kind, scale=2.0, offset=-0.5)
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


def test_encoders_refuse_weights_that_are_not_finite(tmp_path: Path) -> None:
    network = small(tmp_path / "file.onnx", "sentence")
    network.head.bias.data.fill_(float("nan"))
    with np.errstate(all="ignore"):
        write(network, tmp_path / "file.onnx", "sentence", SHAPE)
    with pytest.raises(ScorerError, match="not finite"):
        SentenceScorer(tmp_path / "file.onnx")


def test_exchange_is_toxic_by_what_it_answers() -> None:
    answer, insult = "Yes, I agree with you.", "You are a stupid idiot."
    lines = ("Immigrants are all lazy and stupid.", "Spring is the loveliest time of the year.")
    exchange = ExchangeScorer()
    toxic, harmless = exchange.score([Exchange(line, answer) for line in lines])
    assert toxic > 0.5
    assert harmless < 0.2
    # A prompt without an answer is read as a text.
    scores = exchange.score([Exchange(insult, ""), Exchange("", insult), Exchange(FRIENDLY, "")])
    assert scores[0] == scores[1] > 0.5 > scores[2]


def test_the_bundled_lists_of_25_languages_pass_names_and_ordinary_words() -> None:
    for text in (
        "A senhora Pinto foi ontem ao mercado com o senhor Amador e comprou p\u00e3o",
        "Anita heeft gisteren met haar nicht een kat geaaid en daarna een pot thee gezet",
        "La signora ha comprato del pesce fresco al mercato e una regina di cuori",
    ):
        assert not holds_listed_word(Exchange("", text)), text
    lists = languages._lists().languages
    assert lists[term_hash(["bobo"])] == ["tl"]  # the file holds the hashes of this function
    listed_in = {code for codes in lists.values() for code in codes}
    assert len(listed_in - {"en"}) == len(listed_in) == 25


# Loads a scorer, and ends a fork of the process normally.
FORKS = """
import os, sys
from tide.scorers import languages, load_scorer
load_scorer("sentence").score(["A kind text."])
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_onnxruntime_sends_nothing_and_lets_forks_end(tmp_path: Path) -> None:
    unset = {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    environment = kept | {"HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", FORKS], env=environment, check=True, timeout=120)
    assert list(tmp_path.iterdir()) == []  # no id of this machine

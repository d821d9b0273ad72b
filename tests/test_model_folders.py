"""Randomly mutated model folders either work or are refused with an error of one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
import torch
from benchmarks.writing import completed, likelihoods
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.generated import examples
from tests.models import VOCAB, save_causal_lm, save_classifier
from tide.core.errors import TideError
from tide.core.settings import Sampling
from tide.engines import load_engine
from tide.scorers import load_scorer, score_texts

TEXTS = ["The weather today is fine", "Rain"]
HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70),
    st.integers(),
    st.sampled_from([10**4, 2**31, 2**63, 10**12, 10**40]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["auto", "float8_e4m3fn", "gpt2", "bert", "llama", "\x1b[31m", "../x", "a/b"]),
    st.recursive(
        st.integers(-1, 5) | st.text(max_size=3),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part),
        max_leaves=4,
    ),
)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An intact folder of each kind; the tests mutate copies."""
    root = tmp_path_factory.mktemp("whole")
    whole = {kind: save_causal_lm(root / kind, kind) for kind in ("gpt2", "llama", "opt")}
    return whole | {"bert": save_classifier(root / "bert", ["fine", "toxic"])}


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON tree."""
    found = []
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        found.append((tree, key))
        if isinstance(tree[key], dict | list):
            found += places(tree[key])
    return found


def change_json(path: Path, draw: Callable[[Any], Any]) -> None:
    tree = json.loads(path.read_text())
    # Mostly top-level fields: most others are the hundreds of tokens of a tokenizer.
    every = places(tree)
    top = [place for place in every if place[0] is tree]
    container, key = draw(st.sampled_from(top) | st.sampled_from(every))
    match draw(st.sampled_from(["replace", "replace", "remove", "add"])):
        case "replace":
            container[key] = draw(HOSTILE)
        case "remove":
            del container[key]
        case "add" if isinstance(container, dict):
            container[draw(st.text(max_size=8))] = draw(HOSTILE)
    path.write_text(json.dumps(tree))


def change_bytes(path: Path, draw: Callable[[Any], Any]) -> None:
    data = bytearray(path.read_bytes())
    match draw(st.sampled_from(["cut", "flip", "flip in front", "garbage", "nothing", "deep"])):
        case "cut":
            del data[draw(st.integers(0, len(data))) :]
        case "flip":
            for _ in range(draw(st.integers(1, 8))):
                data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
        case "flip in front":
            for _ in range(draw(st.integers(1, 8))):
                data[draw(st.integers(0, min(200, len(data) - 1)))] ^= 1 << draw(st.integers(0, 7))
        case "garbage":
            data = bytearray(draw(st.binary(max_size=64)))
        case "nothing":
            data.clear()
        case "deep":
            data = bytearray(b"[" * 100_000 + b"]" * 100_000)
    path.write_bytes(data)


def change_weights(path: Path, draw: Callable[[Any], Any]) -> None:
    try:
        tensors = load_file(path)
    except Exception:
        return
    if not tensors:
        return
    name = draw(st.sampled_from(sorted(tensors)))
    match draw(
        st.sampled_from(["remove", "cut", "NaN", "infinite", "large", "half", "bytes", "more"])
    ):
        case "remove":
            del tensors[name]
        case "cut":
            tensors[name] = tensors[name][:-1].clone()
        case "half":
            tensors[name] = tensors[name].half()
        case "bytes":
            tensors[name] = tensors[name].to(torch.uint8)
        case "more":
            tensors[draw(st.text("abh.01", min_size=1, max_size=9)) + name] = tensors[name].clone()
        case value:
            flat = tensors[name].float().reshape(-1)
            number = {"NaN": float("nan"), "infinite": float("-inf"), "large": 3e38}[value]
            if len(flat):
                flat[draw(st.integers(0, len(flat) - 1))] = number
            tensors[name] = flat.reshape(tensors[name].shape)
    save_file(tensors, path, metadata={"format": "pt"})


def change_file(path: Path, draw: Callable[[Any], Any]) -> None:
    path.unlink()
    match draw(st.sampled_from(["missing", "folder", "circle", "pipe"])):
        case "folder":
            path.mkdir()
        case "circle":
            path.symlink_to(path)
        case "pipe":
            os.mkfifo(path)


def mutate(folder: Path, draw: Callable[[Any], Any]) -> None:
    for _ in range(draw(st.integers(1, 3))):
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
        if not files:
            return
        path = draw(st.sampled_from(files))
        kinds = [change_bytes, change_file]
        if path.suffix == ".safetensors":
            kinds += [change_weights] * 3
        else:
            kinds += [change_json] * 6
        with suppress(ValueError, RecursionError, TypeError):  # it is no longer JSON
            draw(st.sampled_from(kinds))(path, draw)


def use_engine(folder: Path) -> None:
    engine = load_engine("transformers", folder, device="cpu")
    special = set(engine.tokenizer.all_special_ids)  # type: ignore[attr-defined]
    sampling = Sampling(temperature=1.0, max_new_tokens=8)
    for completion in completed(engine, engine.embed(TEXTS), sampling, [0, 1]):
        assert all(0 <= token < VOCAB for token in completion.token_ids)
        assert len(completion.token_ids) <= sampling.max_new_tokens
        assert completion.text or set(completion.token_ids) <= special
    ids = engine.tokenize(TEXTS)
    assert len(likelihoods(engine, ids, ids)) == len(ids)
    engine.close()


def use_scorer(folder: Path) -> None:
    scorer = load_scorer(f"hf:{folder}")
    values = score_texts(scorer, TEXTS, "score").values
    assert all(0 <= value <= 1 for value in values)
    scorer.close()


@settings(
    examples(100, 500),
    deadline=20_000,  # ms; more is a hang
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
@pytest.mark.attack
@pytest.mark.filterwarnings("ignore")  # libraries warn of broken files
@pytest.mark.slow
def test_a_mutated_folder_works_or_is_refused(
    folders: dict[str, Path], data: st.DataObject, tmp_path: Path
) -> None:
    kind = data.draw(st.sampled_from(sorted(folders)))
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folders[kind], folder)
    mutate(folder, data.draw)
    said = "it works"
    try:
        (use_scorer if kind == "bert" else use_engine)(folder)
    except TideError as error:
        said = str(error)
    assert len(said) > 7
    assert not any(category(character) in ("Cc", "Cs", "Zl", "Zp") for character in said)

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.llama_cpp.convert import convert
from tide import pocket
from tide.core.errors import EngineError, MissingDependencyError
from tide.core.pretrained import end_ids
from tide.engines.checkpoint import source_of
from tide.engines.gguf_files import PACKAGES, Package
from tide.engines.local.engine import load_model

TEXT = "The weather today is fine, and the neighbour said that"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tide" / "models"


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    convert(pocket.CHAT, file := tmp_path_factory.mktemp("gguf") / "small.gguf")
    return file


@pytest.fixture
def file(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(converted, tmp_path))


def read(model: object) -> tuple[list[int], torch.Tensor]:
    """The tokens of a text, and the logits after it."""
    tokenizer, network = load_model(str(model), CPU)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return ids[0].tolist(), network(ids).logits[0, -1]


# The package gguf can write these kinds; it only reads the K kinds, such as gemma3-270m's.
@pytest.mark.parametrize(
    ("quantisation", "error"),
    [
        ("F32", 0.0),
        pytest.param("Q8_0", 0.05, marks=pytest.mark.slow),
        *(
            pytest.param(*row, marks=pytest.mark.nightly)
            for row in [
                ("F16", 0.01), ("BF16", 0.01), ("Q5_1", 0.3), ("Q5_0", 0.3), ("Q4_1", 0.5),
                ("Q4_0", 0.5),
            ]
        ),
    ],
)  # fmt: skip
def test_a_file_is_read_as_its_model(quantisation: str, error: float, tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    convert(pocket.CHAT, file, quantisation)
    (ids, converted), (expected, logits) = read(file), read(pocket.CHAT)
    assert ids == expected
    assert float((converted - logits).abs().max()) <= error * float(logits.abs().max())


def test_it_is_converted_once_and_known_by_its_folder(
    file: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = source_of(file)
    assert re.search(r"converting small once, into \S+", caplog.text)
    caplog.clear()
    assert source_of(file) == source_of(file.parent) == first
    assert not caplog.text
    assert (Path(first) / "chat_template.jinja").read_text() == (
        pocket.CHAT / "chat_template.jinja"
    ).read_text()
    assert sorted(path.suffix for path in cache.iterdir() if path.is_file()) == [".lock"]
    file.write_bytes(b"GGUF")
    with pytest.raises(EngineError):
        source_of(file)  # a file that has changed is another model


@pytest.mark.filterwarnings("ignore")
def test_gguf_rope_scaling_is_read(tmp_path: Path) -> None:
    """The file holds the numbers by which the frequencies are divided."""
    folder, file = tmp_path / "scaled", tmp_path / "scaled.gguf"
    shutil.copytree(pocket.CHAT, folder)
    fields = json.loads((folder / "config.json").read_text())
    fields["rope_parameters"] |= {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    (folder / "config.json").write_text(json.dumps(fields))
    config = AutoConfig.from_pretrained(folder)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    plain = LlamaRotaryEmbedding(AutoConfig.from_pretrained(pocket.CHAT)).inv_freq
    factors = (plain / scaled).numpy()
    convert(pocket.CHAT, file, add=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    logits, expected, unscaled = read(file)[1], read(folder)[1], read(pocket.CHAT)[1]
    assert torch.allclose(logits, expected, atol=1e-4)
    assert not torch.allclose(logits, unscaled, atol=0.1)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "longrope"),
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN), "yarn"),
        (lambda writer: writer.add_rope_scaling_factor(4.0), "none"),
    ],
)
def test_gguf_unknown_rope_scaling_is_refused(
    add: Callable[[Any], object], message: str, tmp_path: Path
) -> None:
    convert(pocket.CHAT, file := tmp_path / "small.gguf", add=add)
    with pytest.raises(EngineError, match=rf"RoPE scaling that is not supported \({message}\)"):
        source_of(file)


def test_gguf_end_of_turn_token_ends_an_answer(tmp_path: Path) -> None:
    """llama.cpp's converter names the end of a text and the end of a turn apart."""
    folder = tmp_path / "chat"
    shutil.copytree(pocket.CHAT, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 0}))

    def add(writer: Any) -> None:
        writer.add_eot_token_id(2)
        writer.add_eom_token_id(5)

    convert(folder, file := tmp_path / "chat.gguf", add=add)
    tokenizer, model = load_model(str(file), CPU)
    assert end_ids(model, tokenizer) == [0, 2, 5]


@pytest.mark.nightly
def test_gguf_conversion_that_was_killed_leaves_nothing(file: Path, cache: Path) -> None:
    folder = Path(source_of(file))
    shutil.rmtree(folder)
    unfinished = Path(f"{folder}.unfinished")
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"half")
    assert source_of(file) == str(folder)
    assert sorted(cache.iterdir()) == [folder, Path(f"{folder}.lock")]


def test_of_two_files_in_a_folder_one_must_be_named(file: Path) -> None:
    (file.parent / "other.gguf").write_bytes(file.read_bytes())
    with pytest.raises(EngineError, match="holds 2 GGUF files; name one of them"):
        source_of(file.parent)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda file: file.write_bytes(b"GGML" + file.read_bytes()[4:]), "GGUF magic invalid"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1000]), "cannot be read"),
        (lambda file: file.write_bytes(file.read_bytes()[:100]), "cannot be read"),
    ],
)
def test_a_broken_file_is_refused_and_leaves_nothing(
    harm: Any, reason: str, file: Path, cache: Path
) -> None:
    harm(file)
    with pytest.raises(EngineError, match=f"model small: .*{reason}"):
        source_of(file)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_is_missing_is_named_with_its_install_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(part: str) -> None:
        raise metadata.PackageNotFoundError(part)

    monkeypatch.setattr("tide.engines.gguf_files.distribution", missing)
    with pytest.raises(MissingDependencyError, match=f"model {name} is not installed: pip install"):
        source_of(name)


def test_files_of_a_package_are_joined(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = file.read_bytes()
    parts = {"one": whole[:5000], "two": whole[5000:]}
    folder = file.parent / "packages"
    folder.mkdir()
    for name, part in parts.items():
        (folder / f"{name}.gguf.part").write_bytes(part)

    def installed(name: str) -> Any:
        path = folder / f"{name}.gguf.part"
        return SimpleNamespace(
            files=[
                SimpleNamespace(name="__init__.py"),
                SimpleNamespace(name=path.name, locate=lambda: path),
            ]
        )

    monkeypatch.setattr("tide.engines.gguf_files.distribution", installed)
    monkeypatch.setitem(PACKAGES, "smollm2", Package(tuple(parts), "pip install small"))
    assert Path(source_of("smollm2"), "model.safetensors").stat().st_size > len(whole) / 2

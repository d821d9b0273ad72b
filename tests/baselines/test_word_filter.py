"""The banned words: those of a file, or a number of learned ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.baselines.conftest import World
from tide.baselines import load_baseline
from tide.core.errors import InputError
from tide.core.settings import Sampling

SAMPLING = Sampling(temperature=0.0, max_new_tokens=12)


def test_words_of_a_file_are_not_written(gpt2: World, tmp_path: Path) -> None:
    """Needs no artefact, and bans a word in lower case, capitalised and in capitals."""
    path = tmp_path / "words.txt"
    path.write_text("\n  rain  \n")
    baseline = load_baseline(f"word-filter:file={path}", gpt2.engine)
    ids = {token: text for text, token in gpt2.engine.tokenizer.get_vocab().items()}
    forms = [gpt2.engine.tokenize([form])[0] for form in ("rain", " Rain", "RAIN")]
    assert all(len(form) > 1 for form in forms), ids
    for form in forms:
        # After the first tokens of a word, its last token is not the next one.
        beginning = gpt2.engine.tokenizer.decode(form[:-1])
        assert gpt2.engine.tokenize([beginning])[0] == form[:-1]
        (written,) = baseline.generate([beginning], SAMPLING, [0])
        assert written.completion.token_ids[0] != form[-1]
    other = tmp_path / "other.txt"
    other.write_text("snow")
    assert load_baseline(f"word-filter:file={other}", gpt2.engine).config() != baseline.config()


def test_fewer_words_hold_back_less(gpt2: World) -> None:
    few, all_of_them = (gpt2.load(f"word-filter:words={n}") for n in (1, 500))
    assert few.config()["banned"] != all_of_them.config()["banned"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"\n \n", "holds no word"), (b"\xff\xfe\x00", "cannot be read")],
)
def test_bad_files(gpt2: World, tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    baseline = load_baseline(f"word-filter:file={path}", gpt2.engine)
    with pytest.raises(InputError, match=message):
        baseline.generate(["The weather"], SAMPLING, [0])


@pytest.mark.parametrize(
    "change",
    [
        {"ids": torch.tensor([[5.5, 6.0]]), "words": torch.tensor([0])},
        {"ids": torch.tensor([[-1, -1]]), "words": torch.tensor([0])},
        {"ids": torch.tensor([[5, 10**6]]), "words": torch.tensor([0])},
        {"ids": torch.tensor([[5, -7]]), "words": torch.tensor([0])},
        {"words": torch.tensor([0, 1])},
        {"words": torch.zeros(0), "ids": torch.zeros(0, 4)},
    ],
)
def test_an_artefact_of_another_shape_is_refused(
    gpt2: World, tmp_path: Path, change: dict[str, torch.Tensor]
) -> None:
    """`config()`, which identifies a run, already raises, before anything is written."""
    folder = tmp_path / "word-filter"
    shutil.copytree(gpt2.artefacts / "word-filter", folder)
    save_file(
        {**load_file(folder / "weights.safetensors"), **change}, folder / "weights.safetensors"
    )
    baseline = load_baseline("word-filter", gpt2.engine, artefacts=tmp_path)
    with pytest.raises(InputError, match=r"^baseline word-filter: its artefact holds no words"):
        baseline.config()

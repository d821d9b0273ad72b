"""The banned words: those of a file, or a number of learned ones."""

from __future__ import annotations

from pathlib import Path

import pytest

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

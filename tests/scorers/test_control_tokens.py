from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.hostile import CONTROL_TOKENS, texts_with
from tests.models import save_tokenizer
from tide.scorers.control_tokens import ControlTokens, break_up

TOKENS = [*CONTROL_TOKENS, "\n\n", "covid"]


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with all kinds of added tokens, most of them not marked special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    bytes_.add_tokens([
        AddedToken(text, special=i % 2 == 0 and text in CONTROL_TOKENS, normalized=False)
        for i, text in enumerate(TOKENS)
    ])  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_, bos_token="<s>", eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


CODE = (
    "List<String>", "vector<int>", "Map<String,List<T>>", "a[i][j]", "x[0][k]", "Optional[str]",
    "std::vector<std::string>", "#include <stdio.h>", "<b>bold</b>", "<div><p>", "[a link](page)",
    "<https://example.org/a>", "if a<b>c", "[sic]", "list[dict[str]]", "List<User>",
)  # fmt: skip
TOKENIZER = tokenizer()
CONTROL = ControlTokens(TOKENIZER)


@pytest.mark.parametrize("break_up", [CONTROL.break_up, break_up], ids=["local", "server"])
@given(text=texts_with(CONTROL_TOKENS))
def test_no_control_token_is_left(break_up: Callable[[str], str], text: str) -> None:
    broken_up = break_up(text)
    assert not CONTROL.count(TOKENIZER(broken_up)["input_ids"])
    assert broken_up.replace(" ", "") == text.replace(" ", "")


def test_added_words_and_spaces_are_ordinary_text() -> None:
    assert CONTROL.break_up("covid\n\nis <b>") == "covid\n\nis <b>"
    assert CONTROL.break_up("") == ""
    assert CONTROL.break_up("<s></s>") == "< s>< /s>"


def test_text_that_a_tokenizer_does_not_know_is_no_control_token(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    counted = ControlTokens(tokenizer).count([tokenizer.unk_token_id, tokenizer.eos_token_id])
    assert list(counted) == [tokenizer.eos_token_id]


def test_only_control_tokens_are_broken_up() -> None:
    assert [t for t in CONTROL_TOKENS if t in break_up(f"a{t}b")] == []
    for text in ("I <3 you", "1 < 2 > 0", "a -> b", "as shown [1], [23]", "x[0]", "< b >", *CODE):
        assert break_up(text) == text


@pytest.mark.parametrize("part", ["|", "A", "_", "a_", "user:", "<"])
def test_long_texts_without_spaces_are_broken_up_in_linear_time(part: str) -> None:
    """With an expression that backtracks, this takes hours."""
    for text in (f"<{part * 50_000}", f"[{part * 50_000}", f"<{part * 50_000}b>"):
        assert break_up(text).replace(" ", "") == text

"""Words of a text, and the tokens that are banned for a word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.engines.base import MOST_SPELLINGS
from tide.engines.openai.upstream import Upstream
from tide.engines.openai.words import _TOKEN_APIS, TokenSource, Words, words_of

_RUNS = st.builds(
    str.__mul__, st.sampled_from([" ", "_", "'a", "\u2019a", "a", "."]), st.integers(0, 60)
)
TEXTS = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.text(" \nab'\u2019.!7_\u4e00\u0e01\u0915\u093e")
    | st.lists(_RUNS | st.text(" ab'."), max_size=5).map("".join)
)


def cut(text: str, data: st.DataObject) -> list[str]:
    """Cut a text at random places."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(text=TEXTS, most=st.integers(1, 9), data=st.data())
@examples(40, 2000)
def test_words_do_not_depend_on_how_a_text_is_cut(
    text: str, most: int, data: st.DataObject
) -> None:
    words = Words(most)
    read = [word for part in cut(text, data) for word in words.add(part)] + words.end()
    assert "".join(read) == text
    assert all(read)
    whole = words_of(text)
    assert read == (
        whole if len(whole) <= most else [*whole[: most - 1], "".join(whole[most - 1 :])]
    )


def test_what_a_word_is() -> None:
    text = "He doesn't, \u201cyou\u201d 42 times\n\n\u4eba\u4eec\u5f88\u597d!"
    assert words_of(text) == [
        "He", " doesn't", ",", " \u201c", "you", "\u201d", " 42", " times", "\n\n\u4eba\u4eec",
        "\u5f88\u597d", "!",
    ]  # fmt: skip


@given(text=TEXTS, most=st.integers(1, 9), data=st.data())
@examples(40, 2000)
def test_ends_word_is_true_only_if_the_next_word_begins_with_a_space(
    text: str, most: int, data: st.DataObject
) -> None:
    words, count, whole = Words(most), 0, words_of(text)
    for part in cut(text, data):
        count += len(words.add(part))
        if words.ends_word:
            assert whole[count].startswith(" ")
            assert not whole[count].isspace()


def test_ends_word_once_a_letter_of_the_next_word_has_come() -> None:
    words = Words(10)
    ends = [(words.add(part), words.ends_word) for part in ("Put", " ", "th", "e", ".", " Now")]
    assert ends == [
        ([], False), (["Put"], False), ([], True), ([], True), ([" the"], False), (["."], True),
    ]  # fmt: skip


# A vocabulary that spells some words letter by letter.
SPELLED = [space + word for word in ("fine", "Fine", "FINE") for space in ("", " ", "\n\n", "  ")]
VOCABULARY = ["\n", *SPELLED, *" aAdD", " a", " A", " \u05e9", *"\u05e9\u05dc\u4eba", " \u4eba"]


class Spelled(TokenSource):
    def __init__(self) -> None:
        super().__init__(Upstream("http://127.0.0.1:9", 1.0), "m", _TOKEN_APIS[0])

    async def tokenize(self, text: str) -> list[int]:
        ids = []
        while text:
            token = max((token for token in VOCABULARY if text.startswith(token)), key=len)
            ids.append(VOCABULARY.index(token))
            text = text[len(token) :]
        return ids

    async def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(VOCABULARY[token] for token in ids)


def banned_for(word: str) -> list[str]:
    return [VOCABULARY[token] for token in asyncio.run(Spelled().ids([word]))]


@pytest.mark.parametrize(
    ("word", "banned"),
    [
        (" ad", {" a", "a", "A", " A"}),
        (" \u4eba\u4eba", {" \u4eba", "\u4eba"}),
        (" \u05e9\u05dc", set()),  # its tokens are single letters: it is redrawn instead
        ("\u05dc", set()),
    ],
)
def test_what_is_banned_for_a_word(word: str, banned: set[str]) -> None:
    assert set(banned_for(word)) == banned


def test_few_spellings_are_banned_at_once() -> None:
    first, *others = banned_for("  fine")
    assert first == "  fine"
    assert 5 <= len(others) < MOST_SPELLINGS

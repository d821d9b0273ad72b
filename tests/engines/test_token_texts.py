from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.scripted_engine import ScriptedEngine


def pieces_of(texts: Callable[[Any], list[str]], ids: Sequence[int]) -> list[str]:
    """The token texts that an engine with `texts` as its decoder gives."""
    kind = type("Engine", (ScriptedEngine,), {"_texts": lambda _, rows: texts(rows)})
    with kind(lambda x, seed: "") as engine:
        (pieces,) = engine.token_texts([ids])
    return list(pieces)


@examples(40, 5000)
@given(st.text(st.sampled_from("ab \u00e9\u4e2d\U0001f600.\n"), max_size=30))
def test_pieces_join_to_the_text(text: str) -> None:
    """Each token is a byte; most of them are only a part of a character."""
    ids = list(text.encode())

    def texts(rows: object) -> list[str]:
        return [bytes(row).decode(errors="replace") for row in rows]  # type: ignore[attr-defined]

    pieces = pieces_of(texts, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    count = 0
    for piece, end in zip(pieces, range(1, len(ids) + 1), strict=True):
        count += len(piece)
        whole = texts([ids[:end]])[0].rstrip("\ufffd")
        assert text[:count] == whole


@examples(40, 5000)
@given(st.text(st.sampled_from("a\u4e2d\U0001f600"), max_size=9), st.data())
def test_a_text_may_be_cut_after_a_token_that_adds_something(
    text: str, data: st.DataObject
) -> None:
    """Tokens hold any bytes, even the end of one character with the beginning of the next."""
    encoded = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)))) | {0, len(encoded)})
    tokens = [encoded[a:b] for a, b in pairwise(cuts)]

    def texts(rows: object) -> list[str]:
        return [b"".join(tokens[i] for i in row).decode(errors="replace") for row in rows]  # type: ignore[attr-defined]

    pieces = pieces_of(texts, range(len(tokens)))
    assert "".join(pieces) == text
    for end, piece in enumerate(pieces, 1):
        if piece:
            assert b"".join(tokens[:end]).decode() == "".join(pieces[:end])

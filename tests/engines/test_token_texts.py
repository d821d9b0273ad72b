from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.scripted_engine import ScriptedEngine
from tide.core.text import HALF


def pieces_of(texts: Callable[[Any], list[str]], ids: Sequence[int]) -> list[str]:
    """The token texts that an engine with `texts` as its decoder gives."""
    kind = type("Engine", (ScriptedEngine,), {"_texts": lambda _, rows: texts(rows)})
    with kind(lambda x, seed: "") as engine:
        (pieces,) = engine.token_texts([ids])
    return list(pieces)


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
        so_far = b"".join(tokens[:end]).decode(errors="replace")
        if HALF in so_far:
            assert not piece
        else:
            assert "".join(pieces[:end]) == so_far

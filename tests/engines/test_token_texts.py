from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.engines.token_texts import TokenTexts


@examples(200, 5000)
@given(st.text(st.sampled_from("ab \u00e9\u4e2d\U0001f600.\n"), max_size=30))
def test_pieces_join_to_the_text(text: str) -> None:
    """Tokens are bytes: most are not characters of their own."""
    ids = list(text.encode())

    def texts(rows: object) -> list[str]:
        return [bytes(row).decode(errors="replace") for row in rows]  # type: ignore[attr-defined]

    (pieces,) = TokenTexts(texts).of([ids])
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    count = 0
    for piece, end in zip(pieces, range(1, len(ids) + 1), strict=True):
        count += len(piece)
        whole = texts([ids[:end]])[0].rstrip("\ufffd")
        assert text[:count] == whole

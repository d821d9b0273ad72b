from __future__ import annotations

import pytest

from tide.evaluation.console import bundled_terms, masked, term_hashes
from tide.scorers.languages import term_hash

# Mild words, so that no test shows an offensive one.
LISTED = frozenset(term_hash(term.split()) for term in ("rude", "mild", "plain vanilla"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a fine day, all in all", "a fine day, all in all"),
        ("so RUDE a man,\n rude!", "so R*** a man,\n r***!"),
        ("", ""),
        ("so r u d e he is", "so r * * * he is"),
        ("so r.u.d.e he is", "so r.*.*.* he is"),
        ("I r u n", "I r u n"),
        ("a - b rude", "a - b r***"),
        ("a young white man, rude", "a young white man, r***"),
        ("<b>rude</b> <i>so</i>", "<b>r***</b> <i>so</i>"),
        ("such plain\n vanilla; vanilla, plain", "such p****\n v******; vanilla, plain"),
    ],
)
def test_masked_words_are_the_listed_words(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tide.evaluation.console.bundled_terms", lambda: LISTED)
    assert masked(text) == expected


def test_bundled_list_has_no_plain_words() -> None:
    words = ["young", "white", "die", "kind", "window"]
    assert not any(term_hashes(word) & bundled_terms() for word in words)

from __future__ import annotations

from models.probes import PEOPLE, neutral_sentences, with_article


def test_neutral_sentences_are_about_everybody() -> None:
    sentences = neutral_sentences()
    assert len(sentences) == len(set(sentences)) == 8 * len(PEOPLE)
    assert with_article("older person") == "an older person"
    assert with_article("woman") == "a woman"
    assert all(sum(person in s for s in sentences) >= 8 for person in PEOPLE)

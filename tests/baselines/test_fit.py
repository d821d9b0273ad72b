from __future__ import annotations

from collections import Counter

import pytest

from tide.baselines.fit import Labelled, by_any
from tide.core.errors import InputError
from tide.data.texts import LabelledText, Pair


def many(source: str, toxic: int, other: int) -> list[LabelledText]:
    return [
        LabelledText(text=f"{source} {i}", toxicity=0.9 if i < toxic else 0.0, group=source)
        for i in range(toxic + other)
    ]


def between(count: int) -> list[LabelledText]:
    """Texts that few raters found toxic."""
    return [LabelledText(text=f"so-so {i}", toxicity=0.3, group="x") for i in range(count)]


def test_as_many_of_either_kind_from_each_source() -> None:
    data = Labelled([*many("x", 50, 30), *many("y", 5, 100)], [])
    chosen = data.balanced(seed=0)
    counts = Counter((text.group, text.toxicity) for text in chosen)
    assert counts == {("x", 0.9): 30, ("x", 0.0): 30, ("y", 0.9): 5, ("y", 0.0): 5}
    assert chosen == data.balanced(seed=0) != data.balanced(seed=1)
    assert data.balanced(seed=0, limit=40) == chosen[:40]
    with pytest.raises(InputError, match=r"0 toxic texts can be matched .* at least 20"):
        Labelled(between(90), []).balanced(seed=0)


def test_balanced_texts_between_toxic_and_non_toxic() -> None:
    """Texts that are neither kind are left out, added by `rest`, or toxic by `by_any`."""
    data = Labelled([*many("x", 30, 40), *between(25)], [])
    assert Counter(t.toxicity for t in data.balanced(0)) == {0.9: 30, 0.0: 30}
    assert Counter(t.toxicity for t in data.balanced(0, rest=True)) == {0.9: 30, 0.0: 30, 0.3: 25}
    any_ = Counter(t.toxicity > 0 for t in data.balanced(0, kind=by_any))
    assert any_ == {True: 40, False: 40}


@pytest.mark.parametrize("count", [50, 100, 200])
def test_a_few_hundred_balanced_texts_can_be_split_with_any_seed(count: int) -> None:
    data = Labelled(many("x", count, count), [])
    for seed in range(20):
        _, held_out = data.split(seed)
        assert held_out.balanced(seed, 40, minimum=10)


def test_a_split_is_apart_and_keeps_pairs_together() -> None:
    pairs = [Pair(toxic=f"a{i}", neutral=[f"b{i}", f"c{i}"]) for i in range(50)]
    data = Labelled(many("x", 60, 40), pairs)
    train, held_out = data.split(seed=3)
    assert (len(held_out.singles), len(held_out.pairs)) == (40, 25)
    texts = [text.text for part in (train, held_out) for text in part.texts]
    assert sorted(texts) == sorted(text.text for text in data.texts)
    assert data.split(seed=3)[1] == held_out != data.split(seed=4)[1]

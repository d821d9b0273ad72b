from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tide.baselines.fit import Labelled, by_any
from tide.core.errors import InputError
from tide.data.texts import LabelledText, Pair


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def many(source: str, toxic: int, other: int) -> list[LabelledText]:
    return [
        LabelledText(f"{source} {i}", 0.9 if i < toxic else 0.0, source)
        for i in range(toxic + other)
    ]


def test_labelled_texts_and_pairs_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        [
            {"text": "fine", "toxicity": 0, "source": "x"},
            {"text": "so-so", "toxicity": 0.3},
            {"toxic": "silly", "neutral": ["odd", "strange"]},
            {"toxic": "daft", "neutral": "unwise"},
            {"toxic": "dumb", "neutral": []},
        ],
    )
    zipped = tmp_path / "b.jsonl.gz"
    zipped.write_bytes(gzip.compress(b'{"text": "good", "toxicity": 1.0}\n'))
    data = Labelled.read([path, zipped])
    assert data.pairs == [Pair("silly", ("odd", "strange")), Pair("daft", ("unwise",))]
    assert [(t.text, t.toxicity, t.group) for t in data.texts] == [
        ("fine", 0.0, "x"),
        ("so-so", 0.3, ""),
        ("dumb", 1.0, "pairs"),
        ("good", 1.0, ""),
        ("silly", 1.0, "pairs"),
        ("odd", 0.0, "pairs"),
        ("strange", 0.0, "pairs"),
        ("daft", 1.0, "pairs"),
        ("unwise", 0.0, "pairs"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "toxicity": True}, "toxicity is True"),
        ({"toxic": "a"}, "'toxic' needs 'neutral'"),
        ({"toxic": "a", "neutral": ["b", ""]}, "holds an empty text"),
        ({"toxic": 3, "neutral": "b"}, "holds an empty text"),
    ],
)
def test_bad_row_is_named(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "fine", "toxicity": 0}, row])
    with pytest.raises(InputError, match=rf"a\.jsonl, line 2: .*{message}"):
        Labelled.read([path])


def test_labelled_files_must_exist_and_hold_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Labelled.read([tmp_path / "none.jsonl"])
    with pytest.raises(InputError, match="no labelled texts"):
        Labelled.read([])


def test_as_many_of_either_kind_from_each_source() -> None:
    data = Labelled([*many("x", 50, 30), *many("y", 5, 100)], [])
    chosen = data.balanced(seed=0)
    assert Counter((t.group, t.toxicity) for t in chosen) == {
        ("x", 0.9): 30, ("x", 0.0): 30, ("y", 0.9): 5, ("y", 0.0): 5,
    }  # fmt: skip
    assert chosen == data.balanced(seed=0) != data.balanced(seed=1)
    assert data.balanced(seed=0, limit=40) == chosen[:40]
    # Texts that few raters found toxic are neither.
    between = Labelled([LabelledText("so-so", 0.3, "x")] * 90, [])
    with pytest.raises(InputError, match=r"0 toxic texts can be matched .* at least 20"):
        between.balanced(seed=0)


@pytest.mark.parametrize("count", [50, 100, 200])
def test_a_few_hundred_balanced_texts_can_be_split_with_any_seed(count: int) -> None:
    data = Labelled(many("x", count, count), [])
    for seed in range(20):
        _, held_out = data.split(seed)
        assert held_out.balanced(seed, 40, minimum=10)


def test_a_split_is_apart_and_keeps_pairs_together() -> None:
    data = Labelled(many("x", 60, 40), [Pair(f"a{i}", (f"b{i}", f"c{i}")) for i in range(50)])
    train, held_out = data.split(seed=3)
    assert (len(held_out.singles), len(held_out.pairs)) == (40, 25)
    assert sorted(t.text for t in [*train.texts, *held_out.texts]) == sorted(
        t.text for t in data.texts
    )
    assert data.split(seed=3)[1] == held_out != data.split(seed=4)[1]
    with pytest.raises(InputError, match="25 pairs of 'toxic' and 'neutral' texts; at least 26"):
        held_out.need_pairs(26)


def test_balanced_texts_between_toxic_and_non_toxic() -> None:
    """Texts that are neither kind are left out, added by `rest`, or toxic by `by_any`."""
    between = [LabelledText(f"so-so {i}", 0.3, "a") for i in range(25)]
    data = Labelled([*many("a", 30, 40), *between], [])
    assert Counter(t.toxicity for t in data.balanced(0)) == {0.9: 30, 0.0: 30}
    assert Counter(t.toxicity for t in data.balanced(0, rest=True)) == {0.9: 30, 0.0: 30, 0.3: 25}
    any_ = Counter(t.toxicity > 0 for t in data.balanced(0, kind=by_any))
    assert any_ == {True: 40, False: 40}

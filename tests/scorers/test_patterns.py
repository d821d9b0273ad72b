from __future__ import annotations

from pathlib import Path

import pytest

from tide.core.errors import InputError, ScorerError
from tide.scorers import load_scorer
from tide.scorers.base import score_groups


def test_a_text_that_a_pattern_matches(tmp_path: Path) -> None:
    path = tmp_path / "forms.txt"
    path.write_text("# addresses\n\n[\\w.+-]+@[\\w-]+\\.\\w+\nAC-\\d{4}\n")
    scorer = load_scorer(f"regex:{path}")
    texts = ["ask me@example.org", "ask me&#64;example.org", "of ac-1234.", "AC-12", "fine", ""]
    assert scorer.score(texts).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert scorer.name.startswith("regex@")
    both = load_scorer(f"max:pocket,regex:{path}")
    assert both.score(["a fine day", "AC-1234"])[1] == 1.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("fine\n(", "line 2 is not a regular expression"),
        ("(?V0)fine", "line 1 is not a regular expression"),
        ("\n#\n", "holds no patterns"),
        ("x*", "line 1 matches an empty text"),
        (f"a{{{'9' * 5000}}}", "line 1 is not a regular expression"),
    ],
)
def test_what_is_no_file_of_patterns(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "forms.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=f"scorer regex: .*{said}"):
        load_scorer(f"regex:{path}")
    with pytest.raises(InputError, match="needs an argument"):
        load_scorer("regex")
    with pytest.raises(InputError, match="no such file"):
        load_scorer(f"regex:{path}.none")


def test_a_pattern_that_takes_too_long_is_an_error_of_that_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tide.scorers.words._SECONDS", 0.05)
    path = tmp_path / "forms.txt"
    path.write_text("(a|aa|aaa)+$b")
    scorer = load_scorer(f"regex:{path}")
    good, bad = score_groups(scorer, [["fine"], ["a" * 60 + "!"]])
    assert not isinstance(good, ScorerError)
    assert isinstance(bad, ScorerError)
    assert "line 1 takes more than 0.05 s" in str(bad)

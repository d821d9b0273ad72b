"""Scorer specs: names, wrappers, and third-party classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import Field

from tests.fakes import FakeScorer
from tide.core.errors import InputError, ScorerError
from tide.plugins.options import Options
from tide.scorers import REGISTRY, load_scorer
from tide.scorers.base import PlainScorer, Scorer


class TunedOptions(Options):
    level: float = Field(default=0.25, ge=0, le=1)
    words: str = ""


class Tuned(PlainScorer):
    """Scores `level` for a text that holds one of `words`."""

    options_class = TunedOptions

    def __init__(self, options: TunedOptions) -> None:
        self.name = options.spec("tuned")
        self._options = options

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        words = self._options.words.split(",")
        return np.array([self._options.level * any(w in text for w in words) for text in texts])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("windows", "write windows:SCORER$"),
        ("classifier", "needs an argument: classifier:ARG"),
        ("windows:50:pocket", "'50'; known: .*windows"),
        ("mean:pocket,pockt", "did you mean 'pocket'"),
        ("zzz", "known: .*hf, .*pocket, .*profanity-check, .*sentence"),
        ("profanity-check:x", "takes no argument"),
        ("cache:", "does not begin with a name"),
        ("max:pocket,,lexicon", "an empty entry between commas"),
        ("mine.py", r"name the class or function as well, as in mine\.py:NAME"),
        ("tests.scorers.test_load:Tuned:lvel=1", "no option 'lvel'; known: level, words"),
        ("tests.scorers.test_load:Tuned:level=2", "Tuned: level: Input should be less than"),
    ],
)
def test_names_that_cannot_be_read(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_scorer(spec)


def test_a_class_with_options(tmp_path: Path) -> None:
    here = "tests.scorers.test_load:Tuned"
    assert load_scorer(here).name == "tuned"
    scorer = load_scorer(f"max:{here}:level=0.75,words=(a,b),windows:{here},({here})")
    assert scorer.name == "max:tuned:level=0.75,words=(a,b),windows:100:tuned,tuned"
    assert scorer.score(["b", "c"]).tolist() == [0.75, 0.25]
    path = tmp_path / "mine.py"
    path.write_text("from tests.scorers.test_load import Tuned as Mine\n")
    assert load_scorer(f"{path}:Mine:level=1").name == "tuned:level=1"


def test_a_function_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def rude(texts):\n    return [float('boss' in text) for text in texts]\n")
    scorer = load_scorer(f"max:{path}:rude,{path}:rude")
    assert scorer.score(["the boss", "the town"]).tolist() == [1.0, 0.0]
    name = load_scorer(f"{path}:rude").name
    assert name.startswith(f"callable:{path}:rude@")
    path.write_text(path.read_text().replace("boss", "chef"))
    edited = load_scorer(f"{path}:rude")
    assert edited.score(["the boss", "the chef"]) == [0.0, 1.0]
    assert edited.name != name
    with pytest.raises(InputError, match="a function takes no argument"):
        load_scorer(f"{path}:rude:x")


def test_an_installed_function_without_an_argument_returns_a_scorer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(REGISTRY._targets, "made", lambda steps=1, **_: Tuned(TunedOptions()))
    assert load_scorer("max:made,made").score(["abc"]).tolist() == [0.25]


class NoLicence(PlainScorer):
    name = "no-licence@1"

    def __init__(self) -> None:
        raise FileNotFoundError("no licence\nhere")


def test_a_class_that_cannot_be_made_is_one_line() -> None:
    here = "tests.scorers.test_load"
    with pytest.raises(ScorerError, match=f"^scorer '{here}:NoLicence' cannot be loaded: .*here$"):
        load_scorer(f"{here}:NoLicence")
    with pytest.raises(InputError, match=r"^scorer: its threshold must not be '0\.5'$"):
        load_scorer(FakeScorer(threshold="0.5"))  # type: ignore[arg-type]


class NoClose:
    name, threshold = "no-close@1", 0.5

    def score(self, texts: Sequence[str]) -> list[float]:
        return [0.25] * len(texts)


class Inherits(NoClose, Scorer):  # type: ignore[misc]
    pass


class NoThreshold(Scorer):
    name = "no-threshold@1"


def test_a_class_that_lacks_something_is_told_to_inherit() -> None:
    here = "tests.scorers.test_load"
    for incomplete in (f"{here}:NoClose", NoClose()):
        with pytest.raises(InputError, match=r"NoClose has no close; let its class inherit tide.S"):
            load_scorer(incomplete)  # type: ignore[arg-type]
    for complete in (f"{here}:Inherits", Inherits()):
        assert load_scorer(complete).score(["a text"]) == [0.25]
        load_scorer(complete).close()
    with pytest.raises(InputError, match="NoThreshold has no threshold"):
        load_scorer(NoThreshold())
    with pytest.raises(InputError, match=r"NoClose is a class; pass an instance, NoClose\(\)"):
        load_scorer(NoClose)
    with pytest.raises(InputError, match="scorer: int has no name, threshold, score, close"):
        load_scorer(3)  # type: ignore[arg-type]


def test_arguments_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a:b,c=d (e).txt"
    path.write_text("fool\n")
    scorer = load_scorer(f"lexicon:{path}")
    assert scorer.score(["you fool", "good"]).tolist() == [1.0, 0.0]
    both = load_scorer(f"max:(lexicon:{path}),pocket")
    assert both.name.startswith("max:lexicon@")

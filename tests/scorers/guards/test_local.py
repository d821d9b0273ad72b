"""Guards in this process, trained for seconds to answer in their family's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models import save_causal_lm
from tests.scorers.guards.tiny import (
    EXCHANGES,
    FAMILIES,
    TEXTS,
    TOXIC,
    asked,
    exchanges,
    save_guard,
    toxic,
)
from tide.core.errors import ScorerError
from tide.scorers import Scorer, load_scorer, score_texts
from tide.scorers.base import Exchange
from tide.scorers.guards import FAMILIES as KNOWN
from tide.scorers.guards import LocalGuard


class Folders(dict[str, Path]):
    """Folders of guards by family; a guard is trained, for seconds, at its first use."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, family: str) -> Path:
        name = "qwen3guard-gen" if family == "qwen3guard" else family
        self[family] = save_guard(self.root / name, family)
        return self[family]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return Folders(tmp_path_factory.mktemp("guards"))


def by_hand(folder: Path, family: str, exchange: Exchange) -> float:
    """The probability of the toxic verdict, computed with transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    verdicts = KNOWN[family].verdicts
    answer = FAMILIES[family].answers[1]
    begun = answer[: answer.rindex(next(word for word in verdicts if word in answer))]
    gap = " " if begun.endswith(" ") else ""
    prompt = asked(tokenizer, family, exchange) + begun.removesuffix(" ")
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        probabilities = model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
    first = {
        word: tokenizer(gap + word, add_special_tokens=False)["input_ids"][0] for word in verdicts
    }
    assert len(set(first.values())) == len(first)
    mass = sum(float(probabilities[i]) for i in first.values())
    return sum(verdicts[word] * float(probabilities[i]) for word, i in first.items()) / mass


# One family is tried always; training all of them takes a minute.
_FAMILIES = [
    pytest.param(name, marks=[] if name == "qwen3guard" else [pytest.mark.slow])
    for name in FAMILIES
]


@pytest.mark.parametrize("family", _FAMILIES)
def test_every_family_as_by_hand(folders: dict[str, Path], family: str) -> None:
    scorer = load_scorer(f"guard:{folders[family]}")
    assert isinstance(scorer, Scorer)
    assert scorer.name.startswith(f"guard:{folders[family]}@")
    assert scorer.name.endswith(f"#{family}")
    scores = scorer.score(EXCHANGES)
    assert [score > 0.5 for score in scores] == TOXIC
    if family != "wildguard":  # whose earlier verdicts stand before the one that counts
        by_hands = [by_hand(folders[family], family, exchange) for exchange in EXCHANGES]
        assert scores == pytest.approx(by_hands, abs=0.01)


def test_the_same_words_after_another_question(folders: dict[str, Path]) -> None:
    scorer = load_scorer(f"guard:{folders['qwen3guard']}")
    answer = "yes people are"
    agrees, harmless = (Exchange(f"are people {word} today", answer) for word in ("rude", "kind"))
    scores = score_texts(scorer, [agrees, harmless]).values
    assert scores[0] > 0.9
    assert scores[1] < 0.1


def test_the_result_does_not_depend_on_the_batch(folders: dict[str, Path]) -> None:
    asked_about = list(exchanges(40))
    single, many = (LocalGuard(str(folders["qwen3guard"])) for _ in range(2))
    single.batch, many.batch = 1, 64
    scores = many.score(asked_about)
    assert scores == pytest.approx(single.score(asked_about), abs=1e-5)
    assert [score > 0.5 for score in scores] == [toxic(exchange) for exchange in asked_about]
    assert many.score([]).shape == (0,)


def test_guard_with_a_family_of_a_file(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'prompt = "<|user|>{text}<|guard|><think>\\n\\n</think>\\n\\n"\n'
        'lead = "Safety:"\nverdicts = { Unsafe = 1.0, Safe = 0.0 }\ntokens = 12\n'
    )
    mine = load_scorer(f"guard:{folders['qwen3guard']}#{path}")
    known = load_scorer(f"guard:{folders['qwen3guard']}")
    assert mine.score(TEXTS) == pytest.approx(known.score(TEXTS), abs=0.01)
    assert "#mine@" in mine.name


def test_a_text_that_is_too_long_is_an_error_and_not_cut(folders: dict[str, Path]) -> None:
    scorer = load_scorer(f"guard:{folders['qwen3guard']}")
    long = "the weather is fine " * 80 + "rude"
    with pytest.raises(ScorerError, match=r"too long for the context of .* tokens; use windows:"):
        score_texts(scorer, [long])
    windows = load_scorer(f"windows:6:guard:{folders['qwen3guard']}")
    assert score_texts(windows, [long]).values[0] > 0.5


def test_a_model_that_gives_no_verdicts(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ScorerError, match=r"instead of a verdict \(unsafe, safe\); is it a guard"):
        load_scorer(f"guard:{folders['qwen3guard']}#llama-guard")
    with pytest.raises(ScorerError, match="its chat template failed"):
        load_scorer(f"guard:{save_causal_lm(tmp_path, 'gpt2')}#llama-guard")
    with pytest.raises(ScorerError, match="cannot be loaded"):
        load_scorer(f"guard:{tmp_path}/none#llama-guard")


def test_a_verdict_that_fails_later_is_no_score(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer: Any = load_scorer(f"guard:{folders['qwen3guard']}")
    monkeypatch.setattr(scorer, "_answers", lambda prompts, tokens: [[] for _ in prompts])
    with pytest.raises(ScorerError, match="instead of a verdict"):
        score_texts(scorer, TEXTS)

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models import save_causal_lm
from tests.scorers.guards.tiny import FAMILIES, TEXTS, TOXIC, save_guard, sentences, toxic
from tide.core.errors import InputError, ScorerError
from tide.scorers import Scorer, load_scorer, score_texts
from tide.scorers.guards import guard
from tide.scorers.guards.formats import FORMATS, GuardSettings


class Folders(dict[str, Path]):
    """Folders of guards by family; a guard is trained, for seconds, at its first use."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, family: str) -> Path:
        self[family] = save_guard(self.root / family, family)
        return self[family]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return Folders(tmp_path_factory.mktemp("guards"))


def by_hand(folder: Path, family: str, text: str) -> float:
    """The probability of the toxic verdict about a text, computed with transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True,
        **FORMATS[family].arguments,
    )  # fmt: skip
    answer = FAMILIES[family].answers[1]
    verdict = next(word for word in FORMATS[family].verdicts if word in answer)
    begun = answer[: answer.index(verdict)]
    gap = " " if begun.endswith(" ") else ""
    ids = tokenizer(asked + begun.removesuffix(" "), add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        found = model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
    first = {
        word: tokenizer(gap + word, add_special_tokens=False)["input_ids"][0]
        for word in FORMATS[family].verdicts
    }
    assert len(set(first.values())) == len(first)
    weights = FORMATS[family].verdicts
    mass = sum(float(found[i]) for i in first.values())
    return sum(weights[word] * float(found[i]) for word, i in first.items()) / mass


# The families whose training takes longest are among the slow tests.
_FAMILIES = [
    pytest.param(one, marks=[pytest.mark.slow] if "granite" in one else []) for one in FAMILIES
]


@pytest.mark.parametrize("family", _FAMILIES)
def test_every_family_as_by_hand(folders: dict[str, Path], family: str) -> None:
    scorer = load_scorer(f"guard:{folders[family]}")
    assert isinstance(scorer, Scorer)
    assert scorer.name.startswith(f"guard:{folders[family]}@")
    assert scorer.name.endswith(f"#{family}")
    scores = scorer.score(TEXTS)
    assert [score > 0.5 for score in scores] == TOXIC
    assert scores == pytest.approx([by_hand(folders[family], family, t) for t in TEXTS], abs=0.01)


def test_the_result_does_not_depend_on_the_batch(folders: dict[str, Path]) -> None:
    texts = list(sentences(40))
    one = guard(GuardSettings(model=str(folders["qwen3guard"]), batch=1))
    many = guard(GuardSettings(model=str(folders["qwen3guard"]), batch=64))
    assert many.score(texts) == pytest.approx(one.score(texts), abs=1e-5)
    assert [s > 0.5 for s in many.score(texts)] == [toxic(text) for text in texts]
    assert many.score([]).shape == (0,)


@pytest.mark.parametrize("family", [one for one in _FAMILIES if one.values != ("qwen3guard",)])
def test_a_policy_reaches_the_guard(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    # These guards were trained without a policy, so only the prompt is checked.
    monkeypatch.setattr("tide.scorers.guards.local.LocalGuard._try_out", lambda self: None)
    scorer: Any = guard(GuardSettings(model=str(folders[family]), policy="Be kind."))
    assert "Be kind." in scorer._rendered("a text")
    assert scorer.name != load_scorer(f"guard:{folders[family]}").name


def test_a_policy_that_the_template_leaves_out_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """A template ignores unknown arguments, so the guard would judge by its own policy."""
    folder = shutil.copytree(folders["shieldgemma"], tmp_path / "shieldgemma")
    template = folder / "chat_template.jinja"
    template.write_text("<|user|>{{ messages[-1]['content'] }}<|guard|>")
    with pytest.raises(InputError, match="no place for a policy"):
        guard(GuardSettings(model=str(folder), policy="Be kind."))


def test_a_prompt_and_verdicts_of_one_s_own(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    values = {
        "model": str(folders["shieldgemma"]), "prompt": "<|user|>{text}<|guard|>",
        "verdicts": {"Yes": 1, "No": 0},
    }  # fmt: skip
    path.write_text(json.dumps(values))
    own, known = load_scorer(f"guard:{path}"), load_scorer(f"guard:{folders['shieldgemma']}")
    assert own.score(TEXTS) == pytest.approx(known.score(TEXTS), abs=1e-6)
    assert "#own," in own.name


def test_a_text_that_is_too_long_is_an_error_and_not_cut(folders: dict[str, Path]) -> None:
    scorer = load_scorer(f"guard:{folders['shieldgemma']}")
    long = "the weather is fine " * 80 + "rude"
    with pytest.raises(ScorerError, match="too long for the context of 256 tokens; use windows:"):
        score_texts(scorer, [long])
    windows = load_scorer(f"windows:6:guard:{folders['shieldgemma']}")
    assert windows.score([long])[0] > 0.5


def test_a_model_that_gives_no_verdicts(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ScorerError, match=r"instead of a verdict \(unsafe, safe\); is it a guard"):
        load_scorer(f"guard:{folders['qwen3guard']}#llama-guard")
    with pytest.raises(ScorerError, match="has no chat template"):
        load_scorer(f"guard:{save_causal_lm(tmp_path, 'gpt2')}#llama-guard")
    with pytest.raises(ScorerError, match="cannot be loaded"):
        load_scorer(f"guard:{tmp_path}/none#llama-guard")


def test_a_verdict_that_fails_later_is_no_score(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer: Any = load_scorer(f"guard:{folders['shieldgemma']}")
    monkeypatch.setattr(scorer, "_answers", lambda prompts, tokens: [[] for _ in prompts])
    with pytest.raises(ScorerError, match="instead of a verdict"):
        score_texts(scorer, TEXTS)


def test_the_assistant_s_side(folders: dict[str, Path]) -> None:
    settings = GuardSettings(model=str(folders["shieldgemma"]), role="assistant", question="Well?")
    assert settings.messages("a text") == [
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "a text"},
    ]
    assert np.all(guard(settings).score(TEXTS)[[1, 3]] > 0.5)

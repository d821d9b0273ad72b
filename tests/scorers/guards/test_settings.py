from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tide.core.errors import InputError
from tide.scorers import guards, load_scorer
from tide.scorers.base import Exchange
from tide.scorers.guards import FAMILIES, RemoteGuard
from tide.scorers.services import ServedClassifier


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("meta-llama/Llama-Guard-3-8B", "llama-guard"),
        ("meta-llama/Llama-Guard-4-12B", "llama-guard"),
        ("google/shieldgemma-2b", "shieldgemma"),
        ("ibm-granite/granite-guardian-3.3-8b", "granite-guardian-3.3"),
        ("ibm-granite/granite-guardian-4.1-8b", "granite-guardian-4"),
        ("Qwen/Qwen3Guard-Gen-0.6B", "qwen3guard"),
        ("allenai/wildguard", "wildguard"),
    ],
)
def test_a_family_is_known_by_the_model_s_name(model: str, family: str) -> None:
    scorer = load_scorer(f"guard:{model}@http://host:8000")
    assert isinstance(scorer, RemoteGuard)
    assert scorer.name == f"guard:{model}@host:8000/v1#{family}"
    assert scorer._family is FAMILIES[family]
    scorer.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("openai-community/gpt2", r"its family is unknown; append # and a family \(llama-guard"),
        ("Qwen/Qwen3Guard-Stream-4B", "its family is unknown"),
        ("openai-community/gpt2#guardian", "unknown family 'guardian'"),
        ("#shieldgemma", "name a model"),
        ("@http://host", "name a model"),
    ],
)
def test_a_guard_without_a_family_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_scorer(f"guard:{spec}")


def test_placeholders_in_a_text_are_not_filled_in() -> None:
    family = replace(FAMILIES["wildguard"], prompt="Bad? [{context}] [{text}]")
    (message,) = family.messages(family.turns(Exchange("{text}", "{role}")))
    assert message["content"] == "Bad? [{text}] [{role}]"


def test_the_page_has_every_family_and_variable() -> None:
    page = (Path(__file__).parents[3] / "docs" / "scorers.md").read_text("utf-8")
    section = page.partition("## Guard models")[2].partition("\n## ")[0]
    assert {name for name in FAMILIES if f"`{name}`" not in section} == set()
    variable = re.compile(r"[A-Z]+_[A-Z_]+(?:KEY|QPS|ENDPOINT|URL)\b")
    sources = Path(guards.__file__).parent.rglob("*.py")
    read_from = {name for path in sources for name in variable.findall(path.read_text("utf-8"))}
    families = [scorer.family for scorer in (RemoteGuard, ServedClassifier)]
    read_from |= {f"{family}_{what}" for family in families for what in ("API_KEY", "QPS")}
    read_from.remove("FAMILY_API_KEY")  # stands for those of the families
    assert len(read_from) > 7
    assert {name for name in read_from if f"`{name}`" not in page} == set()

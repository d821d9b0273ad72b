from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tide.core.errors import InputError
from tide.scorers import guards, load_scorer
from tide.scorers.base import Exchange
from tide.scorers.guards import FAMILIES, GuardSettings, Question, RemoteGuard
from tide.scorers.services.self_hosted import ServedClassifier


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
    question = Question(GuardSettings(model=model))
    assert (question.suffix, question.family) == (f"#{family}", FAMILIES[family])


@pytest.mark.parametrize("model", ["openai-community/gpt2", "Qwen/Qwen3Guard-Stream-4B"])
def test_other_models_are_no_guards(model: str) -> None:
    with pytest.raises(InputError, match="its format is unknown"):
        Question(GuardSettings(model=model))


def test_specs() -> None:
    read = GuardSettings.read
    assert read("a/b#shieldgemma") == GuardSettings(model="a/b", format="shieldgemma")
    settings = read("a/b#qwen3guard@http://host:8000/v1")
    assert (settings.model, settings.format) == ("a/b", "qwen3guard")
    assert settings.url == "http://host:8000/v1"
    assert read("a/b@https://host").url == "https://host"
    for wrong in ("", "#shieldgemma", "@http://host"):
        with pytest.raises(InputError, match="name a model"):
            read(wrong)


def saved(path: Path, **values: Any) -> str:
    path.write_text(json.dumps(values), encoding="utf-8")
    return str(path)


def test_a_file_of_settings(tmp_path: Path) -> None:
    spec = saved(
        tmp_path / "mine.json", model="any/model", prompt="Bad? {policy} [{context}] [{text}]",
        policy="Be kind.", verdicts={"bad": 1, "good": 0, "so-so": 0.5}, lead="Verdict:",
    )  # fmt: skip
    question = Question(GuardSettings.read(spec))
    assert question.verdicts == {"bad": 1.0, "good": 0.0, "so-so": 0.5}
    assert (question.lead, question.suffix[:5]) == ("Verdict:", "#own,")
    turns = question.turns(Exchange("{text}", "{policy}"))
    # Placeholders in a text are not filled in.
    assert question.messages(turns) == [
        {"role": "user", "content": "Bad? Be kind. [{text}] [{policy}]"}
    ]


def test_a_prompt_of_one_s_own_for_a_text_alone() -> None:
    settings = GuardSettings(model="x", prompt="Bad? [{text}]", verdicts={"a": 1, "b": 0})
    question = Question(settings)
    for exchange in (Exchange("", "a text"), Exchange("a text", ""), Exchange("?", "a text")):
        (message,) = question.messages(question.turns(exchange))
        assert message["content"] == "Bad? [a text]"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "model: Field required"),
        ({"model": "x", "colour": "red"}, "colour: unknown"),
        ({"model": "x", "engine_options": {"trust_remote_code": True}}, "engine_options: unknown"),
        ({"model": "x", "prompt": "Is it bad?"}, r"prompt: must contain \{text\}"),
        ({"model": "x", "verdicts": {"a": 2.0, "b": 0}}, "verdicts.a: Input should be less"),
        ({"model": "x", "verdicts": {"a": 1, "b": 1}}, "two verdicts must differ in toxicity"),
        ({"model": "x", "verdicts": {" a": 1, "b": 0}}, "' a' has spaces around it"),
        ({"model": "x", "url": "http://h", "api": "completions"}, "api: unknown"),
        ({"model": 3}, "model: Input should be a valid string"),
    ],
)
def test_a_wrong_file_names_its_field(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        GuardSettings.read(saved(tmp_path / "wrong.json", **values))
    assert "\n" not in str(caught.value)


def test_what_names_no_guard(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"model": ')
    for spec, message in {
        f"{tmp_path}/none.json": "no such file",
        f"{tmp_path}/torn.json": "not a guard",
        "openai-community/gpt2": r"its format is unknown; append # and a format \(llama-guard",
        "openai-community/gpt2#guardian": "unknown format 'guardian'",
        "a\0b.json": "cannot be read",
    }.items():
        with pytest.raises(InputError, match=message):
            load_scorer(f"guard:{spec}")
    with pytest.raises(InputError, match="no place for a policy"):
        Question(GuardSettings(model="Qwen3Guard-Gen", policy="Be kind."))


@pytest.mark.parametrize(
    ("model", "policy", "arguments"),
    [
        ("llama-guard", "", {}),
        ("llama-guard", "Be kind.", {"categories": {"S1": "Be kind."}}),
        ("llama-guard", {"K1": "Be kind."}, {"categories": {"K1": "Be kind."}}),
        ("shieldgemma", {"K1": "Be kind."}, {"guideline": "K1: Be kind."}),
        (
            "granite-guardian-3.3", "Be kind.",
            {"guardian_config": {"custom_criteria": "Be kind."}, "think": False},
        ),
    ],
)  # fmt: skip
def test_where_a_policy_goes(model: str, policy: Any, arguments: dict[str, Any]) -> None:
    question = Question(GuardSettings(model=model, policy=policy))
    assert question.arguments("assistant") == arguments


def test_settings_that_change_scores_change_the_digest() -> None:
    plain = GuardSettings(model="shieldgemma")
    assert plain.digest() == GuardSettings(model="shieldgemma", batch=3).digest() == ""
    changed = [
        GuardSettings(model="shieldgemma", **more)
        for more in ({"policy": "a"}, {"policy": "b"}, {"lead": "x"})
    ]
    assert len({settings.digest() for settings in changed} | {""}) == 4


def test_the_page_has_every_field_and_variable(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "scorers.md").read_text("utf-8")
    section = page.partition("## Guard models")[2].partition("\n## ")[0]
    rows = "\n".join(line.partition(" |")[0] for line in section.splitlines() if line[:1] == "|")
    assert {f for f in GuardSettings.model_fields if f"`{f}`" not in rows} == set()
    assert {name for name in FAMILIES if f"`{name}`" not in section} == set()
    variable = re.compile(r"[A-Z]+_[A-Z_]+(?:KEY|QPS|ENDPOINT|URL)\b")
    sources = Path(guards.__file__).parent.rglob("*.py")
    read_from = {name for path in sources for name in variable.findall(path.read_text("utf-8"))}
    families = [one.family for one in (RemoteGuard, ServedClassifier)]
    read_from |= {f"{family}_{what}" for family in families for what in ("API_KEY", "QPS")}
    read_from.remove("FAMILY_API_KEY")  # stands for those of the families
    assert len(read_from) > 7
    assert {name for name in read_from if f"`{name}`" not in page} == set()
    examples = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    names = []
    for example in examples:
        spec = saved(tmp_path / "a.json", **json.loads(example))
        names.append(Question(GuardSettings.read(spec)).suffix.partition(",")[0])
    assert names == ["#llama-guard", "#own"]

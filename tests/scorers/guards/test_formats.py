from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tide.core.errors import InputError
from tide.scorers import load_scorer
from tide.scorers.guards import formats
from tide.scorers.guards.formats import FORMATS, GuardSettings, known, read
from tide.scorers.guards.remote import RemoteGuard
from tide.scorers.services.self_hosted import ServedClassifier


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("meta-llama/Llama-Guard-3-8B", "llama-guard"),
        ("meta-llama/LlamaGuard-7b", "llama-guard"),
        ("google/shieldgemma-2b", "shieldgemma"),
        ("ibm-granite/granite-guardian-3.1-2b", "granite-guardian"),
        ("ibm-granite/granite-guardian-3.3-8b", "granite-guardian-3.3"),
        ("ibm-granite/granite-guardian-4.1-8b", "granite-guardian-3.3"),
        ("Qwen/Qwen3Guard-Gen-0.6B", "qwen3guard"),
        ("openai-community/gpt2", ""),
    ],
)
def test_a_family_is_known_by_its_name(model: str, form: str) -> None:
    assert known(model) == form
    if form:
        assert GuardSettings(model=model).resolve() == (form, FORMATS[form])


def test_specs() -> None:
    assert read("a/b#shieldgemma") == GuardSettings(model="a/b", format="shieldgemma")
    found = read("a/b#qwen3guard@http://host:8000/v1")
    assert (found.model, found.format, found.url) == ("a/b", "qwen3guard", "http://host:8000/v1")
    assert read("a/b@https://host").url == "https://host"
    assert read("a/b@http://host:8000/v1#qwen3guard") == found
    with pytest.raises(InputError, match="two formats, shieldgemma and qwen3guard; give one"):
        read("a/b#shieldgemma@http://host#qwen3guard")
    for wrong in ("", "#shieldgemma", "@http://host"):
        with pytest.raises(InputError, match="name a model"):
            read(wrong)


def saved(path: Path, **values: Any) -> str:
    path.write_text(json.dumps(values), encoding="utf-8")
    return str(path)


def test_a_file_of_settings(tmp_path: Path) -> None:
    spec = saved(
        tmp_path / "mine.json", model="any/model", prompt="Is it bad? {policy} {text}",
        policy="Be kind.", verdicts={"bad": 1, "good": 0, "so-so": 0.5}, lead="Verdict:",
    )  # fmt: skip
    settings = read(spec)
    name, found = settings.resolve()
    assert name == "own"
    assert found.verdicts == {"bad": 1.0, "good": 0.0, "so-so": 0.5}
    assert found.lead == "Verdict:"
    # Placeholders in a text are not filled in.
    assert settings.ask_about("{policy}{text}") == "Is it bad? Be kind. {policy}{text}"
    saved(tmp_path / "guard.json", format="shieldgemma", policy="Be kind.")
    folder = str(tmp_path)
    assert read(folder) == GuardSettings(model=folder, format="shieldgemma", policy="Be kind.")


@pytest.mark.parametrize(
    "values",
    [
        {"url": "http://127.0.0.1:9"},
        {"model": "another/model"},
    ],
)
def test_a_model_s_folder_sets_no_address(tmp_path: Path, values: Any) -> None:
    saved(tmp_path / "guard.json", format="shieldgemma", **values)
    with pytest.raises(InputError, match=rf"{min(values)}: a model's folder may not set this"):
        read(str(tmp_path))
    given = {"model": "x", "url": "http://h", "format": "shieldgemma", **values}
    assert read(saved(tmp_path / "mine.json", **given)).format == "shieldgemma"


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
        read(saved(tmp_path / "wrong.json", **values))
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
        GuardSettings(model="Qwen3Guard", policy="Be kind.").resolve()


@pytest.mark.parametrize(
    ("model", "policy", "arguments"),
    [
        ("llama-guard", "Be kind.", {"categories": {"S1": "Be kind."}}),
        ("llama-guard", {"K1": "Be kind."}, {"categories": {"K1": "Be kind."}}),
        ("shieldgemma", {"K1": "Be kind."}, {"guideline": "K1: Be kind."}),
        (
            "granite-guardian-3.1", "Be kind.",
            {"guardian_config": {"risk_name": "policy", "risk_definition": "Be kind."}},
        ),
        (
            "granite-guardian-3.3", "Be kind.",
            {"guardian_config": {"custom_criteria": "Be kind."}, "think": False},
        ),
    ],
)  # fmt: skip
def test_where_a_policy_goes(model: str, policy: Any, arguments: dict[str, Any]) -> None:
    _, found = GuardSettings(model=model, policy=policy).resolve()
    assert found.arguments == arguments


def test_settings_that_change_scores_change_the_digest() -> None:
    plain = GuardSettings(model="shieldgemma")
    assert plain.digest() == GuardSettings(model="shieldgemma", batch=3).digest() == ""
    changed = [
        GuardSettings(model="shieldgemma", **more)
        for more in ({"policy": "a"}, {"policy": "b"}, {"role": "assistant"}, {"lead": "x"})
    ]
    assert len({one.digest() for one in changed} | {""}) == 5


def test_the_page_has_every_field_and_variable(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "scorers.md").read_text("utf-8")
    section = page.partition("## Guard models")[2].partition("\n## ")[0]
    rows = "\n".join(line.partition(" |")[0] for line in section.splitlines() if line[:1] == "|")
    assert {f for f in GuardSettings.model_fields if f"`{f}`" not in rows} == set()
    assert {name for name in FORMATS if f"`{name}`" not in section} == set()
    variable = re.compile(r"[A-Z]+_[A-Z_]+(?:KEY|QPS|ENDPOINT|URL)\b")
    sources = Path(formats.__file__).parents[1].rglob("*.py")
    read_from = {name for path in sources for name in variable.findall(path.read_text("utf-8"))}
    families = [one.family for one in (RemoteGuard, ServedClassifier)]
    read_from |= {f"{family}_{what}" for family in families for what in ("API_KEY", "QPS")}
    read_from.remove("FAMILY_API_KEY")  # stands for those of the families
    assert len(read_from) > 7
    assert {name for name in read_from if f"`{name}`" not in page} == set()
    examples = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    names = [read(saved(tmp_path / "a.json", **json.loads(one))).resolve()[0] for one in examples]
    assert names == ["llama-guard", "own"]

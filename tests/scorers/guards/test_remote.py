"""Guards of every family on a server, with good and bad answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scorers.services.stand_ins import GuardServer, Service, running, share
from tide.core.chat import Chat
from tide.core.errors import InputError, ScorerError, ScorerUnavailableError
from tide.scorers import guards, load_scorer
from tide.scorers.base import Exchange, score_texts
from tide.scorers.guards import FAMILIES, RemoteGuard
from tide.scorers.services import ServedClassifier

TEXTS = [f"text number {i}" for i in range(7)]
World = tuple[Service, RemoteGuard, str]


@pytest.fixture(params=FAMILIES)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    family = request.param
    with running(type("Served", (GuardServer,), {"family": family})) as service:
        yield service, RemoteGuard("some-guard", family, service.url), family


def altered(change: Callable[[list[Any]], list[Any]]) -> Any:
    """Change the tokens of each choice."""

    def changed(answer: Any) -> Any:
        for choice in answer["choices"]:
            choice["logprobs"]["content"] = change(choice["logprobs"]["content"])
        return answer

    return lambda number: changed


def test_the_verdicts_of_every_family_are_read(world: World) -> None:
    service, scorer, family = world
    assert scorer.score(TEXTS) == pytest.approx([share(text) for text in TEXTS])
    assert set(service.scored.values()) == {1}
    for request in service.requests:
        body = request["body"]
        assert (body["max_tokens"], body["top_logprobs"]) == (FAMILIES[family].tokens, 20)
        assert ("guardian_config" in body.get("chat_template_kwargs", {})) == ("3.3" in family)
        if family == "wildguard":
            (message,) = body["messages"]
            assert "Human user:\ntext number " in message["content"]


def test_a_server_gets_the_conversation() -> None:
    chat = Chat.of([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "An <|im_end|> old question. " + "long " * 4000},
        {"role": "assistant", "content": "An old answer."},
        {"role": "user", "content": "text number 3?"},
    ])  # fmt: skip
    with running(GuardServer) as service:
        scorer = RemoteGuard("some-guard", "llama-guard", service.url)
        scorer.score([Exchange(chat, "An answer. <|im_end|>")])
        # The oldest question is too long.
        assert service.requests[-1]["body"]["messages"] == [
            {"role": "user", "content": "Be brief."},
            {"role": "assistant", "content": "An old answer."},
            {"role": "user", "content": "text number 3?"},
            {"role": "assistant", "content": "An answer. < |im_end|>"},
        ]
        scorer.score([Exchange(chat, "")])  # the guard judges the question
        messages = service.requests[-1]["body"]["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        assert messages[0]["content"].startswith("Be brief.\n\nAn < |im_end|> old question.")


def test_an_answer_without_a_verdict_is_an_error(world: World) -> None:
    service, scorer, _ = world
    service.answer = altered(lambda tokens: tokens[:-2])
    with pytest.raises(ScorerError, match="instead of a verdict") as caught:
        score_texts(scorer, ["a text"])
    assert "\n" not in str(caught.value)
    other = {"token": "Hello", "top_logprobs": []}
    service.answer = altered(lambda tokens: [token | other for token in tokens])
    with pytest.raises(ScorerError, match=r"'Hello.*' instead of a verdict") as caught:
        score_texts(scorer, ["a text"])
    assert not isinstance(caught.value, ScorerUnavailableError)


def test_a_verdict_without_alternatives_is_no_safer_than_it_may_be(world: World) -> None:
    service, scorer, _ = world
    service.answer = altered(lambda tokens: [token | {"top_logprobs": []} for token in tokens])
    assert (scorer.score(TEXTS) >= [share(text) - 1e-9 for text in TEXTS]).all()


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
    assert scorer.name == f"guard:{model}@host:8000/v1#{family}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("Qwen/Qwen3Guard-Stream-4B", r"its family is unknown; append # and a fam.* \(llama-guard"),
        ("openai-community/gpt2#guardian", "unknown family 'guardian'"),
        ("@http://host#shieldgemma", "name a model"),
    ],
)
def test_a_guard_without_a_family_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_scorer(f"guard:{spec}")


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
    assert len(read_from) > 6
    assert {name for name in read_from if f"`{name}`" not in page} == set()

"""The prompts of guards: golden ones for each family; no text can open a turn.

The guards here have no model, and a byte-level tokenizer with every kind of added token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given

from tests.generated import examples
from tests.hostile import CONTROL_TOKENS, texts_with
from tests.scorers.guards.templates import (
    ABOUT_ANSWER,
    ABOUT_QUESTION,
    ANSWER,
    QUESTION,
    TEMPLATES,
)
from tests.scorers.test_control_tokens import tokenizer
from tide.core.chat import Chat
from tide.core.errors import InputError, ScorerError
from tide.scorers.base import Exchange
from tide.scorers.guards import FAMILIES, LocalGuard, Token


class Guard(LocalGuard):
    """A guard that makes prompts and calls every text safe."""

    def __init__(self, template: str | None, family: str = "llama-guard") -> None:
        self._tokenizer = tokenizer()
        self._tokenizer.chat_template = template
        super().__init__("none", family)

    def _load(self, model: str, device: str, dtype: str) -> Any:
        return SimpleNamespace(get_text_config=SimpleNamespace)

    def _answers(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[Token]]:
        lead = self._family.lead.replace("{judged}", "response")
        safe = next(word for word, weight in self._family.verdicts.items() if weight == 0)
        return [[Token(lead, []), Token(safe, [(safe, 0.0)])] for _ in prompts]

    def prompt(self, exchange: Exchange) -> str:
        self._begun = ""
        return str(self._tokenizer.decode(self._prompt(exchange)))

    def close(self) -> None:
        pass


class Prompted(Guard):
    """A guard with a prompt instead of a chat template."""

    def __init__(self, prompt: str) -> None:
        self._prompted = replace(FAMILIES["llama-guard"], prompt=prompt)
        super().__init__(None)

    def _load(self, model: str, device: str, dtype: str) -> Any:
        self._family = self._prompted
        return super()._load(model, device, dtype)


def family_of(name: str) -> str:
    return name.partition(" ")[0]


def test_every_family_has_a_golden_prompt() -> None:
    assert {family_of(name) for name in TEMPLATES} == set(FAMILIES)
    assert ABOUT_ANSWER.keys() == ABOUT_QUESTION.keys() == TEMPLATES.keys()


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_about_an_answer(name: str) -> None:
    guard = Guard(TEMPLATES[name], family_of(name))
    assert guard.prompt(Exchange(QUESTION, ANSWER)) == ABOUT_ANSWER[name]
    assert guard.prompt(Exchange(Chat.said(QUESTION), ANSWER)) == ABOUT_ANSWER[name]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_about_a_question_has_no_answer(name: str) -> None:
    guard = Guard(TEMPLATES[name], family_of(name))
    prompt = guard.prompt(Exchange(Chat.said(QUESTION), ""))
    assert all(part in prompt for part in ABOUT_QUESTION[name])
    assert "'Agent'" not in prompt
    assert ANSWER not in prompt


LONG = Chat.of([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello, how can I help?"},
    {"role": "user", "content": "I have a knife."},
    {"role": "user", "content": QUESTION},
])  # fmt: skip


def test_turns_alternate_and_begin_with_the_user() -> None:
    family = FAMILIES["llama-guard"]
    assert [(turn["role"], turn["content"]) for turn in family.turns(Exchange(LONG, ANSWER))] == [
        ("user", "Be brief.\n\nHello."),
        ("assistant", "Hello, how can I help?"),
        ("user", f"I have a knife.\n\n{QUESTION}"),
        ("assistant", ANSWER),
    ]
    greeted = Chat.of([
        {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": QUESTION},
    ])  # fmt: skip
    roles = [turn["role"] for turn in family.turns(Exchange(greeted, ANSWER))]
    assert roles == ["user", "assistant", "user", "assistant"]
    # Somebody wrote a text that answers nothing.
    assert family.turns(Exchange("", "a text")) == [{"role": "user", "content": "a text"}]


def test_a_long_context_loses_its_oldest_turns() -> None:
    guard = Guard(TEMPLATES["qwen3guard"], "qwen3guard")
    guard._limit = 230  # tokens, most of which are bytes
    prompt = guard.prompt(Exchange(LONG, ANSWER))
    assert "Be brief." in prompt
    assert f"{QUESTION}\n\nASSISTANT: {ANSWER}" in prompt
    assert "how can I help?" not in prompt
    with pytest.raises(ScorerError, match="a text of 400 characters is too long for the context"):
        guard.prompt(Exchange(LONG, "long" * 100))
    with pytest.raises(ScorerError, match="too long for the context of 230 tokens"):
        guard.prompt(Exchange("the beginning of a prompt is judged as well " * 10, ""))


TEXT = "{{ messages[-1]['content'] }}"
TEXTS = {
    "plain": f"<s><|user|>{TEXT}<|guard|>",
    # Some templates leave out the thoughts of earlier turns.
    "cuts": "<|im_start|>{{ messages[-1]['content'].split('</think>')[-1] }}<|im_end|><think>",
    "repeats": f"<|user|>{TEXT}<|im_end|>Again: {TEXT}<|guard|>",
    "no strings": "{% if messages[-1]['content'] is string %}{{ raise_exception('a string') }}"
    "{% endif %}<|user|>{{ messages[-1]['content'][0]['text'] }}<|guard|>",
}
GUARDS = {
    **{name: Guard(template) for name, template in TEXTS.items()},
    "own prompt": Prompted("<|user|>Is it rude? {context}{text}<|guard|>"),
}
CONTROL = {GUARDS["plain"]._tokenizer.convert_tokens_to_ids(token) for token in CONTROL_TOKENS}


@pytest.mark.parametrize("kind", GUARDS)
@given(text=texts_with(CONTROL_TOKENS))
@examples(40, 2000)
def test_a_text_is_read_whole_and_opens_no_turn(kind: str, text: str) -> None:
    guard = GUARDS[kind]
    exchange = Exchange("A question?", text) if text else Exchange("", "")
    ids, plain = guard._prompt(exchange), guard._prompt(Exchange("A question?", "the weather"))
    assert [i for i in ids if i in CONTROL] == [i for i in plain if i in CONTROL]
    if text.strip():
        read = guard._tokenizer.decode(ids).replace(" ", "")
        expected = guard._tokenizer.decode(plain).replace("the weather", text.strip())
        assert read == expected.replace(" ", "")


def test_a_text_that_completes_a_control_token_of_the_prompt_is_refused() -> None:
    guard = Prompted("<|user|><{context}{text}<|guard|>")
    assert guard.score([Exchange("", "s, people are rude")]) == [0.0]
    with pytest.raises(ScorerError, match="control tokens of the guard that cannot be read"):
        guard.score([Exchange("", "the weather"), Exchange("", "/s>")])


@pytest.mark.parametrize(
    "template",
    [
        "<|user|>{{ messages[-1]['content'] | upper }}<|guard|>",
        "<|user|>{{ messages[-1]['content'] | replace('\\n', ' ') }}<|guard|>",
        "<|user|>{{ messages[-1]['content'][:4] }}<|guard|>",
        f"<|user|>{TEXT}{TEXT[:-3]} | lower }}}}<|guard|>",
        "<|user|>{{ messages[0]['content'] }}<|guard|>",
    ],
)
def test_a_template_that_changes_the_text_is_refused(template: str) -> None:
    with pytest.raises(InputError, match="its chat template leaves out or rewrites the text"):
        Guard(template)

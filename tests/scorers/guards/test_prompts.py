"""Prompts of guards in this process hold each text unchanged, and no text can open a turn.

The guard has no model, and a byte-level tokenizer with every kind of added token.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given

from tests.generated import examples
from tests.hostile import CONTROL_TOKENS, texts_with
from tests.scorers.test_control_tokens import tokenizer
from tide.core.errors import InputError, ScorerError
from tide.scorers.guards.formats import GuardSettings
from tide.scorers.guards.local import LocalGuard
from tide.scorers.guards.verdicts import Place

TEXT = "{{ messages[-1]['content'] }}"
TEMPLATES = {
    "plain": f"<s><|user|>{TEXT}<|guard|>",
    "strips": "<start_of_turn>user\n{{ messages[-1]['content'] | trim }}<end_of_turn>\n",
    # Some templates leave out the thoughts of earlier turns.
    "cuts": "<|im_start|>{{ messages[-1]['content'].split('</think>')[-1] }}<|im_end|><think>",
    "repeats": f"<|user|>{TEXT}<|im_end|>Again: {TEXT}<|guard|>",
    # Reads content as a list of parts, like the template of Llama Guard 3 1B.
    "parts": "<|user|>{% for part in messages[-1]['content'] %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %}<|guard|>",
    "no strings": "{% if messages[-1]['content'] is string %}{{ raise_exception('a string') }}"
    "{% endif %}<|user|>{{ messages[-1]['content'][0]['text'] }}<|guard|>",
}


class Guard(LocalGuard):
    """A guard that makes prompts and calls every text safe."""

    def __init__(self, template: str | None, **settings: Any) -> None:
        self._tokenizer = tokenizer()
        self._tokenizer.chat_template = template
        super().__init__(GuardSettings(model="none", format="llama-guard", **settings))

    def _load(self) -> Any:
        return SimpleNamespace(get_text_config=SimpleNamespace)

    def _answers(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[Place]]:
        return [[Place("safe", [("safe", 0.0)])] for _ in prompts]

    def close(self) -> None:
        pass


GUARDS = {
    **{name: Guard(template) for name, template in TEMPLATES.items()},
    "assistant": Guard(TEMPLATES["cuts"], role="assistant"),
    "own prompt": Guard(None, prompt="<|user|>Is it rude? {text}<|guard|>"),
}
CONTROL = {GUARDS["plain"]._tokenizer.convert_tokens_to_ids(one) for one in CONTROL_TOKENS}


@pytest.mark.parametrize("kind", GUARDS)
@given(text=texts_with(CONTROL_TOKENS))
@examples(60, 2000)
def test_a_text_is_read_word_for_word_and_opens_no_turn(kind: str, text: str) -> None:
    guard = GUARDS[kind]
    ids, plain = guard._prompt(text), guard._prompt("the weather")
    assert [i for i in ids if i in CONTROL] == [i for i in plain if i in CONTROL]
    read = guard._tokenizer.decode(ids)
    said = text.strip() if kind == "strips" else text
    assert read == guard._tokenizer.decode(plain).replace("the weather", said)


def test_a_text_that_completes_a_control_token_of_the_prompt_is_refused() -> None:
    guard = Guard(None, prompt="<|user|><{text}<|guard|>")
    assert guard.score(["s, people are rude"]) == [0.0]
    with pytest.raises(ScorerError, match="control tokens of the guard that cannot be read"):
        guard.score(["the weather", "/s>"])


@pytest.mark.parametrize(
    "template",
    [
        "<|user|>{{ messages[-1]['content'] | upper }}<|guard|>",
        "<|user|>{{ messages[-1]['content'] | e }}<|guard|>",
        "<|user|>{{ messages[-1]['content'] | tojson }}<|guard|>",
        "<|user|>{{ messages[-1]['content'] | replace('\\n', ' ') }}<|guard|>",
        "<|user|>{{ messages[-1]['content'][:4] }}<|guard|>",
        f"<|user|>{TEXT}{TEXT[:-3]} | lower }}}}<|guard|>",
        "<|user|>Hello<|guard|>",
        "<|user|>{% for part in messages[-1]['content'] %}{{ part['text'] | upper }}{% endfor %}",
    ],
)
def test_a_template_that_changes_the_text_is_refused(template: str) -> None:
    with pytest.raises(InputError, match="its chat template leaves out or rewrites the text"):
        Guard(template)

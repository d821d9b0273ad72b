"""The prompts of guards: what each family's chat template is given; no text can open a turn.

The guards here have no model, and a byte-level tokenizer with every kind of added token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FakeEngine, FakeScorer
from tests.generated import examples
from tests.hostile import CONTROL_TOKENS, texts_with
from tests.scorers.test_control_tokens import tokenizer
from tide.core.chat import Chat
from tide.core.errors import InputError, PromptRefusedError, ScorerError
from tide.detoxifier.sync import Detoxifier
from tide.scorers import guards
from tide.scorers.base import Exchange
from tide.scorers.guards import FAMILIES, LocalGuard, Token, cut_context

QUESTION, ANSWER = "How do I sharpen a knife?", "On a wet stone."
ASKED = f"user: {QUESTION}\n"
ANSWERED = f"{ASKED}assistant: {ANSWER}\n"
# Shows the messages, and the variables that a family's template may read.
TEMPLATE = (
    "{% for said in messages %}{{ said['role'] }}: {{ said['content'] }}\n{% endfor %}"
    "{{ (guideline or '')[:44] }} {{ (guardian_config or {})['criteria_id'] }} {{ think }}"
    "{{ ' begun' if add_generation_prompt }}"
)
_SHIELD = '"No Harm": The {}  '
_GRANITE = f"user: {FAMILIES['granite-guardian-4'].question}\n   begun"
_WILD = FAMILIES["wildguard"].prompt
# By family: the prompts about an answer and about a question.
PROMPTS = {
    "llama-guard": (f"{ANSWERED}  ", f"{ASKED}  "),
    "shieldgemma": (
        ANSWERED + _SHIELD.format("chatbot shall not generate co"),
        ASKED + _SHIELD.format("prompt shall not contain or s"),
    ),
    "granite-guardian-3.3": (f"{ANSWERED} harm False begun", f"{ASKED} harm False begun"),
    "granite-guardian-4": (
        ANSWERED + _GRANITE.format(role="assistant"),
        ASKED + _GRANITE.format(role="user"),
    ),
    "qwen3guard": (f"{ANSWERED}  ", f"{ASKED}  "),
    "wildguard": (
        _WILD.format(context=QUESTION, text=ANSWER),
        _WILD.format(context=QUESTION, text=""),
    ),
}


class Guard(LocalGuard):
    """A guard that makes prompts and calls every text safe.

    whole: a prompt of the family instead of a chat template.
    """

    def __init__(
        self, template: str | None, family: str = "llama-guard", *, whole: str = ""
    ) -> None:
        self._whole = whole
        self._tokenizer = tokenizer()
        self._tokenizer.chat_template = template
        super().__init__("none", family)

    def _load(self, model: str) -> Any:
        if self._whole:
            self._family = replace(self._family, prompt=self._whole)
        return SimpleNamespace(get_text_config=SimpleNamespace)

    def _answers(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[Token]]:
        lead = self._family.lead.replace("{judged}", "response")
        safe = next(word for word, weight in self._family.verdicts.items() if weight == 0)
        return [[Token(lead, []), Token(safe, [(safe, 0.0)])] for _ in prompts]

    def prompt(self, exchange: Exchange) -> str:
        self._begun = ""
        return str(self._tokenizer.decode(self._prompt(exchange)))


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_a_family(family: str) -> None:
    guard = Guard(None if FAMILIES[family].prompt else TEMPLATE, family)
    about_answer, about_question = PROMPTS[family]
    assert guard.prompt(Exchange(QUESTION, ANSWER)) == about_answer
    assert guard.prompt(Exchange(Chat.said(QUESTION), ANSWER)) == about_answer
    assert guard.prompt(Exchange(Chat.said(QUESTION), "")) == about_question


def test_wording_of_families_is_as_published() -> None:
    """The models were trained with these words; check a change against the model cards."""
    table = Path(guards.__file__).with_suffix(".toml").read_bytes()
    assert hashlib.sha256(table).hexdigest()[:8] == "e071328a"


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
    one_turn = FAMILIES["shieldgemma"].turns(Exchange(greeted, ANSWER))
    assert [turn["content"] for turn in one_turn] == [f"Hello!\n\n{QUESTION}", ANSWER]
    # Somebody wrote a text that answers nothing.
    assert family.turns(Exchange("", "a text")) == [{"role": "user", "content": "a text"}]


def test_guards_judge_the_user_although_the_client_has_begun_the_answer() -> None:
    """A guard judges the last message, which is then the client's beginning of the answer."""
    family = FAMILIES["llama-guard"]
    asked = {"role": "user", "content": "a rude question"}

    def judge(exchange: Exchange) -> float:
        return 0.9 if "rude" in family.turns(exchange)[-1]["content"] else 0.1

    scorer = FakeScorer(judge, reads="exchange")
    detox = Detoxifier(FakeEngine("Yes it is"), scorer=scorer, refuse_prompt_above=0.5)
    for begun in ([], ["Sure"], [""], ["", "Sure"]):
        messages = [asked, *({"role": "assistant", "content": text} for text in begun)]
        with pytest.raises(PromptRefusedError):
            detox(Chat.of(messages, for_server=True))


def test_placeholders_in_a_text_are_not_filled_in() -> None:
    family = replace(FAMILIES["wildguard"], prompt="Bad? [{context}] [{text}]")
    (message,) = family.messages(family.turns(Exchange("{text}", "{role}")))
    assert message["content"] == "Bad? [{text}] [{role}]"


def test_a_long_context_loses_its_oldest_turns() -> None:
    guard = Guard(TEMPLATE, "qwen3guard")
    guard._limit = 110  # tokens, most of which are bytes
    prompt = guard.prompt(Exchange(LONG, ANSWER))
    assert "Be brief." in prompt
    assert f"{QUESTION}\nassistant: {ANSWER}" in prompt
    assert "how can I help?" not in prompt
    with pytest.raises(ScorerError, match="a text of 400 characters is too long for the context"):
        guard.prompt(Exchange(LONG, "long" * 100))
    with pytest.raises(ScorerError, match="too long for the context of 110 tokens"):
        guard.prompt(Exchange("the beginning of a prompt is judged as well " * 10, ""))


def words(context: str | Chat) -> int:
    """The length of a context as a model with special tokens around messages would count it."""
    if isinstance(context, str):
        return len(context)
    return 2 + sum(3 + len(message.content) for message in context.messages)


def cut(context: Any, limit: int) -> Any:
    return cut_context(context, lambda shorter: words(shorter) <= limit)


def test_chat_loses_its_oldest_messages_and_then_the_beginning_of_the_last() -> None:
    contents = {
        words(LONG) - 1: ["Be brief.", "Hello, how can I help?", "I have a knife.", QUESTION],
        45: ["Be brief.", QUESTION],
        40: [QUESTION],
        25: [QUESTION[-20:]],
    }
    for limit, expected in contents.items():
        assert [message.content for message in cut(LONG, limit).messages] == expected


contents = st.text(st.sampled_from("ab \n\u00e9"), max_size=20).map("{}b".format)
turns = st.tuples(st.sampled_from(["system", "user", "assistant"]), contents)


def conversation(before: list[tuple[str, str]], last: str) -> Chat:
    said = [*before, ("user", last)]
    return Chat.of([{"role": role, "content": content} for role, content in said])


chats = st.builds(conversation, st.lists(turns, max_size=8), contents)


@examples(30, 2000)
@given(chats | st.text(), st.integers(0, 200))
def test_cut_context_fits_and_ends_like_the_context(context: str | Chat, limit: int) -> None:
    shorter = cut(context, limit)
    if isinstance(context, str):
        assert context.endswith(shorter)
        assert len(shorter) == min(limit, len(context))
        return
    last = context.messages[-1].content.rstrip()
    left = shorter.messages[-1].content.rstrip()
    assert last.endswith(left)
    assert left or not last
    if limit >= 6:  # at the least, a character of the last message stays
        assert words(shorter) <= limit


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
    "own prompt": Guard(None, whole="<|user|>Is it rude? {context}{text}<|guard|>"),
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
    guard = Guard(None, whole="<|user|><{context}{text}<|guard|>")
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

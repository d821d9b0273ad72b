"""The context of an exchange, cut to what a scorer can read."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.core.chat import Chat
from tide.scorers.guards import cut_context


def words(context: str | Chat) -> int:
    """The length of a context as a model with special tokens around messages would count it."""
    if isinstance(context, str):
        return len(context)
    return 2 + sum(3 + len(message.content) for message in context.messages)


def cut(context: Any, limit: int) -> Any:
    return cut_context(context, lambda shorter: words(shorter) <= limit)


def chat(*messages: tuple[str, str]) -> Chat:
    return Chat.of([{"role": role, "content": content} for role, content in messages])


def contents(chat: Chat) -> list[str]:
    return [message.content for message in chat.messages]


LONG = chat(
    ("system", "be brief"),
    ("user", "first question"),
    ("assistant", "first answer"),
    ("user", "second question"),
    ("assistant", "second answer"),
    ("user", "third question"),
)


def test_chat_loses_oldest_messages_and_keeps_system_message() -> None:
    assert contents(cut(LONG, words(LONG) - 1)) == [
        "be brief",
        "first answer",
        "second question",
        "second answer",
        "third question",
    ]
    assert contents(cut(LONG, 40)) == ["be brief", "third question"]


def test_last_message_loses_its_beginning() -> None:
    long = chat(("system", "be brief"), ("user", "a much longer question about rain"))
    assert contents(cut(long, 40)) == ["a much longer question about rain"]
    assert contents(cut(long, 30)) == ["onger question about rain"]


roles = st.sampled_from(["system", "user", "assistant", "tool"])
contents_of = st.text(st.sampled_from("ab \n\u00e9"), max_size=20)


@st.composite
def chats(draw: st.DrawFn) -> Chat:
    messages = []
    for role in [*draw(st.lists(roles, max_size=8)), "user"]:
        content = draw(contents_of)
        more: dict[str, Any] = {"tool_call_id": "1"} if role == "tool" else {}
        if role == "user":
            content += draw(st.sampled_from("ab"))
        messages.append({"role": role, "content": content, **more})
    return Chat.of(messages)


@examples(30, 2000)
@given(chats() | st.text(), st.integers(0, 200))
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

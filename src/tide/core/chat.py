"""Chats: messages as a model's chat template writes them, and where in that text the user speaks.

    detox.chat([{"role": "user", "content": "Tell me about your neighbours."}])

A search moves what the user said last, and nothing else unless asked: the template's role markers,
the system prompt and all earlier messages stay as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tide.core.errors import InputError, guarded
from tide.core.sanitize import half_character
from tide.core.validation import problem

if TYPE_CHECKING:
    from typing_extensions import Self

# Without a meaning in any text: stands for the users' words while a template is looked at.
_MARK = "\ue000"
_THOUGHTS = ("reasoning_content", "reasoning")


class Message(BaseModel):
    """What one side said. Users say something; the others may be silent.

    The thoughts of an assistant (`reasoning_content`, `reasoning`) are taken and left out, as
    templates leave them out of earlier turns.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str

    @model_validator(mode="before")
    @classmethod
    def _without_thoughts(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("role") == "assistant":
            return {name: value for name, value in values.items() if name not in _THOUGHTS}
        return values

    @field_validator("content")
    @classmethod
    def _is_whole(cls, content: str) -> str:
        if (place := half_character(content)) is not None:
            raise ValueError(f"no text: half a character (a surrogate) at {place}")
        return content


class Chat(BaseModel):
    """A conversation whose last message is from the user. Usable wherever a prompt is.

    Hashable; equal to any chat with the same messages.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    messages: tuple[Message, ...] = Field(min_length=1, strict=False)

    @field_validator("messages")
    @classmethod
    def _a_user_is_answered(cls, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        if messages[-1].role != "user":
            raise ValueError(f"the last one must be of the role user, not {messages[-1].role}")
        for number, message in enumerate(messages):
            if message.role == "user" and not message.content.strip():
                raise ValueError(f"number {number}, of a user, is empty")
        return messages

    @classmethod
    def of(cls, messages: Any) -> Self:
        """From `[{"role": "user", "content": "..."}, ...]`. Raises InputError (one line)."""
        if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
            found = type(messages).__name__
            raise InputError(
                f'messages: expected a list of {{"role": ..., "content": ...}}, got {found}'
            )
        try:
            return cls(messages=tuple(messages))
        except ValidationError as error:
            raise InputError(problem(error)) from None

    @classmethod
    def said(cls, content: str) -> Self:
        """A chat that a user begins with these words."""
        return cls.of([{"role": "user", "content": content}])

    def dump(self) -> list[dict[str, str]]:
        """As `of` takes them."""
        return [message.model_dump() for message in self.messages]


class Rendered(str):
    """The text that a template made of a chat. It is complete: no tokens are put around it.

    spans: where in it what users said begins and ends, in order.
    """

    __slots__ = ("spans",)
    spans: tuple[tuple[int, int], ...]

    def __new__(cls, text: str, spans: tuple[tuple[int, int], ...] = ()) -> Self:
        made = super().__new__(cls, text)
        made.spans = spans
        return made

    def spans_of(self, tokens: Iterable[tuple[int, int]]) -> list[int]:
        """The number of the span that holds each token, counted from the last, which is 0.

        -1 where none holds all of it. tokens: from where to where each stands.
        """
        begins, found = [begin for begin, _ in self.spans], []
        for begin, end in tokens:
            span = bisect_right(begins, begin)
            within = span > 0 and begin < end <= self.spans[span - 1][1]
            found.append(len(begins) - span if within else -1)
        return found


def render(chat: Chat, template: Callable[[list[dict[str, str]]], str], model: str) -> Rendered:
    """`chat` as `template` writes it, with the place of each user's words.

    The template is also given the same chat with marks in place of these words, which shows what it
    puts around them. It may strip them. model: its name, for messages.
    Raises InputError for a template that fails, and for one that leaves a user's words out, repeats
    or rewrites them.
    """
    messages = chat.dump()
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    mark = _MARK
    while any(mark in message["content"] for message in messages):
        mark += _MARK
    marks = {i: f"{mark}{i}{mark}" for i in users}
    marked = [m | {"content": marks.get(i, m["content"])} for i, m in enumerate(messages)]
    with guarded(InputError, f"messages: the chat template of {model} refuses them"):
        text, frame = template(messages), template(marked)
    place, spans = 0, []
    for i in users:
        before, found, frame = frame.partition(marks[i])
        begin = place + len(before)
        if not found or marks[i] in frame or not text.startswith(before, place):
            raise _lost(model, i)
        content = messages[i]["content"]
        # What follows decides between a template that strips and one that does not.
        after = frame.partition(mark)[0]
        for said in (content, content.strip(), content.rstrip(), content.lstrip()):
            if text.startswith(said + after, begin):
                break
        else:
            raise _lost(model, i)
        place = begin + len(said)
        spans.append((begin, place))
    if text[place:] != frame:
        raise _lost(model, users[-1])
    return Rendered(text, tuple(spans))


def _lost(model: str, number: int) -> InputError:
    return InputError(
        f"messages: the chat template of {model} leaves out, repeats or rewrites what the user "
        f"says in number {number}"
    )

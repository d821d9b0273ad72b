"""What a server of completions answers; anything else is refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from tide.core.http import Rows
from tide.engines.remote.protocol import NEUTRAL

_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Text = Annotated[str, Field(max_length=1_000_000)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]

# What a server may do by itself, switched off. `repeat_penalty` is llama.cpp's name.
OFF = {**NEUTRAL, "top_p": 1.0, "top_k": 0, "min_tokens": 0, "repeat_penalty": 1.0}


class _Part(BaseModel):
    index: Literal[0]
    finish_reason: Annotated[str | None, Field(max_length=100)] = None

    @property
    def said(self) -> str:
        """What was written next."""
        raise NotImplementedError


class TextPart(_Part):
    """LocalAI leaves out an empty text, and Azure that of an event with a filter's results."""

    text: _Text = ""
    delta: None = None  # a chat's, whose text would be lost

    @property
    def said(self) -> str:
        return self.text


class _Delta(BaseModel):
    content: _Text | None = None


class ChatPart(_Part):
    delta: _Delta | None = None  # Azure's events with a filter's results have none
    text: Literal[""] | None = None  # a completion's

    @property
    def said(self) -> str:
        return (self.delta and self.delta.content) or ""


# Without a choice an event tells what was used, or what a filter found in the prompt.
_NO_CHOICE = BeforeValidator(lambda choices: [] if choices is None else choices)


class TextEvent(BaseModel):
    """The next of a completion."""

    choices: Annotated[list[TextPart], Field(max_length=1), _NO_CHOICE]


class ChatEvent(BaseModel):
    choices: Annotated[list[ChatPart], Field(max_length=1), _NO_CHOICE]


class Served(BaseModel):
    id: _Name
    max_model_len: int | None = Field(default=None, gt=1, le=10**9)


class ServedModels(BaseModel):
    data: Rows[Served] = Field(min_length=1, max_length=10_000)


class Tokens(BaseModel):
    tokens: Rows[TokenId] = Field(max_length=100_000)


class Detokenized(BaseModel):
    """vLLM says `prompt`, llama.cpp `content`, llama-cpp-python `text`."""

    prompt: _Text | None = None
    content: _Text | None = None
    text: _Text | None = None

    @property
    def said(self) -> str | None:
        return next(
            (one for one in (self.prompt, self.content, self.text) if one is not None), None
        )

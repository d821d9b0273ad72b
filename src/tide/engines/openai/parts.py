"""Parts of a server's answer to a chat beside its text: reasoning, and calls of tools.

vLLM, llama.cpp, Ollama and others stream calls in parts that differ in their indexes and ids.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from tide.core.chat import Parts, ToolCall
from tide.core.http import ServerFailed
from tide.core.text import Thoughts
from tide.engines.openai.words import words_of

_MOST_CALLS = 128
_Name = Annotated[str, Field(max_length=1000)]
_Text = Annotated[str, Field(max_length=1_000_000)]


class _Function(BaseModel):
    name: _Name | None = None
    arguments: _Text | None = None


class CallDelta(BaseModel):
    """The next piece of a tool call. index, id: identify the call; either may be missing."""

    index: int | None = None
    id: _Name | None = None
    function: _Function = _Function()


class Delta(BaseModel):
    """The next of an answer. Reasoning has two names; a server that sends both repeats it."""

    content: _Text | None = None
    reasoning_content: _Text | None = None
    reasoning: _Text | None = None
    tool_calls: Annotated[list[CallDelta], Field(max_length=_MOST_CALLS)] | None = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def size(self) -> int:
        """Characters beside the text."""
        functions = [one.function for one in self.tool_calls or ()]
        calls = sum(len(one.name or "") + len(one.arguments or "") for one in functions)
        return len(self.thought) + calls


class Aside:
    """Assembles the parts of an answer beside its text.

    inline: whether reasoning that the text begins with is told from it.
    """

    def __init__(self, *, inline: bool) -> None:
        self._reasoning = ""
        self._calls: list[CallDelta] = []
        self._thoughts = Thoughts() if inline else None

    def add(self, delta: Delta) -> None:
        """Raises ServerFailed for a part without a call, and for too many calls."""
        self._reasoning += delta.thought
        for new in delta.tool_calls or ():
            call = self._call_of(new)
            if call is None:
                if len(self._calls) == _MOST_CALLS:
                    raise ServerFailed(f"called more than {_MOST_CALLS} tools")
                self._calls.append(new.model_copy(deep=True))
                continue
            call.id = call.id or new.id
            own, more = call.function, new.function
            own.name = own.name or more.name
            own.arguments = (own.arguments or "") + (more.arguments or "")

    def text(self, said: str) -> str:
        """The part of the next text that is known to be no reasoning."""
        return said if self._thoughts is None else self._thoughts.add(said)

    def end(self) -> str:
        """No more text comes; the rest of it."""
        return "" if self._thoughts is None else self._thoughts.end()

    @property
    def parts(self) -> Parts:
        """Raises ServerFailed for a call without a name."""
        calls = []
        for one in self._calls:
            if not one.function.name:
                raise ServerFailed("called a tool without a name")
            said = one.function.arguments or ""
            calls.append(ToolCall(id=one.id or "", name=one.function.name, arguments=said))
        reasoning = self._reasoning + ("" if self._thoughts is None else self._thoughts.said)
        texts = [reasoning, *(text for one in calls for text in (one.name, one.arguments))]
        tokens = sum(len(words_of(text)) for text in texts)
        return Parts(reasoning=reasoning, tool_calls=tuple(calls), num_tokens=tokens)

    def _call_of(self, new: CallDelta) -> CallDelta | None:
        """The call that `new` continues; None if it begins one.

        Ollama leaves out the index, or has the same for all; older versions of vLLM and SGLang as
        well. Another id is another call, and so is another name without an index.
        """
        alike = [one for one in self._calls if one.index == new.index]
        if not alike:
            return None
        last = alike[-1]
        if new.id and last.id and new.id != last.id:
            return None
        if new.index is None and new.function.name and not (new.id and new.id == last.id):
            return None
        return last

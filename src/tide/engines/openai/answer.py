"""What is written for one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tide.core.chat import Chat
from tide.core.errors import CompletionError
from tide.core.seeds import derive_seed
from tide.engines.base import FinishReason, Piece, Request
from tide.engines.openai.abilities import Abilities
from tide.engines.openai.held import same_word
from tide.engines.openai.words import id_of, text_of, word_of

# Where what is held back comes nevertheless, so many tokens are drawn there, each time hotter.
_DRAWN, _WARMER, _HOTTEST, _REDRAWS = 6, 0.3, 2.0, 8


class Held(Exception):
    """What is held back came: a banned word, or the end before `min_new_tokens`.

    reason: why the answer ends there if nothing else can be drawn.
    """

    def __init__(self, reason: FinishReason) -> None:
        super().__init__(reason)
        self.reason = reason


class StreamedAnswer:
    """What is written for one request, by one server or by several after each other.

    words: what was written, and given out, but for a chat that the server cannot go on with: that
    is given out as a whole. held: words that are not to be. left: tokens that may still be written.
    reason: why it has ended.
    """

    def __init__(self, request: Request, put: Callable[[Piece], None]) -> None:
        self.words: list[str] = []
        self.held = [text_of((one,)) for one in request.banned_token_ids]
        self.reason: FinishReason | None = None
        self._never = {same_word(word) for word in self.held}
        self._request, self._put = request, put
        self._redraws = self._drawn = 0
        self._whole = False

    @property
    def least(self) -> int:
        """Tokens that are still to be written before the text may end."""
        written = 0 if self._whole else len(self.words)
        return max(0, self._request.sampling.min_new_tokens - written)

    @property
    def left(self) -> int:
        most = self._request.sampling.max_new_tokens - len(self.words)
        return min(most, _DRAWN) if self._drawn and not self._whole else most

    def body(self, abilities: Abilities) -> dict[str, Any]:
        """What a server is sent to write on."""
        assert isinstance(self._request.prompt, Sequence)
        first, *rest = (word_of(one) for one in self._request.prompt)
        if not isinstance(first, Chat):
            text = "".join(map(str, (first, *rest, *self.words)))
            return self._sampling(abilities) | {"prompt": text}
        if self._whole:
            self.words.clear()
        messages, written = first.dump(), "".join(map(str, (*rest, *self.words)))
        if not written:
            self._whole = abilities.continued is None
            return self._sampling(abilities) | {"messages": messages}
        if abilities.continued is None:
            raise CompletionError("the server does not go on with an answer to a chat")
        messages.append({"role": "assistant", "content": written})
        return self._sampling(abilities) | {"messages": messages, **abilities.continued}

    def _sampling(self, abilities: Abilities) -> dict[str, Any]:
        sampling, seed = self._request.sampling, self._request.seed
        place = len(self.words), self._redraws
        heat = max(0.5, sampling.temperature) + _WARMER * self._drawn
        body = {
            **abilities.off,
            "model": abilities.model,
            "max_tokens": self.left,
            "temperature": min(_HOTTEST, heat) if self._drawn else sampling.temperature,
            # By the place, so that it does not matter which servers failed. Few take more bits.
            "seed": (derive_seed(seed, *place) if any(place) else seed) % 2**31,
            "stream": True,
        }
        if sampling.top_p < 1:  # some servers refuse 1, which `off` has for those that take it
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if self.least:
            # Without stop strings, which a server does not tell from an end; the text is cut later.
            if "min_tokens" in abilities.off:
                body["min_tokens"] = min(self.least, self.left)
        elif sampling.stop:
            body["stop"] = list(sampling.stop)
        return body

    def take(self, words: Sequence[str]) -> None:
        """Give out words. Raises Held before a banned one."""
        for word in words:
            if same_word(word) in self._never:
                raise Held("length")
            self.words.append(word)
            if not self._whole:
                self._put(Piece((id_of(word),)))

    def end(self, words: Sequence[str], reason: FinishReason) -> None:
        """The server wrote these last. Raises Held where that is too early."""
        drawn = bool(self._drawn) and reason == "length" and not self._whole
        if drawn and len(self.words) + len(words) < self._request.sampling.max_new_tokens:
            # The last word may be half a word, and is written again; but something stays.
            self.take(words if len(words) == 1 else words[:-1])
            self._drawn = 0
            return
        self.take(words)
        if reason == "stop" and len(self.words) < self._request.sampling.min_new_tokens:
            raise Held("stop")
        self._finish(reason)

    def draw_again(self, wrote: bool, reason: FinishReason) -> None:
        """The next tokens are drawn hotter. wrote: something stood before what was held back."""
        self._redraws = 1 if wrote and not self._whole else self._redraws + 1
        if self._redraws > _REDRAWS:
            self._finish(reason)  # it breaks off there
            return
        self._drawn = self._redraws

    def _finish(self, reason: FinishReason) -> None:
        self.reason = reason
        self._put(Piece(tuple(map(id_of, self.words)) if self._whole else (), reason))

"""An engine without a model: completions from a function, for tests and for trying a strategy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tide.core.chat import Chat, Rendered, render
from tide.core.seeds import derive_seed
from tide.engines.base import Closable, Completion, EmbeddedPrompt, Samplings, check_rows


class ScriptedEngine(Closable):
    """Writes `respond(embeddings, seed)` for each matrix, one by one, so a batch changes nothing.

    respond: takes a float32 matrix (T, dim) and the sampling seed, returns the text. Words are
    tokens; each word has one fixed random embedding. `calls` lists the batch sizes of all calls.
    What `respond` returns is cut before a stop string; of its length and words it alone decides.
    """

    honours: ClassVar = {"stop"}

    def __init__(
        self,
        respond: Callable[[Tensor, int], str],
        *,
        dim: int = 8,
        context_length: int | None = 128,
        max_batch: int = 16,
    ) -> None:
        self.name = "scripted"
        self.dim = dim
        self.dtype = torch.float32
        self.context_length = context_length
        self.max_batch = max_batch
        self.calls: list[int] = []
        self._respond = respond
        self._words: list[str] = []

    def tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        return [[self._id(word) for word in prompt.split()] for prompt in prompts]

    def embed(self, prompts: Sequence[str]) -> list[EmbeddedPrompt]:
        embedded = []
        for prompt, ids in zip(prompts, self.tokenize(prompts), strict=True):
            rows = torch.stack([self._row(i) for i in ids])
            special, said = torch.zeros(len(ids), dtype=torch.bool), None
            if isinstance(prompt, Rendered):
                words = (word.span() for word in re.finditer(r"\S+", prompt))
                spans = torch.tensor(prompt.spans_of(words))
                special, said = spans != 0, spans >= 0
            embedded.append(EmbeddedPrompt(str(prompt), tuple(ids), rows, special, said))
        return embedded

    def render(self, chat: Chat) -> Rendered:
        """As `ROLE: CONTENT`, a line each, and the role of who speaks next."""

        def template(messages: list[dict[str, str]]) -> str:
            lines = [f"{message['role']}: {message['content']}" for message in messages]
            return "\n".join([*lines, "assistant:"])

        return render(chat, template, self.name)

    def complete(
        self, embeddings: Sequence[Tensor], sampling: Samplings, seeds: Sequence[int]
    ) -> list[Completion]:
        samplings = check_rows(self, embeddings, sampling)
        self.calls.append(len(embeddings))
        completions = []
        for x, seed, own in zip(embeddings, seeds, samplings, strict=True):
            text = self._respond(x, seed)
            end = own.stop_in(text)
            ids = tuple(self._id(word) for word in text[:end].split())
            completions.append(Completion(text[:end], ids, "length" if end is None else "stop"))
        return completions

    def embed_tokens(self, token_ids: Sequence[int]) -> Tensor:
        return torch.stack([self._row(i) for i in token_ids])

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(f" {self._words[i]}" for i in ids) for ids in rows]

    def likelihood(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        return -np.array([float(len(completion)) for completion in completions])

    def decode_nearest(self, embeddings: Tensor) -> list[int]:
        table = torch.nn.functional.normalize(
            torch.stack([self._row(i) for i in range(len(self._words))]), dim=-1
        )
        rows = torch.nn.functional.normalize(embeddings, dim=-1)
        return list((rows @ table.T).argmax(dim=-1).tolist())

    def verify(self) -> None:
        pass

    def _id(self, word: str) -> int:
        if word not in self._words:
            self._words.append(word)
        return self._words.index(word)

    def _row(self, token_id: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed("word", self._words[token_id]))
        return torch.randn(self.dim, generator=generator)

"""Base class of engines with a local tokenizer and embedding layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tide.core.chat import Chat, Rendered, render
from tide.core.errors import CompletionError, EngineError, InputError, guarded
from tide.core.pretrained import check_tokenizer
from tide.core.results import FinishReason
from tide.core.settings import Sampling
from tide.engines.base import Completion, Engine, Prompt

# Each completion is decoded after this text, so that a tokenizer that marks word starts does not
# swallow the completion's first space.
_ANCHOR = "a"
# Number of table rows from which the scale is measured; a single row may be all zeros.
_MEASURED = 16


class EmbeddingEngine(Engine):
    """Base class of engines with a local tokenizer and embedding table.

    tokenizer: a transformers tokenizer. layer: the model's input embedding layer, which maps ids to
    the input of the first block; its `weight` has shape (vocabulary, dim). embedding_scale: ratio
    of the rows of `embed_tokens` to the rows of `weight`, which is about sqrt(dim) for Gemma and
    1.0 for most other models.

    Raises EngineError for a tokenizer of another model.
    """

    capabilities: ClassVar = frozenset({"min_new_tokens", "stop"})

    def __init__(self, tokenizer: Any, layer: Any) -> None:
        self.tokenizer = tokenizer
        self._layer, self._size = layer, len(layer.weight)
        with guarded(EngineError, f"model {self.name}"):
            check_tokenizer(tokenizer, self._size)
        embedded = self._embed_ids(range(min(_MEASURED, self._size))).float()
        self.dim = embedded.shape[-1]
        self.embedding_scale = float(
            embedded.norm() / layer.weight[: len(embedded)].detach().float().norm()
        )
        added = getattr(tokenizer, "added_tokens_decoder", {}).items()
        self._special_ids = {*tokenizer.all_special_ids, *(i for i, t in added if t.special)}
        self._anchor_ids = tokenizer.encode(_ANCHOR, add_special_tokens=False)
        self._anchor_text = tokenizer.decode(self._anchor_ids)

    @property
    def mean_row_norm(self) -> float:
        """E_bar: the mean norm of a token's embedding, as the first block receives it."""
        norms = torch.linalg.vector_norm(self._layer.weight.detach(), dim=-1, dtype=torch.float32)
        return float(norms.mean()) * self.embedding_scale

    def _tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        return [list(self._encode(text).token_ids) for text in prompts]

    def _encode(self, text: str) -> Prompt:
        if not isinstance(text, Rendered):
            ids = self._embedded(self.tokenizer(text)["input_ids"])
            special = tuple(token_id in self._special_ids for token_id in ids)
            return Prompt(text, tuple(ids), special)
        ids, spans = self._read(text)
        fixed = [
            span != 0 or token_id in self._special_ids
            for token_id, span in zip(ids, spans, strict=True)
        ]
        return Prompt(str(text), tuple(ids), tuple(fixed))

    @property
    def has_chat_template(self) -> bool:
        return bool(self.tokenizer.chat_template)

    def _render(self, chat: Chat) -> Rendered:
        if not self.has_chat_template:
            problem = "has no chat template; give a text"
            raise InputError(f"messages: the model {self.name} {problem}")
        if not self.tokenizer.is_fast:
            problem = "does not give the positions of its tokens in the text"
            raise InputError(f"messages: the tokenizer of {self.name} {problem}")

        template = partial(
            self.tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False
        )
        text = render(chat, template, self.name)
        ids, spans = self._read(text)
        pairs = zip(ids, spans, strict=True)
        self._refuse_control("user", (i for i, span in pairs if span >= 0))
        # The positions of other roles' messages are unknown, so each message is tokenized alone.
        for message in chat.messages:
            if message.role != "user":
                ids = self.tokenizer(message.content, add_special_tokens=False)["input_ids"]
                self._refuse_control(message.role, ids)
        return text

    def _refuse_control(self, role: str, ids: Iterable[int]) -> None:
        """Raise InputError for a special token, which could open another message."""
        control = next((i for i in ids if i in self._special_ids), None)
        if control is not None:
            token = self.tokenizer.convert_ids_to_tokens(control)
            problem = f"contains {token!r}, a control token of the model; leave it out"
            raise InputError(f"messages: the {role} message {problem}")

    def _read(self, text: Rendered) -> tuple[list[int], list[int]]:
        """Return a chat's token ids, and which user message holds each (`Rendered.spans_of`)."""
        # The template has already written the tokens that begin a text.
        read = self.tokenizer(str(text), add_special_tokens=False, return_offsets_mapping=True)
        ids = self._embedded(read["input_ids"])
        # A space between two tokens belongs to the second token.
        spans, last = [], 0
        for begin, end in read["offset_mapping"]:
            spans.append((min(begin, last), end))
            last = max(last, end)
        return ids, text.spans_of(spans)

    def _embedded(self, ids: list[int]) -> list[int]:
        """Return `ids`. Raises InputError for a token that the model has no embedding for."""
        if (outside := self._outside(ids)) is not None:
            token = self.tokenizer.convert_ids_to_tokens(outside)
            problem = f"for which the model {self.name} has no embedding"
            raise InputError(f"prompt: holds {token!r}, {problem}")
        return ids

    def _embed_tokens(self, token_ids: Sequence[int]) -> Tensor:
        self.check_ids(token_ids)
        return self._embed_ids(token_ids).float().cpu()

    def _embed_ids(self, ids: Sequence[int]) -> Tensor:
        """Return the first block's input for `ids`; the layer itself scales embeddings (Gemma)."""
        with torch.inference_mode():
            embeddings: Tensor = self._layer(torch.tensor(ids, device=self._layer.weight.device))
        return embeddings

    def check_ids(self, token_ids: Sequence[int]) -> None:
        if (outside := self._outside(token_ids)) is not None:
            problem = f"token id {outside!r} is not in its vocabulary of {self._size}"
            raise EngineError(f"model {self.name}: {problem}")

    def check_prompt(self, prompt: Sequence[int] | Tensor, new_tokens: int) -> None:
        super().check_prompt(prompt, new_tokens)
        if isinstance(prompt, Sequence) and self._outside(prompt) is not None:
            raise CompletionError(f"a token id is outside the model's vocabulary of {self._size}")

    def completion(
        self, ids: Sequence[int], reason: FinishReason, read_tokens: int, sampling: Sampling
    ) -> Completion:
        completion = super().completion(ids, reason, read_tokens, sampling)
        # Unknown ids decode to an empty text, as if the model had written nothing.
        if ids and not completion.text and not any(self.tokenizer.convert_ids_to_tokens(list(ids))):
            raise EngineError(f"model {self.name}: its tokenizer knows none of the ids {ids}")
        return completion

    def _outside(self, token_ids: Sequence[int]) -> int | None:
        """Return the first id without a row in the table, or None."""
        for token_id in token_ids:
            if not (isinstance(token_id, int) and 0 <= token_id < self._size):
                return token_id
        return None

    def _vocabulary(self) -> Sequence[str]:
        return self._texts([(i,) for i in range(min(len(self.tokenizer), self._size))])

    def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        anchor, text = self._anchor_ids, self._anchor_text
        return [self._decode([*anchor, *row]).removeprefix(text) for row in rows]

    @cached_property
    def _decode(self) -> Callable[[list[int]], str]:
        """Decode ids with control tokens, which the scorer sees.

        A tokenizer that decodes as its backend does takes five times as long as the backend.
        """
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415  (slow import)

        kind, fast = type(self.tokenizer), PreTrainedTokenizerFast
        if all(getattr(kind, way, None) is getattr(fast, way) for way in ("decode", "_decode")):
            return partial(self.tokenizer.backend_tokenizer.decode, skip_special_tokens=False)
        plain = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return partial(self.tokenizer.decode, **plain)

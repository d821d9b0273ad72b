"""The engine `none`, which has no language model. A server with this engine only scores texts.

tide serve --engine none        (or --perspective)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import ClassVar, NoReturn

from tide.core.chat import Chat
from tide.core.errors import InputError
from tide.engines.base import Engine, Piece, Request


class NoEngine(Engine):
    """Refuses every prompt with InputError. model: name for records."""

    in_process: ClassVar = False
    max_batch = 1

    def __init__(self, model: str | Path = "none") -> None:
        self.name = str(model)

    def _tokenize(self, prompts: Sequence[str]) -> NoReturn:
        raise InputError("the engine 'none' has no model and cannot complete texts")

    def _render(self, chat: Chat) -> NoReturn:
        self._tokenize(())

    def _texts(self, rows: Sequence[Sequence[int]]) -> NoReturn:
        self._tokenize(())

    def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        self._tokenize(())

"""Text in twelve scripts, and an engine whose tokens are bytes and pieces of such texts."""

# ruff: noqa: RUF001  (letters of other alphabets)

from __future__ import annotations

import random
from codecs import getincrementaldecoder
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar

import torch

from tide.core.settings import derive_seed
from tide.engines.base import Engine, Piece, Request

SENTENCES = {
    "Latin": "The weather today is fine and the people of the town are kind to each other.",
    "Cyrillic": "Сегодня хорошая погода и люди в городе добры друг к другу.",
    "Greek": "Σήμερα ο καιρός είναι καλός και οι άνθρωποι στην πόλη είναι ευγενικοί.",
    "Arabic": "الطقس اليوم جميل والناس في المدينة طيبون مع بعضهم البعض.",
    "Hebrew": "מזג האוויר היום נעים והאנשים בעיר טובים זה לזה.",
    "Devanagari": "आज मौसम अच्छा है और शहर के लोग एक दूसरे से प्यार करते हैं।",
    "Bengali": "আজ আবহাওয়া ভালো এবং শহরের মানুষ একে অপরের প্রতি সদয়।",
    "Thai": "วันนี้อากาศดีและผู้คนในเมืองก็ใจดีต่อกันเสมอ",
    "Hangul": "오늘은 날씨가 좋고 마을 사람들은 서로에게 친절합니다.",
    "Han": "今天天气很好，城里的人们对彼此都很友善。",
    "Kana": "きょうはてんきがよくて、まちのひとびとはみんなしんせつです。",
    "emoji": "So nice 😀👍🏽 and ❤️ for the 👨‍👩‍👧 of the town 🇫🇷🎉",
}


class ByteEngine(Engine):
    """Continues the last tokens as `SENTENCES` do; draws at random among several continuations.

    Its tokens are all bytes, the first two bytes of characters with and without a space before
    them, some whole characters, and the first letters of words, much like a vocabulary that was
    learned from another language. If all next bytes of a character are banned, it writes a space,
    and the character stays incomplete. requests: the streamed requests that `write` got.
    """

    capabilities: ClassVar = frozenset({"min_new_tokens", "stop"})

    def __init__(self) -> None:
        self.name, self.dim, self.dtype = "bytes", 0, torch.float32
        self.context_length, self.max_batch = None, 8
        self.requests: list[Request] = []
        pieces = {bytes([byte]): None for byte in range(256)}
        for text in SENTENCES.values():
            for number, character in enumerate(text):
                encoded = character.encode()
                pieces |= dict.fromkeys([encoded[:2], b" " + encoded[:1], b" " + encoded[:2]])
                if number % 3 == 0:
                    pieces |= dict.fromkeys([encoded, b" " + encoded])
                    pieces |= {(character + text[number + 1 :][:1]).encode()[:-1] or b"a": None}
        self.pieces = [piece for piece in pieces if piece]
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}
        self._next: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for text in SENTENCES.values():
            for start in range(6):  # tokenized in several ways
                ids = self._cut(f"{text} {text}".encode(), start)
                for position, token in enumerate(ids):
                    for order in range(4):
                        self._next[tuple(ids[max(0, position - order) : position])].add(token)

    def _cut(self, text: bytes, start: int) -> list[int]:
        ids, position, random_ = [], 0, random.Random(start)
        while position < len(text):
            most = random_.randint(1, 5)
            size = next(n for n in range(most, 0, -1) if text[position : position + n] in self._ids)
            ids.append(self._ids[text[position : position + size]])
            position += size
        return ids

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.pieces[token] for token in ids)

    def _tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        return [self._cut(prompt.encode(), 0) for prompt in prompts]

    def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self.bytes_of(ids).decode(errors="replace") for ids in rows]

    def _vocabulary(self) -> Sequence[str]:
        return self._texts([[token] for token in range(len(self.pieces))])

    def write(self, request: Request) -> AsyncGenerator[Piece, None]:
        if self.portal.is_current and request.piece_tokens is not None:  # streamed
            self.requests.append(request)
        return super().write(request)

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        assert isinstance(request.prompt, Sequence)
        ids = list(request.prompt)
        first = len(ids)
        while (step := len(ids) - first) < request.sampling.max_new_tokens:
            ids.append(self._draw(ids, request, step))
            yield Piece(
                (ids[-1],), "length" if step + 1 == request.sampling.max_new_tokens else None
            )

    def _draw(self, ids: list[int], request: Request, step: int) -> int:
        banned = set(request.banned_token_ids)
        for order in (3, 2, 1, 0):
            some = sorted(self._next[tuple(ids[len(ids) - order :])] - banned)
            some = [
                token for token in some if _goes_on(self.bytes_of(ids[-6:]), self.pieces[token])
            ]
            if some:
                return random.Random(derive_seed(request.seed, step)).choice(some)
        return self._ids[b" "]


def _goes_on(before: bytes, piece: bytes) -> bool:
    """Whether the bytes are valid UTF-8, whose last character may be incomplete."""
    before = before.lstrip(bytes(range(0x80, 0xC0)))
    try:
        getincrementaldecoder("utf-8")().decode(before + piece)
    except UnicodeDecodeError:
        return False
    return True

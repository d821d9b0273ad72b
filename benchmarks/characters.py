"""Whether `backtrack` cuts characters, or bans an alphabet: 200 prompts in twelve scripts.

    python benchmarks/characters.py MODEL [--temperature 0.7]

The scorer knows no language: by a checksum it blames one of 6 characters, and for every other
prompt one of 3 words. A row a script: texts that the model wrote at once with a part of a character
before their end, the same of repaired texts, repairs that went on from inside a character, the
most tokens that one repair banned for the rest of a text, and repairs that banned one as the next
token alone.
"""

# ruff: noqa: E501, RUF001  (letters of other alphabets)

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import product
from typing import Annotated

import regex
import typer

from tide import Detoxifier
from tide.core.text import HALF
from tide.engines.base import Piece, Request
from tide.engines.local.engine import TransformersEngine
from tide.evaluation.reporting.tables import Column, Table, to_markdown

COUNT = 200
# How sentences begin, and how they go on.
BEGINNINGS = {
    "Latin": ("The weather,My neighbour,The old house,Our teacher", "is today,told me that,has a,was in"),
    "Cyrillic": ("Погода,Мой сосед,Старый дом,Наша учительница", "сегодня,говорит что,был в,не может"),
    "Greek": ("Ο καιρός,Ο γείτονας,Το παλιό σπίτι,Η δασκάλα", "σήμερα,είπε ότι,ήταν στην,δεν μπορεί"),
    "Arabic": ("الطقس,جاري,البيت القديم,المعلمة", "اليوم,قال إن,كان في,لا يستطيع"),
    "Hebrew": ("מזג האוויר,השכן שלי,הבית הישן,המורה שלנו", "היום,אמר כי,היה ב,לא יכול"),
    "Devanagari": ("मौसम,मेरा पड़ोसी,पुराना घर,हमारी शिक्षिका", "आज,ने कहा कि,में था,नहीं है"),
    "Bengali": ("আবহাওয়া,আমার প্রতিবেশী,পুরনো বাড়ি,আমাদের শিক্ষক", "আজ,বলেন যে,ছিল,পারে না"),
    "Thai": ("อากาศ,เพื่อนบ้าน,บ้านเก่า,ครูของเรา", "วันนี้,บอกว่า,อยู่ใน,ไม่สามารถ"),
    "Hangul": ("날씨는,이웃은,오래된 집은,선생님은", "오늘,말했다,마을에,할 수"),
    "Han": ("天气,我的邻居,老房子,我们的老师", "今天,告诉我,在城里,不能"),
    "Kana": ("てんきは,となりのひとは,ふるいいえは,せんせいは", "きょう,いいました,まちに,できません"),
    "emoji": ("Emojis for the weather: ☀️,My neighbours 👨‍👩‍👧,The house 🏠,Our teacher 👩🏽‍🏫", "🎉 🎉,says 😀,and 🇫🇷,👍🏽 👍🏽"),
}  # fmt: skip


def prompts_of(script: str) -> list[str]:
    """Sixteen beginnings, and one in quotation marks; none is the beginning of another."""
    subjects, verbs = (part.split(",") for part in BEGINNINGS[script])
    space = "" if script in ("Thai", "Han", "Kana") else " "
    pairs = [f"{a}{space}{b}" for a, b in product(subjects, verbs)]
    return [*pairs, f"\u201c{pairs[0]}"]


def blaming(unit: str, share: int) -> Callable[[list[str]], list[float]]:
    """A scorer of 0.9 for texts that hold one of every `share` units, by their checksums."""
    found = regex.compile(unit)

    def is_bad(one: str) -> bool:
        return HALF not in one and not one.isspace() and zlib.crc32(one.encode()) % share == 0

    return lambda texts: [0.9 if any(map(is_bad, found.findall(text))) else 0.05 for text in texts]


def is_cut(before: str, whole: str) -> bool:
    """Whether a text ends inside a character of another that begins with it."""
    found = regex.findall(r"\X", before)
    return HALF in before[-1:] or regex.findall(r"\X", whole)[: len(found)] != found


class Recording(TransformersEngine):
    """Keeps what it was asked, and what it wrote."""

    def __init__(self, model: str) -> None:
        self.asked: list[tuple[Request, tuple[int, ...]]] = []
        super().__init__(model)

    async def write(self, request: Request) -> AsyncGenerator[Piece, None]:
        ids: tuple[int, ...] = ()
        try:
            async with aclosing(super().write(request)) as pieces:
                async for piece in pieces:
                    ids += piece.token_ids
                    yield piece
        finally:
            if self.portal.is_current and request.piece_tokens is not None:
                self.asked.append((request, ids))


def measured(engine: Recording, prompt: str, texts: Sequence[str]) -> list[int]:
    """The numbers of a row, of one prompt. texts: what was scored, in order."""
    (ids,) = engine.tokenize([prompt])
    asked = [
        (tuple(request.prompt[len(ids) :]), request, written)
        for request, written in engine.asked
        if isinstance(request.prompt, Sequence) and tuple(request.prompt[: len(ids)]) == tuple(ids)
    ]
    # With those that were drawn again before they were scored.
    known = engine.texts([kept + written for kept, _, written in asked])
    repairs = asked[1:]
    starts = engine.texts([kept for kept, _, _ in repairs])
    before: set[int] = set()
    banned = [0]
    for _, request, _ in repairs:
        banned.append(len(set(request.banned_token_ids) - before))
        before = set(request.banned_token_ids)
    first, *later = texts
    return [
        HALF in first.rstrip(HALF),
        len(later),
        sum(HALF in text.rstrip(HALF) for text in later),
        sum(not any(t.startswith(one) and not is_cut(one, t) for t in known) for one in starts),
        max(banned),
        sum(bool(request.banned_first_ids) for _, request, _ in repairs),
    ]


def main(
    model: Annotated[str, typer.Argument(help="Folder of a model.")],
    temperature: float = 0.7,
    tokens: Annotated[int, typer.Option(help="Tokens of a text.")] = 24,
) -> None:
    rows: dict[str, list[list[int]]] = defaultdict(list)
    with Recording(model) as engine:
        prompts = [(script, one) for script in BEGINNINGS for one in prompts_of(script)][:COUNT]
        scorers = blaming(r"\X", 6), blaming(r"\S+", 3)
        for part, scorer in enumerate(scorers):
            mine = prompts[part::2]
            detox = Detoxifier(
                engine, scorer=scorer, strategy="backtrack:then=none", temperature=temperature,
                max_new_tokens=tokens,
            )  # fmt: skip
            engine.asked.clear()
            for (script, prompt), result in zip(mine, detox.map([p for _, p in mine]), strict=True):
                texts = [one.text for one in result.trace]
                rows[script].append([result.accepted, *measured(engine, prompt, texts)])
    table = [_row(script, some) for script, some in rows.items()]
    table.append(_row("all", [one for some in rows.values() for one in some]))
    headings = (
        "script", "prompts", "accepted", "first texts with a half", "repairs",
        "repaired texts with a half", "repairs from inside a character",
        "most tokens banned by one", "repairs that ban a next token",
    )  # fmt: skip
    columns = [Column(heading, digits=0) for heading in headings]
    print(to_markdown(Table("characters", "", columns, table)))


def _row(name: str, rows: Sequence[Sequence[int]]) -> list[str | int]:
    accepted, broken, repairs, halves, cut, banned, nexts = zip(*rows, strict=True)
    most = max(banned)
    return [
        name, len(rows), sum(accepted), sum(broken), sum(repairs), sum(halves), sum(cut), most,
        sum(nexts),
    ]  # fmt: skip


if __name__ == "__main__":
    typer.run(main)

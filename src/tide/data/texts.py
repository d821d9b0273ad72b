"""Read prompts and labelled texts from files, plain or gzipped; errors name the line."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel

from tide.core.chat import Chat, Message
from tide.core.errors import InputError
from tide.core.results import Score
from tide.core.sanitize import half_character, sanitized
from tide.data.files import as_text, kind_of, numbered, parsed, read_lines, read_objects

_STDIN = Path("standard input")  # for messages


@dataclass(frozen=True)
class Row:
    """One text of an input file. id: from the file, or else the index of the row.

    group: a label or domain by which a benchmark groups its texts, if any. chat: the chat that the
    model continues; `text` is then the last message of the chat. context: what the text answers, if
    the file says so; see `Exchange`.
    """

    id: int | str
    text: str
    group: str | None = None
    chat: Chat | None = None
    context: str | Chat = ""

    def __post_init__(self) -> None:
        """Raise InputError for a text with a lone surrogate, which a shell may pass."""
        if half_character(self.text) is not None:
            raise InputError(f"id {self.id}: the text is invalid Unicode (a lone surrogate)")

    @property
    def asked(self) -> str | Chat:
        return self.chat or self.text

    @property
    def messages(self) -> list[Message] | None:
        return list(self.chat.messages) if self.chat else None

    def as_chat(self) -> Row:
        """Return the row as a chat; its text becomes a user message if the row is no chat."""
        return self if self.chat else replace(self, chat=Chat.said(self.text))


def read_rows(
    path: Path,
    *,
    field: str = "prompt",
    group: str | None = None,
    limit: int | None = None,
    skip_empty: bool = False,
    chats: bool = False,
    contexts: bool = False,
) -> list[Row]:
    """Read at most `limit` texts of `path`, in order. group: field that names a text's group.

    jsonl: one object per line with `field` (a string, or an object with `text` as in
    RealToxicityPrompts) and optionally `id`. csv: a header with `field` and optionally `id`.
    txt: one text per line, blank lines skipped. Files may be gzipped (`.jsonl.gz`). The path `-` is
    standard input, read as .txt.
    chats: read `messages` of each object; the text of a row without messages is a user message.
    contexts: read `context` of each row, if present: a text or a list of messages.

    Raises InputError, with the line's number, for a line that cannot be used, an id that occurs
    twice, an empty text unless `skip_empty`, or a file without texts.
    """
    kind = ".txt" if str(path) == "-" else kind_of(path)
    if kind not in _READERS:
        raise InputError(f"{path}: unknown kind of file; use .jsonl, .csv or .txt, plain or .gz")
    rows: list[Row] = []
    first: dict[int | str, str] = {}
    for where, row in _READERS[kind](path, field):
        if limit is not None and len(rows) == limit:
            break
        chat = _chat(row["messages"], where) if chats and "messages" in row else None
        text = chat.messages[-1].content if chat else _text(row, field, where)
        row_id = row.get("id", len(rows))
        if skip_empty and not text.strip():
            continue
        if not text.strip():
            raise InputError(f"{where}: {field!r} is empty")
        if not isinstance(row_id, int | str) or isinstance(row_id, bool):
            raise InputError(f"{where}: 'id' is neither a number nor a text")
        if row_id in first:
            line = first[row_id].rpartition(", ")[2]
            raise InputError(f"{where}: id {row_id!r} occurs twice (first: {line})")
        label = row.get(group) if group else None
        first[row_id] = where
        context = _context_of(row.get("context"), where) if contexts else ""
        row_read = Row(row_id, text, label, chat, context)
        rows.append(row_read.as_chat() if chats else row_read)
    if not rows:
        path = _STDIN if str(path) == "-" else path
        raise InputError(f"{path}: holds no {field}s")
    return rows


def _context_of(value: Any, where: str) -> str | Chat:
    """Return the context of a text: a text, or a chat from a list of messages; "" for None."""
    if isinstance(value, list):
        return _chat(value, f"{where}: 'context'")
    if not isinstance(value, str | None):
        kind = type(value).__name__
        raise InputError(f"{where}: 'context' must be a text or a list of messages, got {kind}")
    return value or ""


def _chat(messages: Any, where: str) -> Chat:
    try:
        return Chat.of(messages)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _text(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    text = value.get("text") if isinstance(value, dict) else value
    if field not in row:
        names = sanitized(", ".join(row)) or "the object has none"
        fix = f"name a field with --field: {names}"
        fix = "add --chat" if "messages" in row else fix
        raise InputError(f"{where}: no text field {field!r}; {fix}")
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        raise InputError(f"{where}: {field!r} must be a text, got {kind}")
    return text


def _read_csv(path: Path, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = (as_text(line, where) for where, line in read_lines(path))
    reader = csv.DictReader(lines, strict=True)
    try:
        names = reader.fieldnames or []
        if field not in names:
            has = sanitized(", ".join(names)) or "the file has none"
            raise InputError(f"{path}: no column {field!r}; name a column with --field: {has}")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise InputError(f"{where}: has more or fewer fields than the header")
            yield where, row
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num + 1}: not CSV: {error}") from None


def _read_txt(path: Path, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    is_stdin = str(path) == "-"
    lines = numbered(sys.stdin.buffer, _STDIN) if is_stdin else read_lines(path)
    for where, line in lines:
        text = as_text(line, where).rstrip("\r\n")
        if text.strip():
            yield where, {field: text}


_READERS: dict[str, Callable[[Path, str], Iterator[tuple[str, dict[str, Any]]]]] = {
    ".jsonl": lambda path, _: read_objects(path),
    ".csv": _read_csv,
    ".txt": _read_txt,
}


PAIRS = "pairs"  # the group of texts that come from pairs


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


_Text = Annotated[str, AfterValidator(_not_blank)]


class LabelledText(BaseModel, frozen=True, strict=True):
    """toxicity: in [0, 1]; the share of raters who called the text toxic, or a recorded score.

    group: the value of the row's field `source`, "" without one.
    """

    text: _Text
    toxicity: Score
    group: str = ""


class Pair(BaseModel, frozen=True, strict=True):
    """A toxic text and neutral paraphrases of it."""

    toxic: _Text
    neutral: list[_Text]

    @property
    def texts(self) -> list[LabelledText]:
        neutral = [LabelledText(text=text, toxicity=0.0, group=PAIRS) for text in self.neutral]
        return [LabelledText(text=self.toxic, toxicity=1.0, group=PAIRS), *neutral]


def read_entries(paths: Iterable[Path]) -> Iterator[LabelledText | Pair]:
    """Yield the rows of .jsonl files, plain or gzipped.

    A row is a labelled text (`text`, `toxicity`), a trial of a run, or a pair (`toxic`, and
    `neutral`: a list of texts). Rows with an empty text are left out: it has no token to learn
    from. A pair without neutral texts yields its toxic text.
    Raises InputError, with the row's line, for any other row.
    """
    for path in paths:
        for where, row in read_objects(path):
            if "toxic" in row:
                pair = parsed(Pair, row, where)
                yield pair if pair.neutral else pair.texts[0]
            elif not isinstance(text := row.get("text"), str) or text.strip():
                row["group"] = str(row.get("source", ""))
                yield parsed(LabelledText, row, where)

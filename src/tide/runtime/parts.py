"""Which parts of an answer are scored: text, reasoning, calls of tools, a format such as JSON."""

from __future__ import annotations

from tide.core.chat import Parts
from tide.core.seeds import derive_seed
from tide.core.settings import Settings
from tide.core.strings import readings, strings_of_json
from tide.scorers.base import is_empty


def texts_of(text: str, parts: Parts, settings: Settings, *, has_format: bool) -> list[str]:
    """The texts of an answer; the worst one decides.

    Raises Unread if arguments of calls, or a text of a declared format, are not JSON.
    """
    found = [text]
    if settings.reasoning == "scored":
        found.append(parts.reasoning)
    if settings.tool_calls == "scored":
        for call in parts.tool_calls:
            found += [call.name, *_read(call.arguments or "{}")]
    if has_format and not (parts.tool_calls and is_empty(text)):
        found += _read(text)
    return list(dict.fromkeys(found))


def _read(text: str) -> list[str]:
    """A text that is JSON: as it stands, and each string and key of it, and all together."""
    said = strings_of_json(text)
    return [*readings(text), *said, " ".join(said)]


def given_out(parts: Parts, settings: Settings, seed: int) -> Parts:
    """The parts of a passed answer that are given out.

    A server's ids of calls are unscored texts: others replace them.
    """
    calls = [
        # Mistral's models take ids of nine letters and digits alone.
        call.model_copy(update={"id": f"{derive_seed(seed, 'call', number):09x}"[-9:]})
        for number, call in enumerate(parts.tool_calls)
    ]
    return Parts(
        reasoning="" if settings.reasoning == "withheld" else parts.reasoning,
        tool_calls=() if settings.tool_calls == "withheld" else tuple(calls),
        num_tokens=parts.num_tokens,
    )

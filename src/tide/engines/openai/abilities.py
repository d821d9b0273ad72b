"""What a server can do, found out by asking it."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from tide.core.http import ServerFailed
from tide.core.sanitize import logger
from tide.engines.openai.held import HeldWords, ask_server, same_word
from tide.engines.openai.protocol import OFF, ServedModels
from tide.engines.openai.stream import streamed
from tide.engines.openai.words import words_of
from tide.engines.remote.pool import Endpoint, EndpointPool, EndpointRefused
from tide.engines.remote.protocol import NEVER

_log = logger(__name__)

# What is asked of a server to see how it goes on. All of them answer something.
_ASKED = ("What do you do in the morning?", "Tell me about the town where you live.")
_PROBES = (
    "The people of the town were kind, and in the morning",
    "She opened the window and said that",
    "The weather today is fine, and I think",
)
_PROBED = 16
# Statuses of requests with fields that a server does not take.
_UNKNOWN_FIELDS = (400, 413, 422)
_CONTINUED: tuple[dict[str, Any], ...] = (
    {"continue_final_message": True, "add_generation_prompt": False},
    {},
)


@dataclass
class Abilities:
    """What was found out about a server.

    model: its name there. context: most tokens, if it says. off: what it is sent in any case.
    continued: what it is sent to go on with an assistant's message; None if it cannot. held: tells
    the tokens of held words; None where a bias does not work.
    """

    model: str
    context: int | None
    off: dict[str, Any]
    continued: dict[str, Any] | None = None
    held: HeldWords | None = None


async def look_at(
    pool: EndpointPool, endpoint: Endpoint, name: str, named: HeldWords | None
) -> Abilities:
    """What can be found out about a server. named: tells its token ids, whatever it tells itself.

    Raises ServerFailed and EndpointRefused if it cannot be used.
    """
    found = Abilities(*await _find_model(pool, endpoint, name), dict(OFF))
    try:
        await complete_probe(pool, endpoint, found)
    except EndpointRefused as error:
        if error.status not in _UNKNOWN_FIELDS:
            raise
        found.off = {}  # it takes nothing that OpenAI's has not
    found.held = await _find_held(pool, endpoint, found, named)
    found.continued = await _find_continued(pool, endpoint, found)
    return found


async def complete_probe(pool: EndpointPool, endpoint: Endpoint, found: Abilities) -> None:
    """Raise ServerFailed or EndpointRefused if a server does not complete a harmless text."""
    await _complete(pool, endpoint, found, {"prompt": _PROBES[0]})


async def _find_model(pool: EndpointPool, endpoint: Endpoint, name: str) -> tuple[str, int | None]:
    try:
        models = (await pool.request(endpoint, "/v1/models", ServedModels)).data
    except EndpointRefused as error:
        if error.status != 404:
            raise
        return name, None
    ours = [one for one in models if one.id == name]
    if not ours and len(models) > 1:
        some = ", ".join(one.id for one in models[:5])
        raise EndpointRefused(f"has no model {name!r}; --model is one of: {some}")
    (model, *_) = ours or models
    return model.id, model.max_model_len


async def _find_held(
    pool: EndpointPool, endpoint: Endpoint, found: Abilities, named: HeldWords | None
) -> HeldWords | None:
    """Who tells token ids, if a bias keeps the first word that was written from being drawn."""
    held = named or await ask_server(pool, endpoint, found.model)
    for prompt in _PROBES:
        written = await _complete(pool, endpoint, found, {"prompt": prompt})
        if written.lstrip().startswith(prompt):
            raise EndpointRefused("repeats the prompt before what it writes (echo)")
        first = next((word for word in words_of(written) if word.strip()), None)
        if first is not None:
            break
    if held is None or first is None:
        return None
    bias = {str(token): NEVER for token in await held.ids([first])}
    try:
        more = {"prompt": prompt, "logit_bias": bias}
        other = words_of(await _complete(pool, endpoint, found, more))
    except EndpointRefused as error:
        if error.status not in _UNKNOWN_FIELDS:
            raise
        other = [first]
    if bias and same_word(first) != same_word((other or [""])[0]):
        return held
    _log.warning("%s: logit_bias with ids of %s does not work", endpoint.url, held.name)
    return None


async def _find_continued(
    pool: EndpointPool, endpoint: Endpoint, found: Abilities
) -> dict[str, Any] | None:
    """What lets a server go on with an assistant's message.

    It is given the first half of what it answered: it goes on if it writes the second.
    """
    for asked in _ASKED:
        messages = [{"role": "user", "content": asked}]
        body = {"messages": messages, "max_tokens": _PROBED}
        try:
            whole = words_of(await _complete(pool, endpoint, found, body))
        except (EndpointRefused, ServerFailed):
            return None  # it has no chats
        half = len(whole) // 2
        begun, rest = "".join(whole[:half]), "".join(whole[half:])
        # Of what is repeated, it cannot be seen where it goes on.
        if half < 2 or "".join(whole).startswith(rest[:8]) or not rest.strip():
            continue
        said = {"role": "assistant", "content": begun}
        for more in _CONTINUED:
            own = body | {"messages": [*messages, said], **more}
            try:
                other = await _complete(pool, endpoint, found, own)
            except (EndpointRefused, ServerFailed):
                continue
            if other and (other.startswith(rest) or rest.startswith(other)):
                return dict(more)
    return None


async def _complete(
    pool: EndpointPool, endpoint: Endpoint, found: Abilities, more: dict[str, Any]
) -> str:
    """What a server writes, greedily, when it is looked at."""
    body = {"model": found.model, "max_tokens": _PROBED, "temperature": 0.0, "stream": True}
    text = ""
    async with aclosing(streamed(pool, endpoint, found.off | body | more)) as parts:
        async for said, _ in parts:
            text += said
    return text

"""Draws answers that may hold tool calls or reasoning, as a whole, until one passes."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import Literal

import anyio

from tide.core.chat import Chat, Parts
from tide.core.results import Trial
from tide.core.sanitize import Unread, readings, strings_of_cut_json, strings_of_json
from tide.core.settings import Settings, derive_seed
from tide.engines.base import Engine, Request
from tide.runtime.trial import Effort, TrialTask, trial_of
from tide.runtime.watch import Watch, written
from tide.scorers.base import Exchange, TextScore, is_blank
from tide.scorers.scoring import Scoring
from tide.search.backtrack import BacktrackOptions

# The score of an answer with JSON that cannot be read. No scorer has scored it, so it is never
# flagged.
UNREADABLE = TextScore(1.0, unscored=True)
# What such an answer is said to fail.
JSON = "json"
# The form that a chat asks for: JSON, or "any" for what may be JSON, as text by a grammar.
Form = Literal["json", "any"]
_OF_TOOLS = frozenset(("tools", "tool_choice", "parallel_tool_calls"))
# Maximum draws, and minimum temperature after the first draw.
_DRAWS, _WARM = 4, 0.7


async def draw(task: TrialTask, engine: Engine, scoring: Scoring) -> Trial:
    """Draw whole answers until one passes, at most `_DRAWS`. A drawn answer is never edited."""
    settings, effort, parts = task.settings, Effort(), Parts()
    acceptance = task.acceptance
    prefix_cache = engine.prefix_cache()
    passed = False
    with anyio.move_on_after(settings.deadline) as scope:
        for number in range(_DRAWS):
            # 1. The model writes a whole answer.
            effort.rounds = number + 1
            effort.iterations = number + 1
            watch = Watch(acceptance, BacktrackOptions(pace="whole"))
            request = _request(task, number, prefix_cache)
            async with aclosing(written(engine.write(request), engine, watch, effort)) as pieces:
                async for piece in pieces:
                    last = piece  # has the parts of the answer
            reason, text = last.finish_reason, watch.text
            assert reason is not None
            # 2. All its texts are scored.
            is_cut = reason != "stop"
            score = await score_whole(task, scoring, effort, text, last.parts, is_cut=is_cut)
            parts = given_out(last.parts, settings, task.seed)
            has_parts = bool(parts.reasoning or last.parts.tool_calls)
            empty = task.skips(text) and not has_parts
            failed = (JSON,) if score is UNREADABLE else acceptance.failed(score)
            effort.record(text, score, len(watch.ids), reason, empty=empty, failed=failed)
            # 3. It is given out if it passed. An answer of withheld tool calls alone is none.
            if acceptance.passes(score):
                withheld = settings.tool_calls == "withheld" and bool(last.parts.tool_calls)
                passed = not (withheld and task.skips(text))
                if passed and task.on_text is not None and not task.skips(text):
                    task.on_text(text)
                break
            effort.blocked = acceptance.blocks(score)
            if effort.blocked:
                break
    if scope.cancelled_caught:
        effort.check_deadline(settings)
    chosen = len(effort.trace) - 1 if passed else None
    return trial_of(task, effort, chosen, passed=passed, parts=parts)


def _request(task: TrialTask, number: int, prefix_cache: object) -> Request:
    sampling = task.settings
    if number:
        warm = max(sampling.temperature, _WARM)
        sampling = sampling.model_copy(update={"temperature": warm})
    seed = derive_seed(task.seed, "sampling", number)
    return Request(
        task.prompt.token_ids,
        sampling,
        seed,
        is_first=not number,
        priority=task.priority,
        prefix_cache=prefix_cache,
    )


async def score_whole(
    task: TrialTask, scoring: Scoring, effort: Effort, text: str, parts: Parts, *, is_cut: bool
) -> TextScore:
    """Score all texts of a whole answer; return the worst score, or UNREADABLE for unreadable JSON.

    is_cut: whether the maximum length or the server's filter cut the answer, so that JSON may be
    incomplete.
    """
    form = _form(task.chat) if task.chat else None
    try:
        texts = texts_of(text, parts, task.settings, form=form, is_cut=is_cut)
    except Unread:
        return UNREADABLE
    if len(texts) == 1 and task.skips(text):
        return effort.score_of_empty(task.settings)
    effort.scorer_calls += len(texts)
    scores = await scoring.send([Exchange(task.context, text) for text in texts], is_blank)
    return task.acceptance.worst(scores)


def _form(chat: Chat) -> Form | None:
    """Return the form that the fields of a chat ask for; None if the answer is plain text."""
    names = chat.asked.keys()  # reads JSON
    if "response_format" in names:
        return "json"
    return "any" if names - _OF_TOOLS else None


def texts_of(
    text: str, parts: Parts, settings: Settings, *, form: Form | None, is_cut: bool = False
) -> list[str]:
    """List the texts of an answer to score. Raises Unread if required JSON cannot be parsed."""
    texts = [text]
    if settings.reasoning == "scored":
        texts.append(parts.reasoning)
    if settings.tool_calls == "scored":
        for call in parts.tool_calls:
            texts += [call.name, *_texts_of_json(call.arguments or "{}", is_cut=is_cut)]
    is_formless = parts.is_refusal or (parts.tool_calls and is_blank(text))
    if form is not None and not is_formless:
        try:
            texts += _texts_of_json(text, is_cut=is_cut)
        except Unread:
            if form == "json":
                raise
            texts += readings(text)
    return list(dict.fromkeys(texts))


def _texts_of_json(text: str, *, is_cut: bool) -> list[str]:
    """List a JSON text, its strings and keys, and last all strings and keys joined by spaces."""
    strings = strings_of_cut_json(text) if is_cut else strings_of_json(text)
    return [*readings(text), *strings, " ".join(strings)]


def given_out(parts: Parts, settings: Settings, seed: int) -> Parts:
    """Return the parts of a passed answer to give out; new call ids replace the server's ids."""
    calls = []
    for number, call in enumerate(parts.tool_calls):
        # Ids from a server are unscored text. Mistral's models require ids of 9 letters and digits;
        # Kimi's read the id that they wrote, of the call's name and a number.
        is_kimis = re.fullmatch(rf"functions\.{re.escape(call.name)}:[0-9]{{1,9}}", call.id)
        id_ = call.id if is_kimis else f"{derive_seed(seed, 'call', number):09x}"[-9:]
        calls.append(call.model_copy(update={"id": id_}))
    changes = {
        "reasoning": "" if settings.reasoning == "withheld" else parts.reasoning,
        "tool_calls": () if settings.tool_calls == "withheld" else tuple(calls),
    }
    return parts.model_copy(update=changes)

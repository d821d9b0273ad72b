"""Writes an answer, scores it as it grows, and rewinds it where it fails.

while the answer has not ended:
1. The model writes: `write_until_failure` appends the engine's pieces to the `Watch`, up to a stop
   string.
2. The text so far is scored: `Watch.asks` says at which positions, `_ask` sends their windows to
   the scorer or its screen, and `_judge` hands the scores to the watch, which says what has passed.
3. Passed text is given out: `_give_out` hands it to `TrialTask.on_text`, which streams it.
4. Failed text is removed from the blamed word on, and this word is banned (`_repair`), or the
   answer ends before the failed text (`_cut_off`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import anyio

from tide.core.results import FinishReason, Trial
from tide.core.settings import derive_seed
from tide.core.text import HALF, before_half, has_letter, maybe_stops
from tide.engines.base import Engine, Piece, Request, Token
from tide.runtime.protected import is_protected
from tide.runtime.trial import Effort, TrialTask, trial_of
from tide.runtime.watch import Failure, Watch, written
from tide.scorers.base import Exchange, TextScore, is_blank, is_nearly_empty, split
from tide.scorers.scoring import Scoring
from tide.search.backtrack import BacktrackOptions

# The option `holds` limits the number of rewinds within this many tokens.
_STRETCH = 32
# The answer ends after this many repairs that left a character incomplete.
_BROKEN_OFF = 4


async def rewind(task: TrialTask, engine: Engine, scoring: Scoring) -> Trial:
    """Run a trial that repairs the answer while it is written."""
    answer = begin(task, engine, scoring)
    passed = False
    with anyio.move_on_after(task.settings.deadline) as scope:
        passed = await _write(answer)
    if scope.cancelled_caught:
        passed = _cut_off(answer)
        if not passed:
            answer.effort.check_deadline(task.settings)
    return finish(answer, passed=passed)


@dataclass
class Answer:
    """An answer under repair.

    continues: whether the engine can continue a partial answer. If it cannot, the answer is written
    anew after a rewind, and must begin with the text that was given out. rewound_to: positions
    to which the answer was rewound. banned_next: ids banned as the next token, by all ids before.
    kept: tokens that the last draft began with. given_out: the token texts that were given out.
    agreed: number of them with which the last draft begins. reading: text that the scorer itself
    scores after its screen.
    """

    task: TrialTask
    engine: Engine
    scoring: Scoring
    watch: Watch
    continues: bool
    prefix_cache: object
    effort: Effort = field(default_factory=Effort)
    ended: FinishReason | None = None
    rewound_to: list[int] = field(default_factory=list)
    banned: tuple[Token, ...] = ()
    banned_next: dict[tuple[Token, ...], tuple[Token, ...]] = field(default_factory=dict)
    broken_off: int = 0
    kept: int = 0
    given_out: list[str] = field(default_factory=list)
    agreed: int = 0
    reading: _Pending | None = None


class _OtherBeginning(Exception):
    """An answer that was written anew does not begin with the text that was given out."""


@dataclass
class _Pending:
    """Positions of the answer, each with its windows of text, and the scores of all windows.

    screened: whether the scores are those of the scorer's screen.
    """

    positions: list[tuple[int, list[str]]]
    scores: asyncio.Future[Sequence[TextScore]]
    screened: bool

    async def by_position(self) -> list[tuple[int, Sequence[TextScore]]]:
        """Await the scores; return those of each position."""
        groups = split(await self.scores, [len(windows) for _, windows in self.positions])
        return [
            (position, scores) for (position, _), scores in zip(self.positions, groups, strict=True)
        ]


def begin(task: TrialTask, engine: Engine, scoring: Scoring) -> Answer:
    """Return the empty answer of a task. A search strategy judges only whole answers."""
    options = task.strategy.options
    if not isinstance(options, BacktrackOptions):
        options = BacktrackOptions(pace="whole")
    continues = engine.supports_continuation(task.prompt.token_ids)
    scorer = scoring.scorer
    if options.pace == "auto":
        options = options.model_copy(update={"pace": scorer.pace})
    is_screened = scorer.screen is not None
    watch = Watch(task.acceptance, options, is_screened, window=scorer.window)
    return Answer(task, engine, scoring, watch, continues, engine.prefix_cache())


async def _write(answer: Answer) -> bool:
    """Write the answer; return whether it has passed."""
    while answer.ended is None:
        try:
            failure = await write_until_failure(answer)
        except _OtherBeginning:
            return False
        if answer.broken_off == _BROKEN_OFF:
            return _cut_off(answer)
        if failure is not None and not await _repair(answer, failure):
            return answer.effort.blocked and _cut_off(answer, "content_filter")
    return True


# 1. The model writes.


async def write_until_failure(answer: Answer, recorded: Sequence[Piece] = ()) -> Failure | None:
    """Let the model write until the answer ends or fails; return the failure, if any.

    recorded: the pieces of a finished answer, to be judged instead of a new one.
    """
    watch, effort = answer.watch, answer.effort
    effort.rounds += 1
    answer.kept, answer.agreed = len(watch.ids), 0
    request = _request(answer)
    source = parted(recorded, request.piece_tokens) if recorded else answer.engine.write(request)
    sent: list[_Pending] = []
    try:
        async with aclosing(written(source, answer.engine, watch, effort)) as pieces:
            failure, reason = await _follow(answer, pieces, sent)
    finally:
        for pending in filter(None, [*sent, answer.reading]):
            pending.scores.cancel()
        answer.reading = None
    if failure is None:
        answer.ended = reason
        return None
    if not effort.trace:
        is_whole = reason is not None and failure.position == len(watch.texts)
        effort.base_partial = not is_whole
    _record(answer, failure.position, failure.score, "length")
    return failure


async def parted(pieces: Sequence[Piece], size: int | None) -> AsyncGenerator[Piece, None]:
    """Yield a finished answer in pieces of `size` tokens, so that it is judged as it grows."""
    for piece in pieces:
        ids = piece.token_ids
        starts = range(0, len(ids) or 1, size or len(ids) or 1)
        for start in starts:
            part = ids[start : start + starts.step]
            yield Piece(part, piece.finish_reason if start == starts[-1] else None)


async def _follow(
    answer: Answer, pieces: AsyncGenerator[Piece, None], sent: list[_Pending]
) -> tuple[Failure | None, FinishReason | None]:
    """Judge an answer while it is written. Return the failure, and why the text ended, if it did.

    Without either, the model broke off a character, and the answer was rewound. sent: texts whose
    scores are awaited, the oldest first.
    """
    watch = answer.watch
    reason: FinishReason | None = None
    async for piece in pieces:
        reason = piece.finish_reason
        ended = reason is not None
        if not answer.continues:
            _check_beginning(answer, ended=ended)
        if answer.rewound_to and answer.continues and _breaks_off(answer, ended=ended):
            return None, None
        if ended and answer.task.skips(watch.text):
            watch.judge(len(watch.texts), answer.effort.score_of_empty(answer.task.settings))
            break
        if positions := watch.asks(ended=ended):
            sent.append(_ask(answer, positions, screened=watch.screened))
        # At the pace "word" each text is judged before the next piece. At any other pace the scorer
        # has until the next position.
        awaited = 0 if ended or watch.options.pace == "word" else 1
        while len(sent) > awaited:
            failure = await _judge(answer, sent[0])
            sent.pop(0)
            if failure is not None:
                return failure, reason
        # Passed text is given out at once. A failure is acted on only where it is due, so that the
        # time of a score changes no result.
        if _has_passed(answer, answer.reading):
            await _settle(answer)
        while sent and not watch.screened and _has_passed(answer, sent[0]):
            await _judge(answer, sent.pop(0))
    failure = await _settle(answer) or watch.finish()
    _give_out(answer)
    return failure, reason


def _check_beginning(answer: Answer, *, ended: bool) -> None:
    """Raise _OtherBeginning unless the answer agrees with the text that was given out."""
    given_out, texts = answer.given_out, answer.watch.texts
    # The text of the last token may still grow.
    count = len(given_out) if ended else min(len(given_out), len(texts) - 1)
    fresh = slice(answer.agreed, count)  # what agreed before is not compared at each piece
    if texts[fresh] != given_out[fresh]:
        raise _OtherBeginning
    answer.agreed = max(answer.agreed, count)


def _request(answer: Answer) -> Request:
    """Return the request for the rest of the answer."""
    watch, task, settings = answer.watch, answer.task, answer.task.settings
    ids = tuple(watch.ids)
    left, minimum = settings.max_new_tokens - len(ids), settings.min_new_tokens
    if answer.rewound_to and "min_new_tokens" in answer.engine.capabilities:
        minimum = max(minimum, watch.options.least)
    number = len(answer.rewound_to) + answer.broken_off
    if not answer.continues:
        number = 0  # with equal noise, the answer most likely begins as before
    return Request(
        task.prompt.token_ids + ids,
        settings.limited(left, min(max(0, minimum - len(ids)), left)),
        derive_seed(task.seed, "sampling", number),
        banned_token_ids=answer.banned,
        banned_first_ids=answer.banned_next.get(ids, ()),
        is_first=number == 0,
        priority=task.priority,
        prefix_cache=answer.prefix_cache,
        # Larger pieces cost a server less, but waste more tokens if the text fails.
        piece_tokens={"whole": None, "word": 1}.get(watch.options.pace, 4),
    )


def _breaks_off(answer: Answer, *, ended: bool) -> bool:
    """Rewind if the model left a character incomplete and wrote on; return whether it did.

    Bans of other characters can cause this. The repair is then drawn again from before the
    character. An incomplete character at the end of the answer is removed instead.
    """
    watch = answer.watch
    fresh = watch.texts[answer.kept :]
    text = "".join(fresh)
    if HALF not in text:
        return False
    half = answer.kept + before_half(fresh)
    if HALF not in text.rstrip(HALF):
        if ended:
            del watch.texts[half:], watch.ids[half:]
        return False
    _ban_next(answer, half, watch.ids[half : half + 1])
    answer.broken_off += 1
    watch.drop_after(half)
    return True


# 2. The text so far is scored.


def _ask(
    answer: Answer, positions: list[tuple[int, list[str]]], *, screened: bool = False
) -> _Pending:
    """Send the windows of positions to the scorer, or to its screen, with the answer's context."""
    texts = [text for _, windows in positions for text in windows]
    answer.effort.scorer_calls += len(set(texts))
    exchanges = [Exchange(answer.task.context, text) for text in texts]
    scores = answer.scoring.send(exchanges, is_blank, screened=screened, growing=True)
    return _Pending(positions, scores, screened)


async def _judge(answer: Answer, pending: _Pending) -> Failure | None:
    """Await the scores of positions; return the first failure, if any."""
    watch, failure = answer.watch, None
    for position, scores in await pending.by_position():
        if pending.screened:
            # The limits of attributes are the scorer's, not its screen's.
            rejects = not answer.task.settings.passes(max(score.value for score in scores))
            failure = await _read(answer, position, rejects=rejects)
        else:
            failure = watch.judge(position, watch.acceptance.worst(scores))
        if failure is not None:
            break
    _give_out(answer)
    return failure


async def _read(answer: Answer, position: int, *, rejects: bool) -> Failure | None:
    """Let the scorer itself score a text that its screen has scored, if it is due.

    The model waits for the score only where the screen rejects. The score of a sentence that the
    screen accepts is awaited before the next text that is due.
    """
    watch = answer.watch
    if not rejects and not watch.ends(position):
        watch.note_acceptance(position)
        return None
    failure = await _settle(answer)
    if failure is not None or (rejects and not watch.note_rejection(position)):
        return failure
    answer.reading = _ask(answer, [(position, watch.windows(watch.passed, position))])
    return await _settle(answer) if rejects else None


def _has_passed(answer: Answer, pending: _Pending | None) -> bool:
    """Return whether the texts have been scored, and all are accepted."""
    if pending is None or not pending.scores.done():
        return False
    scores = pending.scores
    if scores.cancelled() or scores.exception() is not None:
        return False
    acceptance = answer.watch.acceptance
    return acceptance.passes(acceptance.worst(scores.result()))


async def _settle(answer: Answer) -> Failure | None:
    """Await the score of the text that the scorer is reading, if any; return its failure."""
    reading, answer.reading = answer.reading, None
    return None if reading is None else await _judge(answer, reading)


# 3. Passed text is given out.


def _give_out(answer: Answer) -> None:
    on_text, watch = answer.task.on_text, answer.watch
    count = len(answer.given_out)
    if on_text is None or watch.passed <= count:
        return
    if count or not answer.task.skips("".join(watch.texts[: watch.passed])):
        texts = watch.texts[count : watch.passed]
        on_text("".join(texts))
        answer.given_out += texts


# 4. Failed text is rewound.


async def _repair(answer: Answer, failure: Failure) -> bool:
    """Rewind to before the blamed word and ban it; return whether the answer can continue."""
    watch = answer.watch
    word = await _word_to_replace(answer, failure)
    answer.effort.blocked = word is None
    if word is None:
        return False
    start, end = word
    answer.effort.iterations += 1
    stretch = start - _STRETCH if answer.continues else -1
    if sum(position > stretch for position in answer.rewound_to) >= watch.options.holds:
        return False
    position = await _ban(answer, start, end)
    if answer.task.on_text is None:
        position = min(position, before_half(watch.texts[:position]))
    answer.rewound_to.append(position)
    watch.drop_after(position)
    return True


async def first_rewind(answer: Answer, failure: Failure) -> int:
    """Return the position to which a failed answer would be rewound, or before which it ends."""
    word = await _word_to_replace(answer, failure)
    return answer.watch.passed if word is None else await _ban(answer, *word)


async def _word_to_replace(answer: Answer, failure: Failure) -> tuple[int, int] | None:
    """Return where the blamed word begins and ends, or None if it must not be replaced."""
    if answer.watch.acceptance.blocks(failure.score):
        return None
    start, end = await _pass_up_to_blame(answer, failure)
    chat, texts = answer.task.chat, answer.watch.texts
    if chat is not None:
        said = "\n".join(message.content for message in chat.messages)
        if is_protected("".join(texts[:start]), "".join(texts[start:end]), said):
            return None
    return start, end


async def _pass_up_to_blame(answer: Answer, failure: Failure) -> tuple[int, int]:
    """Return where the blamed word begins and ends.

    The words that it may be are scored; those before it pass, and are given out.
    """
    watch, words, start = answer.watch, failure.words, failure.start
    if len(words) == 1:
        return start, words[0]
    watch.drop_after(words[-1])
    positions = [(position, watch.windows(watch.passed, position)) for position in words[:-1]]
    end = words[-1]
    for position, scores in await _ask(answer, positions).by_position():
        worst = watch.acceptance.worst(scores)
        if watch.is_suspicious(worst):
            end = position
            break
        start = position
        may_stop = maybe_stops(answer.task.settings.stop, watch.texts, position)
        is_empty = is_nearly_empty("".join(watch.texts[:position]))
        if answer.continues and not (may_stop or is_empty):
            watch.judge(position, worst)
    _give_out(answer)
    return start, end


async def _ban(answer: Answer, start: int, end: int) -> int:
    """Ban the word between two positions; return the position to continue from."""
    texts, letters = answer.watch.texts, range(start, end)
    position = next((index for index in letters if has_letter(texts[index])), start)
    while position > start and not texts[position - 1]:  # back to the character's first token
        position -= 1
    ids = tuple(answer.watch.ids[position:end])
    if ids:
        ban = await answer.engine.ban(ids)
        position += ban.position
        if ban.everywhere or not answer.continues:
            answer.banned = tuple(dict.fromkeys((*answer.banned, *ban.token_ids)))
        else:
            _ban_next(answer, position, ban.token_ids)
    return position if answer.continues else 0


def _ban_next(answer: Answer, position: int, token_ids: Sequence[Token]) -> None:
    """Ban tokens at one position, and only after the tokens that now precede this position."""
    before = tuple(answer.watch.ids[:position])
    answer.banned_next[before] = (*answer.banned_next.get(before, ()), *token_ids)


# The end of the answer.


def _cut_off(answer: Answer, reason: FinishReason = "length") -> bool:
    """End the answer after the passed text; return whether any text has passed."""
    watch, given_out = answer.watch, answer.given_out
    if watch.passed == 0:
        return False
    watch.drop_after(watch.passed)
    if not answer.continues and watch.texts[: len(given_out)] != given_out:
        return False
    _give_out(answer)
    answer.ended = reason
    return True


def finish(answer: Answer, *, passed: bool) -> Trial:
    """Build the result; see `trial_of`."""
    watch, chosen = answer.watch, None
    if passed:
        assert answer.ended is not None
        _record(answer, len(watch.ids), watch.worst(), answer.ended)
        chosen = len(answer.effort.trace) - 1
    return trial_of(answer.task, answer.effort, chosen, passed=passed, given_out=answer.given_out)


def _record(answer: Answer, position: int, score: TextScore, reason: FinishReason) -> None:
    """Append the answer up to `position` to the trace."""
    text = "".join(answer.watch.texts[:position])
    answer.effort.record(
        text,
        score,
        position,
        reason,
        empty=answer.task.skips(text),
        failed=answer.watch.acceptance.failed(score),
        kept_tokens=min(answer.kept, position),
    )

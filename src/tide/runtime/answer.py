"""Runs one trial of a prompt: a loop that writes, scores, gives out and repairs text.

    while the answer has not ended:
        1. the model writes                          (`Answer._write`)
        2. the text so far is scored                 (`Answer._ask`, `_judge`)
        3. passed text is given out                  (`Answer._give_out`)
        4. failed text is removed from the blamed word on, and this word is banned
                                                     (`Answer._repair`)

A search strategy writes whole answers instead, as in the paper (`Answer._search`). An answer that
may contain tool calls or reasoning is drawn as a whole, and drawn again if it fails
(`Answer._draw`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import anyio

from tide.core.chat import Chat, Parts
from tide.core.errors import DeadlineError, UnresolvedError
from tide.core.results import Role, ScoredCompletion, Trial
from tide.core.seeds import derive_seed
from tide.core.settings import Sampling, Settings
from tide.core.strings import Unread, readings, strings_of_json
from tide.core.text import HALF, before_half, has_letter, last_whole, maybe_stops, word_starts
from tide.engines.base import Engine, FinishReason, Piece, Prompt, Request
from tide.runtime.search import Effort, Search, start_of
from tide.runtime.watch import AGAIN, Failure, Watch
from tide.scorers.base import Scores, TextScore, is_blank, is_empty
from tide.scorers.scoring import Scoring
from tide.search import LoadedStrategy
from tide.search.backtrack import BacktrackOptions

# The strategy's option `holds` limits the number of rewinds within this many tokens.
_STRETCH = 32
# The answer ends after this many repairs that left a character incomplete.
_BROKEN_OFF = 4
# Maximum tokens of an unfinished word that are decoded again as the word grows.
_LONGEST_WORD = 64
# Maximum draws of an answer that is drawn as a whole, and minimum temperature after the first draw.
_DRAWS, _WARM = 4, 0.7


@dataclass(frozen=True)
class TrialTask:
    """The input of one trial of a prompt. number: index of the trial.

    priority: place in the queue; the lowest goes first. on_text: called with each accepted part
    of the text. chat: the messages of the prompt, if the prompt is a chat.
    """

    prompt: Prompt
    settings: Settings
    strategy: LoadedStrategy
    number: int
    priority: int
    on_text: Callable[[str], None] | None = None
    chat: Chat | None = None

    @property
    def in_parts(self) -> bool:
        """Whether the answer is drawn and scored as a whole."""
        return self.settings.in_parts(self.chat)

    @property
    def seed(self) -> int:
        return derive_seed(self.settings.seed, self.prompt.text, self.number)


# Places in the answer, each with its windows of text, and a future of the windows' scores.
_Asked = tuple[list[tuple[int, list[str]]], asyncio.Future[Scores]]


class Answer:
    """Runs one trial of a prompt."""

    def __init__(self, task: TrialTask, engine: Engine, scoring: Scoring) -> None:
        self._task, self._engine, self._scoring = task, engine, scoring
        self._settings = settings = task.settings
        # If the engine cannot continue a partial answer to a chat, the answer is scored at its end.
        self._goes_on = engine.supports_continuation(task.prompt.token_ids)
        options = task.strategy.options
        self._rewinds = isinstance(options, BacktrackOptions)
        if not isinstance(options, BacktrackOptions):
            options = BacktrackOptions(pace="whole")
        pace = scoring.pace if options.pace == "auto" else options.pace
        own = {"pace": pace if self._goes_on else "whole"}
        self._watch = Watch(settings, options.model_copy(update=own))
        # A screen is used only if windows reach back to the last place that the scorer scored.
        self._screened = scoring.has_screen and settings.window_tokens >= 2 * AGAIN
        self._effort = Effort()
        self._prefix_cache = engine.prefix_cache() if self._rewinds else None
        self._ended: FinishReason | None = None
        self._chosen: int | None = None  # index in the trace; None while the answer is drafted
        self._found = False  # whether a search has found a text that passes
        self._places: list[int] = []  # places to which the answer was rewound
        self._banned: tuple[int, ...] = ()
        self._banned_next: dict[tuple[int, ...], tuple[int, ...]] = {}  # by all ids before
        self._parts = self._parts_given = Parts()  # parts of the last draw, and the parts given out
        self._broken_off = self._draws = self._given_out = self._kept = 0
        self._at_end = self._base_partial = False  # whether the text has ended; see `Trial`

    async def run(self) -> Trial:
        """Run the trial. Raises DeadlineError if no text was scored in time; see also `_trial`."""
        seconds = self._settings.deadline
        with anyio.move_on_after(seconds) as scope:
            passed = await self._write()
        if scope.cancelled_caught:
            passed = self._cut_off()
            if not passed and not self._effort.trace:
                raise DeadlineError(f"no text was scored within {seconds:g} s")
        return self._trial(passed)

    async def _write(self) -> bool:
        """Write the answer; return whether it has passed."""
        if self._task.in_parts:
            return await self._draw()
        if not self._rewinds:
            return await self._search()
        while self._ended is None:
            failure = await self._draft()
            if self._broken_off == _BROKEN_OFF:
                return self._cut_off()
            if failure is not None and not await self._repair(failure):
                return False
        return True

    # 1. The model writes.

    async def _draft(self) -> Failure | None:
        """Let the model write until the text ends or fails; return the failure, if any."""
        watch, effort = self._watch, self._effort
        effort.rounds += 1
        self._chosen, self._kept = None, len(watch.ids)
        asked = new = ended = failure = None
        try:
            async with aclosing(self._written()) as pieces:
                async for ended in pieces:
                    if self._places and self._goes_on and self._breaks_off(ended is not None):
                        return None
                    self._at_end = ended is not None
                    if self._at_end and is_empty(watch.text):
                        failure = watch.judge(len(watch.texts), self._score_of_empty())
                        break
                    new, due = self._ask(), None
                    if watch.options.pace == "word":  # judged before the next piece
                        due = new
                    elif new or ended:  # a slow scorer has until the next place
                        due, asked = asked, new
                    if due and (failure := await self._judge(due)) is not None:
                        break
            if failure is None:
                failure = (await self._judge(asked) if asked else None) or watch.finish()
        finally:
            for one in filter(None, (asked, new)):
                one[1].cancel()
        self._give_out()
        if failure is None:
            self._ended = ended
            return None
        if not effort.trace:
            self._base_partial = not (self._at_end and failure.place == len(watch.texts))
        self._record(failure.place, failure.score, "length")
        return failure

    async def _written(self) -> AsyncGenerator[FinishReason | None, None]:
        """Append pieces up to a stop string; yield None after each, last the finish reason."""
        watch, effort, written = self._watch, self._effort, tuple(self._watch.ids)
        settled = len(written)  # number of tokens whose texts are final
        ended: FinishReason | None = None
        drawn = len(self._places) + self._broken_off + self._draws
        request = Request(
            self._task.prompt.token_ids + written,
            self._sampling(),
            derive_seed(self._task.seed, "sampling", drawn),
            banned_token_ids=self._banned,
            banned_first_ids=self._banned_next.get(written, ()),
            priority=self._task.priority,
            prefix_cache=self._prefix_cache,
            # Larger pieces cost a server less, but waste more tokens if the text fails.
            piece_tokens={"whole": None, "word": 1}.get(watch.options.pace, 4),
        )
        async with aclosing(self._pieces(request)) as pieces:
            while ended is None:
                piece = await anext(pieces)
                ended = piece.finish_reason
                watch.ids += piece.token_ids
                effort.generated_tokens += len(piece.token_ids) + piece.parts.num_tokens
                effort.read_tokens += piece.read_tokens or 0
                (watch.texts[settled:],) = self._engine.token_texts([watch.ids[settled:]])
                ended = self._stopped() or ended
                self._parts = piece.parts
                yield ended
                settled += max(word_starts(watch.texts[settled:]), default=0)
                if len(watch.texts) - settled > _LONGEST_WORD:
                    settled = last_whole(watch.texts)

    def _pieces(self, request: Request) -> AsyncGenerator[Piece, None]:
        return self._engine.write(request)

    def _breaks_off(self, ended: bool) -> bool:
        """Rewind if the model left a character incomplete and wrote on; return whether it did.

        Bans of other characters can cause this. The repair is then drawn again from before the
        character. An incomplete character at the end of the answer is removed instead.
        """
        new = self._watch.texts[self._kept :]
        half = self._kept + before_half(new)
        if HALF not in "".join(new).rstrip(HALF):
            if ended:
                del self._watch.texts[half:], self._watch.ids[half:]
            return False
        self._ban_next(half, self._watch.ids[half : half + 1])
        self._broken_off += 1
        self._watch.rewind(half)
        return True

    def _stopped(self) -> FinishReason | None:
        """Cut the answer before its first stop string; return "stop" if there is a stop string."""
        watch = self._watch
        end = self._settings.stop_in(watch.text) if self._settings.stop else None
        if end is not None:  # passed text stays
            watch.cut(max(end, len("".join(watch.texts[: watch.passed]))))
        return None if end is None else "stop"

    async def _draw(self) -> bool:
        """Draw whole answers until one passes, at most `_DRAWS`. A drawn answer is never edited."""
        settings, watch = self._settings, self._watch
        for self._draws in range(_DRAWS):
            watch.rewind(0)
            self._effort.rounds += 1
            self._effort.iterations += 1 if self._draws else 0
            async with aclosing(self._written()) as pieces:
                *_, ended = [one async for one in pieces]
            assert ended is not None
            self._parts_given = given_out(self._parts, settings, self._task.seed)
            score = await self._judge_whole(watch.text, self._parts)
            called = settings.tool_calls == "withheld" and bool(self._parts.tool_calls)
            if settings.passes(score.value) and not (called and is_empty(watch.text)):
                watch.keep((), (), score)
                self._ended = ended
                self._give_out()
                return True
            self._record(len(watch.ids), score, ended)
            if settings.passes(score.value):
                break  # the answer has only tool calls, which are withheld
        return False

    # 2. The text so far is scored.

    async def _judge_whole(self, text: str, parts: Parts) -> TextScore:
        """Score all texts of a whole answer; return the highest score, or 1 for unreadable JSON."""
        has_format = "response_format" in (self._task.chat.asked if self._task.chat else ())
        try:
            texts = texts_of(text, parts, self._settings, has_format=has_format)
        except Unread:
            return TextScore(1.0)
        if len(texts) == 1 and is_empty(text):
            return self._score_of_empty()
        self._effort.scorer_calls += len(texts)
        return (await self._scoring.send(texts, is_blank)).worst()

    def _ask(self) -> _Asked | None:
        if not (places := self._watch.asks(ended=self._at_end)):
            return None
        texts = [text for _, windows in places for text in windows]
        self._effort.scorer_calls += len(set(texts))
        return places, self._scoring.send(texts, is_blank, screened=self._screened)

    async def _judge(self, asked: _Asked) -> Failure | None:
        """Await the scores of places; return the first failure, if any."""
        (places, found), watch, failure = asked, self._watch, None
        every = (await found).split([len(windows) for _, windows in places])
        for (place, windows), scores in zip(places, every, strict=True):
            worst = scores.worst()
            if self._screened and not self._settings.passes(worst.value):
                if not watch.decides(place, ended=self._at_end):
                    continue
                worst = (await self._scoring.send(windows, is_blank)).worst()
            if (failure := watch.judge(place, worst)) is not None:
                break
        self._give_out()
        return failure

    def _score_of_empty(self) -> TextScore:
        """Return the score of a nearly empty answer, which no scorer scores.

        The model's own empty answer is not repaired, but it is not accepted either: see `Trial`.
        """
        is_own = not self._effort.trace
        return TextScore(0.0 if is_own or self._settings.accept_empty else 1.0, empty=True)

    # 3. Passed text is given out.

    def _give_out(self) -> None:
        on_text, passed, texts = self._task.on_text, self._watch.passed, self._watch.texts
        if on_text is None or passed == self._given_out:
            return
        if self._given_out or not is_empty("".join(texts[:passed])):
            on_text("".join(texts[self._given_out : passed]))
            self._given_out = passed

    # 4. Failed text is rewound.

    async def _repair(self, failure: Failure) -> bool:
        """Rewind to before the blamed word and ban it; return whether the answer can continue."""
        watch = self._watch
        start, end = await self._blamed(failure)
        self._effort.iterations += 1
        stretch = start - _STRETCH if self._goes_on else -1
        if sum(place > stretch for place in self._places) >= watch.options.holds:
            watch.rewind(watch.passed)
            return False
        place = await self._ban(start, end)
        if self._task.on_text is None:
            place = min(place, before_half(watch.texts[:place]))
        self._places.append(place)
        watch.rewind(place)
        return True

    async def _ban(self, start: int, end: int) -> int:
        """Ban the word between two places; return the place to continue from."""
        texts, letters = self._watch.texts, range(start, end)
        place = next((one for one in letters if has_letter(texts[one])), start)
        while place > start and not texts[place - 1]:  # back to the character's first token
            place -= 1
        ids = tuple(self._watch.ids[place:end])
        if ids and self._watch.options.hold:
            ban = await self._engine.ban(ids)
            place += ban.kept
            if ban.everywhere or not self._goes_on:
                self._banned = tuple(dict.fromkeys((*self._banned, *ban.token_ids)))
            else:
                self._ban_next(place, ban.token_ids)
        return place if self._goes_on else 0

    def _ban_next(self, place: int, token_ids: Sequence[int]) -> None:
        """Ban tokens at one place, and only after the tokens that now precede this place."""
        before = tuple(self._watch.ids[:place])
        self._banned_next[before] = (*self._banned_next.get(before, ()), *token_ids)

    async def _blamed(self, failure: Failure) -> tuple[int, int]:
        """Find where the blamed word begins and ends. All text before the word has passed."""
        watch, words, start = self._watch, failure.words, self._watch.passed
        if len(words) > 1:
            watch.rewind(words[-1])
            windows = [watch.windows(start, place) for place in words[:-1]]
            texts = [text for some in windows for text in some]
            self._effort.scorer_calls += len(set(texts))
            every = (await self._scoring.send(texts, is_blank)).split(list(map(len, windows)))
            for place, scores in zip(words[:-1], every, strict=True):
                worst = scores.worst()
                if worst.value >= watch.level:
                    words = (place,)
                    break
                start = place
                before, stop = watch.texts[:place], self._settings.stop
                if self._goes_on and not (maybe_stops(stop, before) or is_empty("".join(before))):
                    watch.judge(place, worst)
            self._give_out()
        return start, words[-1]

    async def _search(self) -> bool:
        """Search for a whole answer that passes; return whether one was found."""
        settings, task, effort = self._settings, self._task, self._effort
        problem, request = start_of(task.prompt, settings, task.seed, self._engine)
        request = replace(request, priority=task.priority)
        strategy = task.strategy.create(problem, settings)
        search = Search(strategy, request, self._engine, self._scoring, effort, settings)
        try:
            await search.run()
        finally:
            if effort.trace:
                self._chosen = search.best
                self._found = settings.passes(search.scores[search.best])
        if not self._found:
            return False
        self._show_found()
        return True

    def _show_found(self) -> None:
        """Give out the text that a search found."""
        found = self._effort.trace[self._chosen or 0]
        if self._task.on_text is not None and not found.empty:
            self._task.on_text(found.text)

    def _sampling(self) -> Sampling:
        """Return the sampling settings for the rest of the answer."""
        settings, kept = self._settings, len(self._watch.ids)
        most = settings.max_new_tokens - kept
        repaired = self._places and "min_new_tokens" in self._engine.capabilities
        least = max(settings.min_new_tokens, self._watch.options.least if repaired else 0)
        update = {
            "max_new_tokens": most,
            "min_new_tokens": min(max(0, least - kept), most),
            "temperature": max(settings.temperature, _WARM if self._draws else 0.0),
        }
        return settings.sampling.model_copy(update=update)

    def _record(self, place: int, score: TextScore, reason: FinishReason) -> None:
        """Append the answer up to `place` to the trace."""
        text = "".join(self._watch.texts[:place])
        role: Role = "continuation" if self._effort.trace else "initial"
        has_parts = self._task.in_parts and (self._parts_given.reasoning or self._parts.tool_calls)
        self._effort.trace.append(
            ScoredCompletion(
                round=self._effort.rounds,
                iteration=self._effort.iterations,
                role=role,
                text=text,
                toxicity=score.value,
                empty=is_empty(text) and not has_parts,
                cosine=1.0,
                displacement=0.0,
                num_tokens=place,
                finish_reason=reason,
                kept_tokens=min(self._kept, place),
                attributes=score.attributes,
            )
        )

    def _cut_off(self) -> bool:
        """End the answer after the passed text; return whether any text has passed."""
        if self._found:
            self._show_found()
            return True
        if self._watch.passed == 0:
            return False
        self._watch.rewind(self._watch.passed)
        self._give_out()
        self._ended, self._chosen = "length", None
        return True

    def _trial(self, passed: bool) -> Trial:
        """Build the result; raise UnresolvedError if nothing passed with on_unresolved="raise"."""
        task, settings, effort, watch = self._task, self._settings, self._effort, self._watch
        trace, limit = effort.trace, settings.toxicity_threshold
        if not passed and settings.on_unresolved == "raise":
            raise UnresolvedError(f"no text below {limit} in {effort.iterations} iterations")
        if passed and self._chosen is None:
            assert self._ended is not None
            self._record(len(watch.ids), watch.worst(), self._ended)
            self._chosen = len(trace) - 1
        elif self._chosen is None:
            self._chosen = min(range(len(trace)), key=lambda number: trace[number].toxicity)
        empty, shown = trace[self._chosen].empty, task.on_text is not None
        # No scorer has scored an empty text. A stream never accepts it.
        unscored = empty and (shown or not settings.accept_empty)
        refused = (empty and shown) or (not passed and settings.on_unresolved == "refuse")
        shown_tokens = self._given_out if refused else 0
        shares = self._rewinds or settings.perturb.startswith("last:")
        return Trial(
            number=task.number,
            seed=task.seed,
            accepted=passed and not unscored,
            refused=refused,
            chosen=self._chosen,
            iterations=effort.iterations,
            trace=tuple(trace),
            scorer_calls=effort.scorer_calls,
            prompt_tokens=len(task.prompt.token_ids),
            generated_tokens=effort.generated_tokens,
            # 0 means that every evaluation of a search prefilled the prompt, as the paper counts.
            read_tokens=effort.read_tokens if shares else 0,
            base_partial=self._base_partial,
            shown="".join(watch.texts[:shown_tokens]),
            shown_tokens=shown_tokens,
            parts=self._parts_given if passed and not refused else Parts(),
        )


def texts_of(text: str, parts: Parts, settings: Settings, *, has_format: bool) -> list[str]:
    """List the texts of an answer to score. Raises Unread if required JSON cannot be parsed."""
    found = [text]
    if settings.reasoning == "scored":
        found.append(parts.reasoning)
    if settings.tool_calls == "scored":
        for call in parts.tool_calls:
            found += [call.name, *_texts_of_json(call.arguments or "{}")]
    if has_format and not (parts.tool_calls and is_empty(text)):
        found += _texts_of_json(text)
    return list(dict.fromkeys(found))


def _texts_of_json(text: str) -> list[str]:
    """List a JSON text, its strings and keys, and last all strings and keys joined by spaces."""
    strings = strings_of_json(text)
    return [*readings(text), *strings, " ".join(strings)]


def given_out(parts: Parts, settings: Settings, seed: int) -> Parts:
    """Return the parts of a passed answer to give out; new call ids replace the server's ids."""
    calls = [
        # Ids from a server are unscored text. Mistral's models require ids of 9 letters and digits.
        call.model_copy(update={"id": f"{derive_seed(seed, 'call', number):09x}"[-9:]})
        for number, call in enumerate(parts.tool_calls)
    ]
    return Parts(
        reasoning="" if settings.reasoning == "withheld" else parts.reasoning,
        tool_calls=() if settings.tool_calls == "withheld" else tuple(calls),
        num_tokens=parts.num_tokens,
    )

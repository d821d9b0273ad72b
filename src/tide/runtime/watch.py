"""Follows a growing answer: appends what the model writes, chooses where the answer is scored, and
finds where it fails.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import chain

from tide.core.text import (
    LEAST,
    MOST,
    begins_word,
    cut,
    ends_sentence,
    last_whole,
    maybe_stops,
    start_before,
    word_ends,
    word_starts,
)
from tide.engines.base import Engine, Piece, Token
from tide.runtime.acceptance import Acceptance
from tide.runtime.trial import Effort
from tide.scorers.base import TextScore, is_nearly_empty
from tide.search.backtrack import BacktrackOptions

# Maximum tokens that are held back while a passing score is suspicious. A rewind can then reach the
# word at which the score rose.
_HELD = 16
# A long answer is also scored in windows of this many times `window_tokens`.
_WIDER = 3
# While the screen rejects a text, the scorer itself scores the text after every this many tokens.
_AGAIN = 8
# Maximum tokens of an unfinished word that are decoded again as the word grows.
_LONGEST_WORD = 64


@dataclass(frozen=True)
class Failure:
    """The answer failed at `position`, with this score.

    The word to blame begins at `start` or later and ends at one of `words`: the positions of word
    ends up to the first suspicious position.
    """

    position: int
    score: TextScore
    start: int
    words: tuple[int, ...]


@dataclass
class Watch:
    """Follows one answer token by token. A *position* is a number of tokens from its start.

    ids, texts: the answer's token ids and token texts; the caller appends to both. options: `pace`
    (not "auto") sets how often the answer is scored. A failure becomes final after `lag` further
    positions or at the next sentence's end, unless the answer passes at one of these positions; a
    failure with a score of `at_once` or more is final immediately. screened: the scorer's screen
    scores all positions, and the scorer itself those for which `ends` or `note_rejection` is true.
    window: that of the scorer, or 0 (see `Scorer`). ends_word: whether the next token begins a
    word. passed: the position up to which text may be given out; the text that ends exactly there
    (in a long answer, only its last words) was scored by the scorer itself and passed.

    The caller handles the positions that `asks` returns in their order: with a screen it calls
    `note_acceptance` or `note_rejection`, and `judge` where the scorer itself has scored. After the
    last position it calls `finish`.
    """

    acceptance: Acceptance
    options: BacktrackOptions
    screened: bool = False
    ids: list[Token] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    window: int = 0
    ends_word: bool = False
    passed: int = 0
    scores: list[tuple[int, TextScore]] = field(default_factory=list)  # by judged position
    _requested: list[int] = field(default_factory=lambda: [-1])
    _examined: int = 0  # no further position up to here is scored
    _sentences: list[int] = field(default_factory=lambda: [0])  # positions of sentence ends
    _risen: int = 0  # the first suspicious position after `passed`, or 0
    _before_rise: int = 0  # the last position before `_risen` at which nothing was suspicious
    _screen_rejects: bool = False  # at the last position
    _failed: tuple[int, TextScore] | None = None  # the first failed position; not final yet
    _waited: int = 0  # number of positions judged after `_failed`
    _undecided: int = -1  # the last position that neither passed nor failed
    _decided: int = -_AGAIN  # the last position that the scorer scored where its screen rejects

    def is_suspicious(self, score: TextScore) -> bool:
        """Return whether the score reaches the share `blame` of a limit."""
        level = self.options.blame * self.acceptance.settings.toxicity_threshold
        return self.acceptance.scaled(score) >= level

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def asks(self, *, ended: bool) -> list[tuple[int, list[str]]]:
        """Return the positions to score now, ascending, each with its windows of text.

        ended: whether the answer is complete. Each window ends at its position. There are two: the
        last `window_tokens` of the text and three times as many; in a short answer both are the
        whole text. They begin before any failure that is not final. A scorer with a `window` of
        its own gets one text, of at least as many tokens.
        """
        requests: list[tuple[int, list[str]]] = []
        while (position := self._next(ended)) is not None:
            after = self._requested[-self.options.lag - 1 :][0]
            read = self._wide if self.screened else self.windows
            requests.append((position, read(after, position)))
            is_end = ended and position == len(self.texts)
            if is_end or self._ends_sentence(position):
                self._sentences.append(position)
            self._requested.append(position)
        return requests

    def _next(self, ended: bool) -> int | None:
        end, start = len(self.texts), max(0, self._requested[-1])
        if self._requested[-1] == end:
            # A stop string may end the answer at a position that was left undecided.
            if not (ended and self._undecided == end):
                return None
            self._undecided = -1
            return end
        stop, pace = self.acceptance.settings.stop, self.options.pace
        if pace != "whole":
            minimum = {"word": 1, "sentence": MOST}.get(pace) or int(pace)
            positions = word_ends(self.texts, max(start, self._examined))
            if self.ends_word and end > start:
                positions = chain(positions, [end])
            for position in positions:
                is_due = position - start >= minimum or self._ends_sentence(position)
                if is_due and self._requested[-1] < 0:
                    is_due = not is_nearly_empty("".join(self.texts[:position]))
                if is_due and not maybe_stops(stop, self.texts, position):
                    return position
                if position < end:  # a line may yet end at `end`
                    self._examined = position
        return end if ended else None

    def _ends_sentence(self, position: int) -> bool:
        """Whether the scorer itself scores a word's end, because a sentence ends there."""
        size = position - self._sentences[-1]
        if size < LEAST or not (self.screened or self.options.pace == "sentence"):
            return False
        return size >= MOST or ends_sentence(self.texts, position)

    def windows(self, after: int, position: int) -> list[str]:
        """Return the texts to score at `position`, if the text up to `after` has been scored."""
        if not self.window:
            return self._wide(after, position)
        start = self._start(min(after, position - self.window))
        return ["".join(self.texts[start:position])]

    def _wide(self, after: int, position: int) -> list[str]:
        """Return the short and the long window for a scorer or screen that reads texts whole."""
        context = self.acceptance.settings.window_tokens
        short, wide = self._start(after - context), self._start(after - _WIDER * context)
        starts = [short] if short == wide else [short, wide]
        return ["".join(self.texts[start:position]) for start in starts]

    def _start(self, position: int) -> int:
        """Return the position where the word at `position` begins."""
        while 0 < position < len(self.texts) and not begins_word(self.texts[position]):
            position -= 1
        return max(0, position)

    def ends(self, position: int) -> bool:
        """Return whether a sentence or the answer ends at a position returned by `asks`."""
        return position in self._sentences

    def note_acceptance(self, position: int) -> None:
        """Note that the screen accepts the next position, which so neither passes nor fails."""
        self._undecided, self._screen_rejects = position, False
        if not self._risen:
            self._before_rise = position

    def note_rejection(self, position: int) -> bool:
        """Note that the screen rejects the next position; return whether the scorer scores it, too.

        The scorer scores the first rejected position, a rejected position after `_AGAIN` tokens,
        the last position of a failure's `lag`, and the end of each sentence. At all other rejected
        positions the text is suspicious, but neither passes nor fails.
        """
        # A screen that rejected the text before may still do so for a word that has passed.
        if not self._risen and not self._screen_rejects:
            self._risen = position
        self._screen_rejects = True
        waits = self._failed is not None
        due = self._waited + 1 >= self.options.lag if waits else position - self._decided >= _AGAIN
        if due or self.ends(position):
            self._decided = position
            return True
        self._waited += waits
        self._undecided = position
        return False

    def judge(self, position: int, score: TextScore) -> Failure | None:
        """Record the score of the next position; return the failure once a failure is final."""
        self.scores.append((position, score))
        if self.acceptance.passes(score):
            self._failed, self._waited = None, 0
            is_beginning = position == self._decided and not self.ends(position)
            suspicious = self.is_suspicious(score) or is_beginning
            if not suspicious or position - self.passed > _HELD:
                self.passed, self._risen = position, 0
                return None
        elif self._failed is None:
            self._failed = self.scores[-1]
        else:
            self._waited += 1
        if not self._risen:
            self._risen, self._before_rise = position, self.passed
        at_once = self.acceptance.highest(score) >= self.options.at_once
        # In the light of the next sentence, a doubtful one may pass.
        ends_again = self._waited > 0 and self.ends(position)
        over = self._waited >= self.options.lag or at_once or ends_again
        return self._failure() if self._failed is not None and over else None

    def finish(self) -> Failure | None:
        """End the answer at the last judged position; return the failure, or None if all passed."""
        position, score = self.scores[-1]
        assert position == len(self.texts)
        if not self.acceptance.passes(score):
            return self._failure()
        self.passed, self._risen = position, 0
        return None

    def _failure(self) -> Failure:
        assert self._failed is not None
        start = max(self.passed, self._before_rise)
        words = (*word_ends(self.texts[: self._risen], start), self._risen)
        return Failure(*self._failed, start, words)

    def drop_after(self, position: int) -> None:
        """Drop the tokens after `position`; `passed` becomes the last position left that passed."""
        del self.ids[position:], self.texts[position:]
        last, passes = min(position, self.passed), self.acceptance.passes
        passed = (at for at, score in self.scores if at <= last and passes(score))
        self.passed = max(passed, default=0)
        self.scores = [entry for entry in self.scores if entry[0] <= self.passed]
        self._requested = [self.passed or -1]
        self._examined = self.passed
        self._sentences = [end for end in self._sentences if end <= self.passed]
        self._risen, self._failed, self._waited = 0, None, 0
        self._before_rise, self._screen_rejects = self.passed, False
        self._decided, self._undecided = -_AGAIN, -1

    def worst(self) -> TextScore:
        """Return the highest score of the passed text or its windows, overall and by attribute."""
        # A later window holds all of the first `window_tokens`, so its score replaces theirs.
        # A later one of the scorer's own `window` may not: the last score of the whole text stays.
        first, passes = self.acceptance.settings.window_tokens + 1, self.acceptance.passes
        passed = {at: score for at, score in self.scores if at <= self.passed and passes(score)}
        if self.window:
            first = max((at for at in passed if at <= self.window), default=0)
        scores = [score for at, score in passed.items() if at >= first] or [self.scores[-1][1]]
        names = set.intersection(*(set(score.attributes) for score in scores))
        attributes = {
            name: max(score.attributes[name] for score in scores) for name in sorted(names)
        }
        return TextScore(max(score.value for score in scores), attributes)


async def written(
    pieces: AsyncGenerator[Piece, None], engine: Engine, watch: Watch, effort: Effort
) -> AsyncGenerator[Piece, None]:
    """Append the engine's pieces to the answer; yield each after it was appended.

    The last piece has the reason why the answer ended; a stop string ends it, too.
    """
    settled = len(watch.ids)  # number of tokens whose texts are final
    effort.usage = None
    async with aclosing(pieces):
        async for piece in pieces:
            watch.ids += piece.token_ids
            watch.ends_word = piece.ends_word
            effort.generated_tokens += len(piece.token_ids) + piece.parts.num_tokens
            effort.read_tokens += piece.read_tokens or 0
            effort.usage, effort.stop_sequence = piece.usage, piece.parts.stop_sequence
            (watch.texts[settled:],) = engine.token_texts([watch.ids[settled:]])
            stop = _stopped(watch, settled)
            if stop is not None:
                effort.stop_sequence = stop
                parts = piece.parts.model_copy(update={"stop_sequence": stop})
                yield replace(piece, finish_reason="stop", parts=parts)
                return
            yield piece
            if piece.finish_reason is not None:
                return
            if piece.ends_word:  # no text up to here can change
                settled = len(watch.texts)
                continue
            settled += max(word_starts(watch.texts[settled:]), default=0)
            if len(watch.texts) - settled > _LONGEST_WORD:
                settled = last_whole(watch.texts)


def _stopped(watch: Watch, settled: int) -> str | None:
    """Cut the answer before its first stop string, and return that string.

    settled: number of tokens whose texts were searched before.
    """
    texts, stop = watch.texts, watch.acceptance.settings.stop
    if not stop:
        return None
    start = start_before(texts, settled, max(map(len, stop)))
    text = "".join(texts[start:])
    end = watch.acceptance.settings.stop_in(text)
    if end is None:
        return None
    stop_string = next(string for string in stop if text.startswith(string, end))
    end += len("".join(texts[:start]))
    # Passed text stays. The cut may shorten the last token's text.
    texts[:] = cut(texts, max(end, len("".join(texts[: watch.passed]))))
    del watch.ids[len(texts) :]
    return stop_string

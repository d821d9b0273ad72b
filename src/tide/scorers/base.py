"""The scorer interface, and the validation of all scores."""

from __future__ import annotations

import inspect
import math
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tide.core.chat import Chat
from tide.core.concurrency import portal_of
from tide.core.errors import (
    SCORER_DOWN,
    ScorerBrokenError,
    ScorerError,
    ScorerUnavailableError,
    TideError,
    described,
    ends_work,
)
from tide.core.fingerprints import code_digest
from tide.core.sanitize import Unread

# One number per text, shape (n,).
Floats = NDArray[np.float64]

# The published code scores a completion with fewer visible characters than this as 0.
_LEAST_VISIBLE = 3
_UNKNOWN_PACE = "8"
_PACE = r"word|sentence|whole|[1-9]\d{0,3}"
_TAGS = range(0xE0000, 0xE0080)
# Whether to leave out a text: it scores 0.0 and is not sent to the scorer.
Skip = Callable[[str], bool]
# Scored after a failure: a scorer that also fails for this text is broken.
HEALTH_TEXT = "The weather is fine today."
# Attribute that is 1 if the second scorer decided, because the first was down; see `fallback:A,B`.
FALLBACK = "fallback"


class Exchange(NamedTuple):
    """An answer, or its beginning, with what it answers.

    context: the prompt of a completion, or the messages before the answer; "" if unknown.
    text: the answer; "" if there is none, and the scorer judges the prompt (`context`) itself, as
    `refuse_prompt_above` asks for. A scorer that can judge only answers then scores `alone`.
    """

    context: str | Chat
    text: str

    @property
    def alone(self) -> str:
        """What a scorer reads that reads no context: the text, or a prompt without an answer.

        Of a chat without an answer, it reads the last user message and all later tool calls and
        tool results. Raises ScorerError if these hide text.
        """
        if self.text:
            return self.text
        if isinstance(self.context, str):
            return self.context
        try:
            return "\n".join(self.context.unanswered)
        except Unread as error:
            raise ScorerError(f"the chat's tool calls or results cannot be read: {error}") from None


# What callers may score: a text alone is an exchange without context.
Scored = str | Exchange


@runtime_checkable
class Scorer(Protocol):
    """Maps texts, or exchanges, to toxicity scores.

    These members are required, `close` may do nothing:

    Attributes:
        name: Includes a version or revision, so that a record identifies the scorer.
        threshold: Suggested threshold; a text that scores this or more is toxic.

    All further members are optional:

    Attributes:
        reads: "text" if `score` takes texts (the default), or "exchange" if it takes `Exchange`s,
            which are texts with the prompt or conversation before them.
        pace: When to score a growing text: after each "word" or "sentence", after every N tokens (a
            number), or only when it is "whole". 8 tokens by default.
        quick: Whether `score` takes less than a tenth of a millisecond for a short text and may run
            in several threads at once. It then runs between two tokens, in the thread of the model.
            False by default, and always for an asynchronous scorer and for one that reads
            exchanges, since a conversation may be long.
        concurrent: Whether `score` may run in several threads at once, so that a slow text delays
            no other. False by default, and always True for a quick or asynchronous one.
        languages: The languages that the scorer reads, such as `("en",)`. Unknown by default.
        attributes: The names of attributes of a text, such as threat and insult; none by default.
            A scorer with attributes also has `score_attributes`, which is called instead of
            `score` and returns an `Attributed`.
        highest_of: The attributes whose highest value is the score; none by default, which means
            that the score is computed otherwise. See the setting `thresholds`.
        fallback: Name of the scorer that decides while this one is down; none by default.
        window: Of a growing text, the scorer gets at least this many tokens of the model at the
            end, instead of a short and a long window. For a scorer that reads a longer text in
            parts, each at the cost of a call.
        screen: A quicker scorer, or None (default). Of a growing text, the scorer itself scores
            what the screen rejects, and each sentence and the whole text at its end. What only
            the screen has scored is not given out.
        scorers: The scorers that a wrapper calls; none by default.
    """

    name: str
    threshold: float

    def score(self, texts: Sequence[Any]) -> Floats:
        """Return toxicities in [0, 1], shape (len(texts),), each independent of other texts.

        texts: of type `str`, or `Exchange` if `reads` is "exchange".
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class AsyncScorer(Protocol):
    """A `Scorer` with an asynchronous `score`, for example one that queries a service.

    All calls of `score` run in one event loop, in a thread of this scorer, so that the scorer can
    keep one client open; up to eight calls run side by side. A call is cancelled when its deadline
    passes or no caller waits for it.
    """

    name: str
    threshold: float

    async def score(self, texts: Sequence[Any]) -> Floats:
        """Like `Scorer.score`."""
        ...

    def close(self) -> object:
        """Release what the scorer holds. An `async def` runs in the loop of `score`."""
        ...


def code_of(scorer: Scorer) -> str:
    """Return a digest of the code of the scorer and of those that it wraps; "" for TIDE's own.

    Records and cached scores of other code under the same name are not this scorer's.
    """
    if isinstance(scorer, Adapter):
        return code_of(scorer.adapted)
    inner = [code_of(wrapped) for wrapped in getattr(scorer, "scorers", ())]
    digests = [digest for digest in (code_digest(type(scorer)), *inner) if digest]
    return "+".join(digests)


class TextScore(NamedTuple):
    """The score of one text and its known attributes, all in [0, 1].

    unscored: the text was not sent to the scorer, because it is (nearly) empty.
    """

    value: float
    attributes: Mapping[str, float] = {}
    unscored: bool = False


class Scores(list[TextScore]):
    """The scores of texts, in their order."""

    @property
    def values(self) -> Floats:
        return np.array([score.value for score in self], dtype=np.float64)


class Attributed(NamedTuple):
    """Scores and attributes of n texts: arrays of shape (n,) with values in [0, 1].

    An unknown attribute of a text is NaN; a score is never NaN.
    """

    values: Floats
    attributes: Mapping[str, Floats]

    @classmethod
    def of(cls, rows: Sequence[TextScore], names: Sequence[str]) -> Attributed:
        """Convert rows to columns. names: attributes to include; missing attributes are NaN."""
        columns = {name: [row.attributes.get(name, math.nan) for row in rows] for name in names}
        return cls(
            np.array([row.value for row in rows], dtype=np.float64),
            {name: np.array(column, dtype=np.float64) for name, column in columns.items()},
        )

    def rows(self) -> Scores:
        """Return the score of each text."""
        columns = [(name, column.tolist()) for name, column in self.attributes.items()]
        rows = Scores()
        for row, value in enumerate(self.values.tolist()):
            known = {name: column[row] for name, column in columns if not math.isnan(column[row])}
            rows.append(TextScore(value, known))
        return rows

    def worst(self, owners: Sequence[int], count: int) -> Attributed:
        """Return the highest scores among the parts of each of `count` texts.

        owners: of each part, the number of its text.
        """

        def highest(values: Floats) -> Floats:
            of_texts = np.zeros(count)
            np.maximum.at(of_texts, np.asarray(owners, dtype=np.int64), values)
            return of_texts

        attributes = {name: highest(column) for name, column in self.attributes.items()}
        return Attributed(highest(self.values), attributes)


class PlainScorer:
    """Base of scorers whose threshold is 0.5, and whose calls may run in an event loop.

    A scorer that holds more than this loop, such as a model, releases it in a `close` of its own.
    """

    threshold = 0.5

    def close(self) -> None:
        """Cancel running calls, and end the event loop."""
        if (portal := vars(self).get("_portal")) is not None:
            portal.close()


class AttributedScorer(PlainScorer, ABC):
    """Base of scorers that also score attributes of a text, such as threat and insult.

    The score is computed from the attributes (usually as their maximum), in the same pass.
    attributes: names in the model or service; () if there are none. highest_of: the attributes
    whose highest value is the score; () if the score is computed otherwise. A class with another
    base has attributes if it defines `attributes` and `score_attributes`.
    """

    attributes: tuple[str, ...] = ()
    highest_of: tuple[str, ...] = ()

    @abstractmethod
    def score_attributes(self, texts: Sequence[Any]) -> Attributed: ...

    def score(self, texts: Sequence[Any]) -> Floats:
        return self.score_attributes(texts).values


class ScorerWrapper(AttributedScorer):
    """A scorer around one or more scorers, with all members of `Scorer`.

    It asks its scorers by `score_attributes`; as each of them is a wrapper or an `Adapter`, their
    answers are valid, and so is its own. Name and threshold are those of the first scorer, unless
    the subclass sets others. It has the attributes of all scorers, and the languages that every
    scorer reads. It reads exchanges if one of the scorers does.
    """

    name: str
    reads: str = "text"
    pace: str
    quick: bool
    concurrent: bool
    window: int
    fallback: str
    languages: tuple[str, ...] | None
    scorers: tuple[ScorerWrapper, ...] = ()
    screen: ScorerWrapper | None = None

    def __init__(self, *scorers: Scorer) -> None:
        self.scorers = tuple(map(adapted, scorers))
        first = self._scorer = self.scorers[0]
        is_single = len(scorers) == 1
        self.name, self.threshold = first.name, first.threshold
        if any(scorer.reads == "exchange" for scorer in self.scorers):
            self.reads = "exchange"
        tokens = {"word": 1, "sentence": 32, "whole": 1 << 30}
        # The slowest pace, since all are called together.
        paces = [scorer.pace for scorer in self.scorers]
        self.pace = max(paces, key=lambda pace: tokens.get(pace) or int(pace))
        self.quick = all(scorer.quick for scorer in self.scorers)
        self.concurrent = all(scorer.concurrent for scorer in self.scorers)
        names = [name for scorer in self.scorers for name in scorer.attributes]
        self.attributes = tuple(dict.fromkeys(names))
        self.highest_of = first.highest_of if is_single else ()
        self.window = first.window if is_single else 0
        self.fallback = next((scorer.fallback for scorer in self.scorers if scorer.fallback), "")
        read = [{*scorer.languages} for scorer in self.scorers if scorer.languages is not None]
        self.languages = tuple(sorted(set.intersection(*read))) if read else None

    def score(self, texts: Sequence[Scored]) -> Floats:
        return score_texts(self, texts).values

    def close(self) -> None:
        for scorer in self.scorers:
            scorer.close()


class Adapter(ScorerWrapper):
    """Any other scorer, whose optional members it fills in, and whose answers it validates.

    This is the one gate for scores. Raises ScorerError for a misspelt `reads` or `pace`.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.adapted: Any = scorer
        self.name, self.threshold = scorer.name, scorer.threshold
        self.reads = getattr(scorer, "reads", "text")
        if self.reads not in ("text", "exchange"):  # it would get no prompts
            problem = f"reads must be text or exchange (got {self.reads!r})"
            raise ScorerError(f"scorer {self.name}: {problem}")
        # A constant, never a measured time, so results do not depend on the machine.
        self.pace = str(getattr(scorer, "pace", _UNKNOWN_PACE))
        if not re.fullmatch(_PACE, self.pace):
            problem = "pace must be word, sentence, whole, or a number of tokens"
            raise ScorerError(f"scorer {self.name}: {problem} (got {self.pace!r})")
        if hasattr(scorer, "score_attributes"):
            self.attributes = getattr(scorer, "attributes", ())
        self._method = "score_attributes" if self.attributes else "score"
        waits = inspect.iscoroutinefunction(getattr(scorer, self._method))
        is_quick = getattr(scorer, "quick", False) is True
        self.quick = is_quick and self.reads == "text" and not waits
        self.concurrent = waits or self.quick or getattr(scorer, "concurrent", False) is True
        self.highest_of = getattr(scorer, "highest_of", ())
        self.window = getattr(scorer, "window", 0)
        self.fallback = getattr(scorer, "fallback", "")
        languages = getattr(scorer, "languages", None)
        if isinstance(languages, str):
            languages = (languages,)
        self.languages = None if languages is None else tuple(languages)
        screen = getattr(scorer, "screen", None)
        self.screen = None if screen is None else adapted(screen)

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        """Return the scores of `texts`, and attributes if the scorer declares any.

        A scorer gets what it reads: texts or exchanges, equal ones once. No texts make no call.
        Raises ScorerUnavailableError if the scorer times out or loses its connection, and
        ScorerError for any other failure, for an invalid answer, and for attributes that differ
        from the declared attributes.
        """
        names = self.attributes
        if not texts:
            return Attributed(np.zeros(0), {name: np.zeros(0) for name in names})
        read: Sequence[Scored] = texts
        if self.reads == "text":
            read = [exchange.alone for exchange in texts]
        distinct = list(dict.fromkeys(read))
        count = len(distinct)
        # Pass a copy, so that a scorer that drops texts from its list fails the length check.
        answer = _called(self.adapted, getattr(self.adapted, self._method), [*distinct])
        answer = validated_answer(self, names, answer if names else Attributed(answer, {}), count)
        if count == len(read):
            return answer
        index_of = {text: index for index, text in enumerate(distinct)}
        rows = [index_of[text] for text in read]
        attributes = {name: column[rows] for name, column in answer.attributes.items()}
        return Attributed(answer.values[rows], attributes)

    def close(self) -> None:
        close_scorer(self.adapted)


def adapted(scorer: Scorer) -> ScorerWrapper:
    """Return the scorer with all members and valid answers: itself if it is a wrapper."""
    return scorer if isinstance(scorer, ScorerWrapper) else Adapter(scorer)


class CallableScorer(PlainScorer):
    """A scorer made from a function that maps a list of texts to a list of scores.

    The function may be an `async def`, and may have the attributes `reads`, `pace`, `quick` and
    `concurrent` (see `Scorer`). name: by default `callable:` and the function's name; a digest of
    the code follows.
    """

    def __init__(self, function: Callable[[list[Any]], Any], name: str = "") -> None:
        function_name = getattr(function, "__qualname__", type(function).__name__)
        code = code_digest(function)
        self.name = (name or f"callable:{function_name}") + (f"@{code}" if code else "")
        self.reads = getattr(function, "reads", "text")
        self.pace = getattr(function, "pace", _UNKNOWN_PACE)
        self.quick = getattr(function, "quick", False)
        self.concurrent = getattr(function, "concurrent", False)
        self.score: Callable[..., Any] = function


def is_nearly_empty(text: str) -> bool:
    """Whether `text` has fewer than 3 visible characters, all of them ASCII.

    A single character of another script may be a whole word, so a text with one is not empty.
    """
    visible = islice(filter(_is_visible, text), _LEAST_VISIBLE)
    return sum(1 if c.isascii() else _LEAST_VISIBLE for c in visible) < _LEAST_VISIBLE


def is_blank(text: str) -> bool:
    """Whether `text` has no visible character at all."""
    return not any(map(_is_visible, text))


def _is_visible(c: str) -> bool:
    """Whether people can see a character, or some models read it (invisible tag characters)."""
    if c.isspace():
        return False
    kind = unicodedata.category(c)
    return kind != "Cc" and (kind != "Cf" or ord(c) in _TAGS)


def score_texts(scorer: Scorer, texts: Sequence[Scored], skip: Skip | None = None) -> Scores:
    """Score every text.

    texts: a text alone is an exchange without context. skip: `is_nearly_empty` or `is_blank`; these
    texts score 0.0 and are not sent, whatever their context. Raises the errors of `Adapter`.
    """
    scorer = adapted(scorer)
    exchanges = list(map(exchange_of, texts))
    skipped = [skip is not None and skip(exchange.text) for exchange in exchanges]
    sent = [exchange for exchange, left_out in zip(exchanges, skipped, strict=True) if not left_out]
    scores = scorer.score_attributes(sent).rows()
    for number, left_out in enumerate(skipped):
        if left_out:
            scores.insert(number, TextScore(0.0, unscored=True))
    return scores


def split(scores: Sequence[TextScore], sizes: Iterable[int]) -> list[Sequence[TextScore]]:
    """Split scores into groups of these sizes."""
    rest = iter(scores)
    return [list(islice(rest, size)) for size in sizes]


def score_groups(
    scorer: Scorer, groups: Sequence[Sequence[Scored]], skip: Skip | None = None
) -> list[Sequence[TextScore] | ScorerError]:
    """Score groups of texts. Return, for each group, its scores or the scorer's error.

    All texts are sent in one call. If the call fails, each group is scored separately, so that a
    rejected text fails only its group. Raises ScorerUnavailableError, ScorerRefusedError, and
    ScorerBrokenError if the scorer also fails for `HEALTH_TEXT`.
    """
    try:
        together = score_texts(scorer, [text for group in groups for text in group], skip)
    except SCORER_DOWN:
        raise
    except ScorerError as error:
        try:
            score_texts(scorer, [HEALTH_TEXT])
        except SCORER_DOWN:
            raise
        except ScorerError:
            raise ScorerBrokenError(str(error)) from error
        if len(groups) == 1:
            return [error]
        return [scores for group in groups for scores in score_groups(scorer, [group], skip)]
    return [*split(together, map(len, groups))]


def exchange_of(scored: Scored) -> Exchange:
    """Return an exchange; a text alone has no context."""
    return Exchange("", scored) if isinstance(scored, str) else scored


def validated_answer(scorer: Scorer, names: Sequence[str], answer: Any, count: int) -> Attributed:
    """Return valid scores of `count` texts, with the attributes `names`. Raises ScorerError."""
    if not isinstance(answer, Attributed) or set(answer.attributes) != set(names):
        raise ScorerError(
            f"scorer {scorer.name}: the answer's attributes differ from the declared attributes"
        )
    values = validate_scores(scorer.name, answer.values, count)
    attributes = {}
    for name in names:
        named = f"{scorer.name} ({name})"
        attributes[name] = validate_scores(named, answer.attributes[name], count, unknown=True)
    return Attributed(values, attributes)


def close_scorer(scorer: Scorer) -> None:
    """Close a scorer, whose `close` may be asynchronous. Raises ScorerError if it fails."""
    _called(scorer, scorer.close)


def _called(scorer: Scorer, method: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a method returns, awaited if necessary. Exceptions become ScorerErrors."""
    try:
        answer = method(*arguments)
        if not inspect.isawaitable(answer):
            return answer
        try:
            return portal_of(scorer, "scorer", ScorerError).run(lambda: answer)
        finally:
            if (
                inspect.iscoroutine(answer)
                and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED
            ):
                answer.close()  # else Python warns: the coroutine was never awaited
    except TideError:
        raise
    except (TimeoutError, ConnectionError) as error:
        raise ScorerUnavailableError(f"scorer {scorer.name}: {described(error)}") from error
    except BaseException as error:
        if ends_work(error):
            raise
        raise ScorerError(f"scorer {scorer.name} failed: {described(error)}") from error


def validate_scores(name: str, answer: Any, count: int, *, unknown: bool = False) -> Floats:
    """Convert a scorer's answer to an array of `count` scores in [0, 1]. Raises ScorerError.

    The answer must be a list, tuple, array or tensor of numbers. Booleans, masked arrays, dates,
    texts and complex numbers are refused.
    unknown: accept NaN for an unknown value.
    """
    is_usual = type(answer) is np.ndarray and answer.dtype == np.float64
    # The checks below take longer than a quick scorer needs for a text.
    if is_usual and answer.shape == (count,) and all(0 <= value <= 1 for value in answer.tolist()):
        return np.array(answer)
    try:
        values = _numbers(answer)
    except Exception as error:  # third-party classes may raise any exception
        raise ScorerError(
            f"scorer {name}: the answer is not a list of numbers: {described(error)}"
        ) from None
    if values.shape != (count,):
        raise ScorerError(f"scorer {name}: the answer has shape {values.shape}, not ({count},)")
    wrong = ~((values >= 0.0) & (values <= 1.0))  # true for NaN as well
    if unknown:
        wrong &= ~np.isnan(values)
    if wrong.any():
        raise ScorerError(f"scorer {name}: {values[wrong][0]} is not a score; it must be in [0, 1]")
    return values


def _numbers(answer: Any) -> Floats:
    if isinstance(answer, np.ma.MaskedArray):
        raise TypeError("a masked array")
    if hasattr(answer, "detach"):  # a tensor of torch; NumPy has no bfloat16
        answer = answer.detach().cpu()
        answer = answer.double() if answer.is_floating_point() else answer
    values = np.asarray(answer)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"a {type(answer).__name__} of {values.dtype}")
    return values.astype(np.float64)

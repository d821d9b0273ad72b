"""The scorer interface, and the gate that validates all scores."""

from __future__ import annotations

import inspect
import math
import re
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

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
from tide.core.settings import EmptyPolicy

# One number per text, shape (n,).
Floats = NDArray[np.float64]

# The published code scores a completion with fewer visible characters than this as 0.
_LEAST_VISIBLE = 3
_UNKNOWN_PACE = "8"
_PACE = r"word|sentence|whole|[1-9]\d{0,3}"
_TAGS = range(0xE0000, 0xE0080)
# The score of a nearly empty text; "blank": 0.0 without a visible character, else its own score.
TextPolicy = EmptyPolicy | Literal["blank"]
# A scorer that fails for this text, too, is broken; the first text is not to blame.
HEALTH_TEXT = "The weather is fine today."
# Exact types of a number in a list; subclasses may have methods that lie.
_NUMBERS = (float, int, *(np.dtype(code).type for code in "dfegbhilqBHILQ"))


@runtime_checkable
class Scorer(Protocol):
    """Texts in, toxicity out.

    Attributes:
        name: With a version or revision, so that a record says what scored it.
        threshold: A hint: from about this score on, a text is toxic.
        pace: How often to ask it about a growing text: "word" (at each), "sentence", "whole", or a
            number of tokens. A scorer may leave it out; then it is 8 tokens.
    """

    name: str
    threshold: float

    def score(self, texts: Sequence[str]) -> Floats:
        """Toxicity of each text in [0, 1], shape (len(texts),), independent of the others."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class AsyncScorer(Protocol):
    """A `Scorer` that awaits its answers, of a service for instance.

    All its calls run in one event loop, in a thread of the scorer's own, so that it may keep a
    client for its life. A call is cancelled when its deadline passes or its caller leaves.
    """

    name: str
    threshold: float

    async def score(self, texts: Sequence[str]) -> Floats:
        """Like `Scorer.score`."""
        ...

    def close(self) -> None: ...


def pace_of(scorer: Scorer) -> str:
    """How often to ask the scorer about a growing text.

    A constant of the scorer, never a measured time: results must not depend on the machine.
    """
    pace = str(getattr(scorer, "pace", _UNKNOWN_PACE))
    if not re.fullmatch(_PACE, pace):
        raise ScorerError(
            f"scorer {scorer.name}: pace: must be word, sentence, whole, or a number of tokens "
            f"(got {pace!r})"
        )
    return pace


def slowest_pace(scorers: Sequence[Scorer]) -> str:
    """The pace of several scorers that are asked together."""
    tokens = {"word": 1, "sentence": 32, "whole": 1 << 30}
    return max(map(pace_of, scorers), key=lambda pace: tokens.get(pace) or int(pace))


def screen_of(scorer: Scorer) -> Scorer | None:
    """A quicker scorer whose scores are never lower, if the scorer has one as its `screen`.

    A growing text that it passes has passed; where it objects, the scorer itself decides.
    """
    screen: Scorer | None = getattr(scorer, "screen", None)
    return screen


class Said(NamedTuple):
    """The score of one text, and its attributes, in [0, 1]."""

    value: float
    attributes: Mapping[str, float] = {}


class Attributed(NamedTuple):
    """Scores and attributes of n texts, each of shape (n,), in [0, 1].

    An attribute that is not known of a text is NaN; a score is always known.
    """

    values: Floats
    attributes: Mapping[str, Floats]

    @classmethod
    def of(cls, rows: Sequence[Said], names: Sequence[str]) -> Attributed:
        """The rows as columns, with these attributes."""
        columns = {name: [row.attributes.get(name, math.nan) for row in rows] for name in names}
        return cls(
            np.array([row.value for row in rows], dtype=np.float64),
            {name: np.array(column, dtype=np.float64) for name, column in columns.items()},
        )


class PlainScorer:
    """Base of scorers that hold nothing to free and call a text toxic from 0.5 on."""

    threshold = 0.5

    def close(self) -> None:
        """Cancel running calls; there is nothing else to free."""
        if (portal := vars(self).get("_portal")) is not None:
            portal.close()


class AttributedScorer(PlainScorer, ABC):
    """Base of scorers that also score single attributes of a text: threat, insult...

    The score is made of them (the largest of those that were chosen), so both come from one pass.
    attributes: their names, as the model or service calls them; () if there are none. A class that
    does not derive from this one has attributes, too, by these two members.
    """

    attributes: tuple[str, ...]

    @abstractmethod
    def score_attributes(self, texts: Sequence[str]) -> Attributed: ...

    def score(self, texts: Sequence[str]) -> Floats:
        return self.score_attributes(texts).values


class CallableScorer(PlainScorer):
    """Any function from a list of texts to a list of scores; its name, unless one is given.

    It may be an `async def`, as `AsyncScorer`, and may have a `pace`; see `Scorer`.
    """

    # A common mistake: the function takes one text.
    usage = "a function takes a list of texts and returns a list of floats from 0 to 1"

    def __init__(self, function: Callable[[list[str]], Any], name: str = "") -> None:
        own = getattr(function, "__qualname__", type(function).__name__)
        self.name = name or f"callable:{own}"
        self.pace = getattr(function, "pace", _UNKNOWN_PACE)
        self._function = function

    def score(self, texts: Sequence[str]) -> Any:
        """The function's answer, or its awaitable; the caller validates it."""
        return self._function(list(texts))


class Score(NamedTuple):
    """The score of one text; see `Scores`."""

    value: float
    empty: bool
    attributes: dict[str, float]


@dataclass(frozen=True)
class Scores:
    """values: toxicity in [0, 1], shape (n,). empty: bool, shape (n,): which texts say nothing.

    The policy sets the value of empty texts; with the policy "score" the scorer does. attributes:
    by name, shape (n,), if the scorer has some; NaN where one is not known, as of texts not sent.
    """

    values: Floats
    empty: NDArray[np.bool_]
    attributes: Mapping[str, Floats] = field(default_factory=dict)

    def split(self, sizes: Sequence[int]) -> list[Scores]:
        """Split into groups of these sizes."""
        parts = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        return [
            Scores(
                self.values[part],
                self.empty[part],
                {name: column[part] for name, column in self.attributes.items()},
            )
            for part in parts
        ]

    def worst(self) -> Score:
        """The highest of them."""
        row = int(self.values.argmax())
        return Score(float(self.values[row]), bool(self.empty[row]), self.known(row))

    def known(self, row: int) -> dict[str, float]:
        """The attributes of one text."""
        found = {name: float(column[row]) for name, column in self.attributes.items()}
        return {name: score for name, score in found.items() if not math.isnan(score)}


def is_empty(text: str) -> bool:
    """Whether `text` is nearly empty: fewer than 3 visible characters, all of ASCII.

    One of another script may be a whole word, and so it is never empty.
    """
    count = 0
    for c in filter(_is_visible, text):
        count += 1 if c.isascii() else _LEAST_VISIBLE
        if count >= _LEAST_VISIBLE:
            return False
    return True


def is_blank(text: str) -> bool:
    """Whether `text` has no visible character at all."""
    return not any(map(_is_visible, text))


def _is_visible(c: str) -> bool:
    """Whether a character is visible to readers or to models, some of which read invisible tags."""
    if c.isspace():
        return False
    kind = unicodedata.category(c)
    return kind != "Cc" and (kind != "Cf" or ord(c) in _TAGS)


def score_texts(scorer: Scorer, texts: Sequence[str], empty_policy: TextPolicy) -> Scores:
    """Score every text and validate the scores.

    Equal texts are sent once. Nearly empty texts are scored by `empty_policy`. Raises as
    `ask_attributes`.
    """
    without = is_blank if empty_policy == "blank" else is_empty
    empty = np.array([without(text) for text in texts], dtype=np.bool_)
    values = np.full(len(texts), 1.0 if empty_policy == "one" else 0.0)
    sent = [i for i in range(len(texts)) if empty_policy == "score" or not empty[i]]
    distinct = list(dict.fromkeys(texts[i] for i in sent))
    places = {text: place for place, text in enumerate(distinct)}
    rows = [places[texts[i]] for i in sent]
    found = ask_attributes(scorer, distinct)
    values[sent] = found.values[rows]
    attributes = {name: np.full(len(texts), np.nan) for name in found.attributes}
    for name, column in attributes.items():
        column[sent] = found.attributes[name][rows]
    return Scores(values, empty, attributes)


def score_groups(
    scorer: Scorer, groups: Sequence[Sequence[str]], empty_policy: TextPolicy
) -> list[Scores | ScorerError]:
    """The scores of each group of texts, or why the scorer has none for that group.

    All texts are sent together. Where the scorer fails, a group that holds a text it cannot take
    fails alone. Raises ScorerUnavailableError or ScorerRefusedError, and ScorerBrokenError if it
    fails for a text of our own too.
    """
    try:
        together = score_texts(scorer, [text for some in groups for text in some], empty_policy)
    except SCORER_DOWN:
        raise
    except ScorerError as error:
        try:
            _ask(scorer, [HEALTH_TEXT])
        except SCORER_DOWN:
            raise
        except ScorerError:
            raise ScorerBrokenError(str(error)) from error
        if len(groups) == 1:
            return [error]
        return [one for some in groups for one in score_groups(scorer, [some], empty_policy)]
    return [*together.split([len(some) for some in groups])]


def _ask(scorer: Scorer, texts: Sequence[str]) -> Floats:
    # A copy: a scorer that edits its list must not change which score is whose.
    answer = _answer(scorer, lambda: scorer.score(list(texts)))
    return validate_scores(scorer.name, answer, len(texts), usage=getattr(scorer, "usage", ""))


def attributes_of(scorer: Scorer) -> tuple[str, ...]:
    """The names of the scorer's attributes; empty if it has none."""
    names: tuple[str, ...] = getattr(scorer, "attributes", ())
    return names if hasattr(scorer, "score_attributes") else ()


def ask_attributes(scorer: Scorer, texts: Sequence[str]) -> Attributed:
    """Validated scores of `texts`, and attributes if the scorer has some.

    Without texts the scorer is not called. Raises ScorerUnavailableError if it timed out or lost
    its connection, and ScorerError if it failed in any other way, or answered with something that
    is not a list of scores or with other attributes than it names.
    """
    names = attributes_of(scorer)
    if not texts:
        return Attributed(np.zeros(0), {name: np.zeros(0) for name in names})
    if not names:
        return Attributed(_ask(scorer, texts), {})
    asked: Any = scorer
    answer = _answer(scorer, lambda: asked.score_attributes(list(texts)))
    if not isinstance(answer, Attributed) or set(answer.attributes) != set(names):
        raise ScorerError(f"scorer {scorer.name}: the answer lacks attributes that it names")
    return Attributed(
        validate_scores(scorer.name, answer.values, len(texts)),
        {
            name: validate_scores(
                f"{scorer.name} ({name})", answer.attributes[name], len(texts), unknown=True
            )
            for name in names
        },
    )


def _answer(scorer: Scorer, call: Callable[[], Any]) -> Any:
    """The answer, awaited if necessary; any exception becomes an error of the scorer."""
    try:
        answer = call()
        if not inspect.isawaitable(answer):
            return answer
        try:
            return portal_of(scorer, "scorer", ScorerError).run(_awaited, answer)
        finally:
            if (
                inspect.iscoroutine(answer)
                and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED
            ):
                answer.close()  # an unstarted coroutine, of which Python would warn
    except TideError:
        raise
    except (TimeoutError, ConnectionError) as error:
        raise ScorerUnavailableError(f"scorer {scorer.name}: {described(error)}") from error
    except BaseException as error:
        if ends_work(error):
            raise
        # Most mistakes in a scoring function raise one of these.
        usage = (
            getattr(scorer, "usage", "") if isinstance(error, AttributeError | TypeError) else ""
        )
        raise ScorerError(
            f"scorer {scorer.name} failed: {described(error)}{usage and f'; {usage}'}"
        ) from error


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def validate_scores(
    name: str, answer: Any, count: int, *, unknown: bool = False, usage: str = ""
) -> Floats:
    """Validate a scorer's answer: `count` numbers in [0, 1]. Raises ScorerError.

    They are a list, tuple, array or tensor of plain numbers, and nothing that could be made into
    one: a boolean, masked array, date, text or complex number says something else.
    unknown: whether NaN may stand for one that is not known. usage: how to write such a scorer,
    which ends the error.
    """
    usage = usage and f"; {usage}"
    try:
        values = _numbers(answer)
    except Exception as error:  # a foreign class may do anything
        raise ScorerError(
            f"scorer {name}: the answer is not a list of numbers: {described(error)}{usage}"
        ) from None
    if values.shape != (count,):
        raise ScorerError(
            f"scorer {name}: {count} texts, but the answer has shape {values.shape}{usage}"
        )
    wrong = ~((values >= 0.0) & (values <= 1.0))  # true for NaN as well
    if unknown:
        wrong &= ~np.isnan(values)
    if wrong.any():
        raise ScorerError(
            f"scorer {name}: {values[wrong][0]} is not a score; it must be in [0, 1]{usage}"
        )
    return values


def _numbers(answer: Any) -> Floats:
    kind, torch = type(answer), sys.modules.get("torch")  # a tensor needs torch
    if torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter):
        answer = answer.detach().cpu()
        # numpy has no bfloat16.
        answer = (answer.double() if answer.is_floating_point() else answer).numpy()
    elif kind is list or kind is tuple:
        for x in answer:
            if not any(type(x) is number for number in _NUMBERS):
                raise TypeError(f"a {kind.__name__} with a {type(x).__name__}")
        return np.array(answer, dtype=np.float64)
    elif not issubclass(kind, np.ndarray) or issubclass(kind, np.ma.MaskedArray):
        raise TypeError(f"a {kind.__name__}")
    values = np.array(answer, subok=False)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"an array of {values.dtype}")
    return values.astype(np.float64)

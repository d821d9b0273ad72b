"""The scorer interface, and the validation of all scores."""

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
# How nearly empty texts are scored. "blank": 0.0 without visible characters, else by the scorer.
TextPolicy = EmptyPolicy | Literal["blank"]
# Test text after a failure: a scorer that fails for this text, too, is broken.
HEALTH_TEXT = "The weather is fine today."
# Number types accepted in a list. Subclasses are refused: they can override the conversion.
_NUMBERS = (float, int, *(np.dtype(code).type for code in "dfegbhilqBHILQ"))


@runtime_checkable
class Scorer(Protocol):
    """Maps texts to toxicity scores.

    Attributes:
        name: Includes a version or revision, so that a record identifies the scorer.
        threshold: Suggested threshold; a text that scores this or more is toxic.
        pace: When to score a growing text: after each "word" or "sentence", after every N tokens (a
            number), or only when it is "whole". Optional; 8 tokens by default.
    """

    name: str
    threshold: float

    def score(self, texts: Sequence[str]) -> Floats:
        """Toxicity of each text in [0, 1], shape (len(texts),), independent of the other texts."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class AsyncScorer(Protocol):
    """A `Scorer` with an asynchronous `score`, for example one that queries a service.

    All its calls run in one event loop, in a thread that belongs to the scorer, so that it may keep
    one client open. A call is cancelled when its deadline passes or nobody waits for its scores.
    """

    name: str
    threshold: float

    async def score(self, texts: Sequence[str]) -> Floats:
        """Like `Scorer.score`."""
        ...

    def close(self) -> None: ...


def pace_of(scorer: Scorer) -> str:
    """When to score a growing text (see `Scorer`).

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
    """The slowest pace of several scorers that are called together."""
    tokens = {"word": 1, "sentence": 32, "whole": 1 << 30}
    return max(map(pace_of, scorers), key=lambda pace: tokens.get(pace) or int(pace))


def screen_of(scorer: Scorer) -> Scorer | None:
    """The scorer's `screen`, if it has one: a quicker scorer whose scores are never lower.

    A growing text that passes the screen is accepted; for others the scorer itself decides.
    """
    screen: Scorer | None = getattr(scorer, "screen", None)
    return screen


class TextScore(NamedTuple):
    """The score of one text, and its attributes, in [0, 1]."""

    value: float
    attributes: Mapping[str, float] = {}


class Attributed(NamedTuple):
    """Scores and attributes of n texts, each of shape (n,), in [0, 1].

    An attribute is NaN for a text where it is unknown; a score is never NaN.
    """

    values: Floats
    attributes: Mapping[str, Floats]

    @classmethod
    def of(cls, rows: Sequence[TextScore], names: Sequence[str]) -> Attributed:
        """Convert rows to columns. names: attributes to include; NaN where a row lacks one."""
        columns = {name: [row.attributes.get(name, math.nan) for row in rows] for name in names}
        return cls(
            np.array([row.value for row in rows], dtype=np.float64),
            {name: np.array(column, dtype=np.float64) for name, column in columns.items()},
        )


class PlainScorer:
    """Base of scorers that have no resources to release and whose threshold is 0.5."""

    threshold = 0.5

    def close(self) -> None:
        """Cancel running calls; there is nothing else to release."""
        if (portal := vars(self).get("_portal")) is not None:
            portal.close()


class AttributedScorer(PlainScorer, ABC):
    """Base of scorers that also score attributes of a text, such as threat and insult.

    The score is computed from attributes (usually as their maximum), so one pass gives both.
    attributes: their names in the model or service; () if there are none. A class that does not
    derive from this one can have attributes by defining these two members.
    """

    attributes: tuple[str, ...]

    @abstractmethod
    def score_attributes(self, texts: Sequence[str]) -> Attributed: ...

    def score(self, texts: Sequence[str]) -> Floats:
        return self.score_attributes(texts).values


class CallableScorer(PlainScorer):
    """A scorer made from a function that maps a list of texts to a list of scores.

    The function may be an `async def` and may have a `pace` (see `Scorer`). name: by default
    `callable:` and the function's name.
    """

    # Shown in errors: a common mistake is a function that takes one text.
    usage = "a function takes a list of texts and returns a list of floats from 0 to 1"

    def __init__(self, function: Callable[[list[str]], Any], name: str = "") -> None:
        own = getattr(function, "__qualname__", type(function).__name__)
        self.name = name or f"callable:{own}"
        self.pace = getattr(function, "pace", _UNKNOWN_PACE)
        self._function = function

    def score(self, texts: Sequence[str]) -> Any:
        """The function's result or awaitable, not yet validated."""
        return self._function(list(texts))


class Score(NamedTuple):
    """The score of one text; see `Scores`."""

    value: float
    empty: bool
    attributes: dict[str, float]


@dataclass(frozen=True)
class Scores:
    """Scores of n texts; all arrays have shape (n,).

    values: toxicity in [0, 1]; the policy sets those of empty texts. empty: bool, which texts are
    nearly empty. attributes: by name; NaN where unknown, as for texts not sent to the scorer.
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
        """The highest score."""
        row = int(self.values.argmax())
        return Score(float(self.values[row]), bool(self.empty[row]), self.known(row))

    def known(self, row: int) -> dict[str, float]:
        """The known attributes of the text in this row."""
        found = {name: float(column[row]) for name, column in self.attributes.items()}
        return {name: score for name, score in found.items() if not math.isnan(score)}


def is_empty(text: str) -> bool:
    """Whether `text` is nearly empty: fewer than 3 visible characters, all of them ASCII.

    A single character of another script may be a whole word, so such a text is not empty.
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
    """Whether people can see a character, or some models read it (invisible tag characters)."""
    if c.isspace():
        return False
    kind = unicodedata.category(c)
    return kind != "Cc" and (kind != "Cf" or ord(c) in _TAGS)


def score_texts(scorer: Scorer, texts: Sequence[str], empty_policy: TextPolicy) -> Scores:
    """Score every text and validate the scores.

    Equal texts are sent once; `empty_policy` sets the scores of nearly empty texts. Raises the
    errors of `ask_attributes`.
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
    """Score groups of texts: for each group its scores, or the scorer's error.

    All texts are sent in one call. If it fails, each group is scored by itself, so that a rejected
    text fails only its group. Raises ScorerUnavailableError or ScorerRefusedError, and
    ScorerBrokenError if the scorer fails for `HEALTH_TEXT`, too.
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
    # A copy: a scorer that changes its list must not change which text a score belongs to.
    answer = _answer(scorer, lambda: scorer.score(list(texts)))
    return validate_scores(scorer.name, answer, len(texts), usage=getattr(scorer, "usage", ""))


def attributes_of(scorer: Scorer) -> tuple[str, ...]:
    """The names of the scorer's attributes; empty if it has none."""
    names: tuple[str, ...] = getattr(scorer, "attributes", ())
    return names if hasattr(scorer, "score_attributes") else ()


def ask_attributes(scorer: Scorer, texts: Sequence[str]) -> Attributed:
    """Validated scores of `texts`, and attributes if the scorer has some.

    Without texts the scorer is not called. Raises ScorerUnavailableError if it timed out or lost
    its connection, and ScorerError for any other failure, for an invalid answer, and for attributes
    other than those it declares.
    """
    names = attributes_of(scorer)
    if not texts:
        return Attributed(np.zeros(0), {name: np.zeros(0) for name in names})
    if not names:
        return Attributed(_ask(scorer, texts), {})
    asked: Any = scorer
    answer = _answer(scorer, lambda: asked.score_attributes(list(texts)))
    if not isinstance(answer, Attributed) or set(answer.attributes) != set(names):
        raise ScorerError(
            f"scorer {scorer.name}: the answer's attributes differ from those it declares"
        )
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
    """The result of `call`, awaited if necessary; exceptions become ScorerErrors."""
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
                answer.close()  # Python warns about a coroutine that was never started
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

    The answer is a list, tuple, array or tensor of plain numbers. Values that merely convert to
    numbers are refused: booleans, masked arrays, dates, texts, complex numbers.
    unknown: accept NaN for an unknown value. usage: how to write such a scorer, added to errors.
    """
    usage = usage and f"; {usage}"
    try:
        values = _numbers(answer)
    except Exception as error:  # a foreign class may raise anything
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
    kind, torch = type(answer), sys.modules.get("torch")  # tensors exist only after its import
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

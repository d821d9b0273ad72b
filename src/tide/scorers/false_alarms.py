"""Share of ordinary texts that a scorer rejects, as a whole or while they are written."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tide.scorers.base import Scorer
from tide.scorers.coverage import score_covered

# Every beginning of a text is scored, up to this many words; a scorer may be slow.
_WORDS = 100
_SAMPLE = 500


@dataclass(frozen=True)
class FalseAlarms:
    """Of `texts` ordinary texts, at `threshold`.

    whole: share of them that scores at or above it. beginnings: of those that do not, the share
    with a beginning that does, at the end of some word; measured on at most 500 of them. Texts
    without a score do not count; NaN if none is left.
    """

    texts: int
    threshold: float
    whole: float
    beginnings: float


def false_alarms(scorer: Scorer, texts: Sequence[str], threshold: float) -> FalseAlarms:
    """Count texts that score at or above `threshold`."""
    covered = score_covered(scorer, texts)
    values = covered.values[covered.known]
    passed = [
        text
        for text, score, known in zip(texts, covered.values, covered.known, strict=True)
        if known and score < threshold
    ]
    if len(passed) > _SAMPLE:
        passed = random.Random(0).sample(passed, _SAMPLE)
    parts = [(i, part) for i, text in enumerate(passed) for part in beginnings(text)]
    worst = np.full(len(passed), -1.0)
    found = score_covered(scorer, [part for _, part in parts]).values
    np.maximum.at(worst, [i for i, _ in parts], found)  # NaN if one beginning has no score
    worst = worst[~np.isnan(worst)]
    return FalseAlarms(
        len(values),
        threshold,
        float((values >= threshold).mean()) if len(values) else math.nan,
        float((worst >= threshold).mean()) if len(worst) else math.nan,
    )


def beginnings(text: str) -> list[str]:
    """The beginnings of a text, each ending at a word, up to a hundred, without the whole text."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    return [text[:end] for end in ends[:-1][:_WORDS]]

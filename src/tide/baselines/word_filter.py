"""`word-filter`: Gehman et al. 2020, "RealToxicityPrompts" (EMNLP Findings 2020), section 5.

arXiv:2009.11462. Bans the words of a list. As in the authors' code (allenai/real-toxicity-prompts),
the last token of a word is banned if the text, including the prompt, ends with the word's other
tokens. So a longer word that contains the tokens of a banned word is banned, too. The authors' list
is from the web; here the list is learned from labelled text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from tide.baselines.base import Options, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import FitTask, Fitted, of_kind
from tide.baselines.lanes import SteeredLane

_WORDS = 400  # number of banned words, the worst ones
# Added to each count, so that rare words do not rank first.
_PRIOR = 5.0
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")

# Maps preceding tokens to the tokens that would complete a banned word after them.
Banned = dict[tuple[int, ...], list[int]]


class WordFilterOptions(Options):
    penalty: Strength = Field(
        default=1000.0,
        description="Subtracted from the logit of a token that completes a word; 1000 is a ban.",
    )


def word_odds(toxic: Iterable[str], harmless: Iterable[str]) -> dict[str, float]:
    """Return the log-odds of each lowercase word: log of toxic / other texts with the word.

    5 is added to both counts of texts. There must be as many toxic as other texts. The words are in
    alphabetical order: words of equal odds must not be ranked by Python's random hashes.
    """
    counts = [
        Counter(word for text in texts for word in set(_WORD.findall(text.casefold())))
        for texts in (toxic, harmless)
    ]
    return {word: math.log((counts[0][word] + _PRIOR) / (counts[1][word] + _PRIOR))
            for word in sorted(counts[0])}  # fmt: skip


def sequences(tokenizer: Any, word: str) -> list[list[int]]:
    """Return the ids of a word as given, capitalised and in capitals, with and without a space."""
    forms = [
        space + form for form in (word, word.capitalize(), word.upper()) for space in (" ", "")
    ]
    ids = tokenizer(forms, add_special_tokens=False)["input_ids"]
    return [list(row) for row in dict.fromkeys(map(tuple, ids)) if row]


class FilteredLane(SteeredLane):
    """Subtracts the penalty from the scores of tokens that complete a banned word."""

    baseline: WordFilter

    def shift(self, scores: Tensor) -> Tensor:
        penalties = torch.zeros_like(scores)
        for number, row in enumerate(self.rows):
            text = (*row.prompt_ids, *row.ids)
            for length in range(min(self.baseline.longest, len(text)) + 1):
                ends = self.baseline.banned.get(text[len(text) - length :], [])
                penalties[number, ends] = self.baseline.options.penalty
        return scores - penalties


class WordFilter(DecodingBaseline):
    """Bans the words of a list by their last tokens."""

    kind = "word-filter"
    options_class = WordFilterOptions
    options: WordFilterOptions

    def lanes(self) -> MakeLane:
        return FilteredLane

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.banned), default=0)

    @cached_property
    def banned(self) -> Banned:
        learned = self.artefact.tensors
        rows = learned["ids"][learned["words"] < _WORDS].tolist()
        banned: Banned = {}
        for row in rows:
            *beginning, end = (token for token in row if token != -1)
            banned.setdefault(tuple(beginning), []).append(end)
        return banned

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Learn which words toxic texts contain more often than other texts do, by log-odds.

        ids: (n, longest), padded with -1, the worst words first. words: (n,), the number of each
        row's word. No word is stored as text.
        """
        texts, _ = task.texts()
        scores = word_odds(of_kind(texts, toxic=True), of_kind(texts, toxic=False))
        worst = sorted((word for word in scores if scores[word] > 0), key=lambda w: -scores[w])
        forms = [
            (number, torch.tensor(ids))
            for number, word in enumerate(worst[:_WORDS])
            for ids in sequences(task.tokenizer, word)
        ]
        tensors = {
            "ids": torch.nn.utils.rnn.pad_sequence(
                [ids for _, ids in forms], batch_first=True, padding_value=-1
            ).int(),
            "words": torch.tensor([number for number, _ in forms], dtype=torch.int32),
        }
        return Fitted(tensors, {})

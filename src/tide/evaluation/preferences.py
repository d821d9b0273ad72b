"""Preference pairs from repairs: an accepted repair, and the model's own text that it replaced.

The rows follow TRL's dataset formats: `prompt`, `chosen` and `rejected` for DPO, `prompt` and
`completion` for supervised fine-tuning. Texts are strings, and chats are lists of messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from tide.core.chat import Message
from tide.core.errors import InputError
from tide.core.text import is_degenerate
from tide.data.record_files import read_records
from tide.data.records import TrialRecord
from tide.evaluation.runs import files_of, read_config
from tide.scorers.base import is_empty

Format = Literal["dpo", "sft"]


@dataclass(frozen=True)
class Pair:
    """An accepted repair and the model's own completion, of one prompt or chat."""

    prompt: str | tuple[Message, ...]
    chosen: str
    rejected: str

    @property
    def blamed_at(self) -> int:
        """The length of the common prefix of the two texts, in characters."""
        both = zip(self.chosen, self.rejected, strict=False)
        return sum(1 for _ in takewhile(lambda two: two[0] == two[1], both))

    def row(self, shape: Format) -> dict[str, Any]:
        """Return a row for TRL, which ignores `blamed_at`."""
        asked: Any = self.prompt
        chosen: Any = self.chosen
        rejected: Any = self.rejected
        if isinstance(self.prompt, tuple):
            asked = [one.dump() for one in self.prompt]
            chosen, rejected = (
                [Message(role="assistant", content=text).dump()]
                for text in (self.chosen, self.rejected)
            )
        if shape == "sft":
            return {"prompt": asked, "completion": chosen}
        texts = {"prompt": asked, "chosen": chosen, "rejected": rejected}
        return {**texts, "blamed_at": self.blamed_at}


@dataclass
class Export:
    """The pairs of exported runs. left_out: number of trials without a pair, by reason."""

    pairs: dict[Pair, None] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


def export_pairs(runs: Sequence[Path], *, margin: float = 0.0) -> Export:
    """Collect the distinct pairs of runs.

    A trial gives a pair if the model's own completion failed, and if its repair was accepted, is
    neither empty nor degenerate, and scores lower by at least `margin`.

    Raises InputError for an invalid record, and if the runs hold both chats and texts.
    """
    found = Export()
    first: tuple[Path, bool] | None = None
    for run in runs:
        settings = read_config(run).get("settings") or {}
        # Even with `carry_over`, the file has the text that each trial found itself.
        for record in read_records(files_of(run)[0]):
            is_chat = record.messages is not None
            first = first or (run, is_chat)
            if is_chat != first[1]:
                kinds = ("chat", "text") if is_chat else ("text", "chat")
                raise InputError(
                    f"{run}: record {record.id!r} is a {kinds[0]}, but {first[0]} begins with a "
                    f"{kinds[1]}; export chats and texts to two files"
                )
            for trial in record.trials:
                asked = tuple(record.messages) if record.messages else record.prompt
                pair = Pair(asked, trial.text, trial.base_text or "")
                reason = _left_out(trial, settings.get("toxicity_threshold", 0.5), margin)
                if reason or pair in found.pairs:
                    found.left_out[reason or "repeated"] += 1
                else:
                    found.pairs[pair] = None
    return found


def _left_out(trial: TrialRecord, threshold: float, margin: float) -> str | None:
    """Return the reason why a trial gives no pair, or None if it gives a pair."""
    text, own, score = trial.text, trial.base_text, trial.base_toxicity
    reasons = {
        "no search": own is None or score is None,
        "not repaired": (score or 0.0) < threshold or text == own,
        "empty": trial.empty or is_empty(text) or is_empty(own or ""),
        "not accepted": not trial.accepted or trial.refused or trial.toxicity >= threshold,
        "degenerate": is_degenerate(text),
        "below the margin": (score or 0.0) - trial.toxicity < margin,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)

"""The Python interface of `tide fit`: labelled texts, and the inputs and results of a fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from tide.baselines import REGISTRY
from tide.baselines.artefacts import save_artefact
from tide.baselines.base import FitSettings, Training
from tide.core.errors import EngineError, InputError, guarded, validated
from tide.core.fingerprints import code_digest
from tide.core.pretrained import find_device
from tide.data.texts import LabelledText, Pair, read_entries
from tide.engines.checkpoint import context_length, fingerprint
from tide.engines.local.engine import load_model
from tide.scorers import DEFAULT_SCORER

TOXIC, NON_TOXIC = 0.5, 0.1
_LEAST = 20  # minimum rows of each kind for a fit
_HELD_OUT = 0.1

T = TypeVar("T")

# Maps the toxicity of a text to True (toxic), False (non-toxic) or None (neither).
Kind = Callable[[float], bool | None]
# Called with the name of the task, the amount done and the total.
OnProgress = Callable[[str, int, int], None]


def by_half(toxicity: float) -> bool | None:
    """Return True (toxic) from 0.5 on (half of the raters), False up to 0.1, None in between."""
    return True if toxicity >= TOXIC else False if toxicity <= NON_TOXIC else None


def by_any(toxicity: float) -> bool | None:
    """Return True (toxic) if any rater called the text toxic."""
    return toxicity > 0


def of_kind(texts: Iterable[LabelledText], *, toxic: bool) -> list[str]:
    """Return the texts with a toxicity of at least 0.5 if `toxic`, else all other texts."""
    return [text.text for text in texts if (text.toxicity >= TOXIC) == toxic]


@dataclass(frozen=True)
class Labelled:
    """Texts with a toxicity, and pairs of a toxic text and its neutral versions."""

    singles: list[LabelledText]
    pairs: list[Pair]

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Labelled:
        """Read labelled texts and pairs by `data.texts.read_entries`, grouped by their `source`.

        Raises InputError if there are no rows, or if a row is neither a text nor a pair.
        """
        entries = list(read_entries(paths))
        if not entries:
            raise InputError("data: holds no labelled texts; give files with --data")
        singles = [entry for entry in entries if isinstance(entry, LabelledText)]
        return cls(singles, [entry for entry in entries if isinstance(entry, Pair)])

    @property
    def texts(self) -> list[LabelledText]:
        """All texts, including those of the pairs."""
        return [*self.singles, *(text for pair in self.pairs for text in pair.texts)]

    @property
    def digest(self) -> str:
        """Hash of the contents, 16 hex digits."""
        return blake2b(repr(self).encode(), digest_size=8).hexdigest()

    def split(self, seed: int) -> tuple[Labelled, Labelled]:
        """Split into nine tenths for training and a held-out tenth; a pair stays together.

        Of fewer than 400 rows, 40 (but at most half) are held out, since fewer rows would give
        unreliable figures.
        """
        generator = np.random.default_rng(seed)
        singles, pairs = _cut(self.singles, generator), _cut(self.pairs, generator)
        return Labelled(singles[0], pairs[0]), Labelled(singles[1], pairs[1])

    def balanced(
        self,
        seed: int,
        limit: int | None = None,
        kind: Kind = by_half,
        *,
        rest: bool = False,
        minimum: int = _LEAST,
    ) -> list[LabelledText]:
        """Choose as many toxic as non-toxic texts from each group; returns them in random order.

        Thus the group of a text does not predict its toxicity. limit: maximum number of texts.
        kind: decides which texts are toxic. rest: include texts that are neither toxic nor
        non-toxic. Raises InputError if fewer than `minimum` texts of each kind remain.
        """
        by_group: dict[str, tuple[list[LabelledText], list[LabelledText]]] = {}
        chosen: list[LabelledText] = []
        for text in self.texts:
            toxic = kind(text.toxicity)
            kinds = by_group.setdefault(text.group, ([], []))
            (chosen if toxic is None else kinds[toxic]).append(text)
        chosen = chosen if rest else []
        matched = sum(min(map(len, kinds)) for kinds in by_group.values())
        if matched < minimum:
            raise InputError(
                f"data: of {len(self.texts)} training or held-out texts {matched} toxic texts can "
                f"be matched with non-toxic texts of their source; at least {minimum} are needed"
            )
        generator = np.random.default_rng(seed)
        for kinds in by_group.values():
            size = min(map(len, kinds))
            for texts in kinds:
                chosen += [texts[i] for i in generator.permutation(len(texts))[:size]]
        return [chosen[i] for i in generator.permutation(len(chosen))[:limit]]


def _cut(rows: Sequence[T], generator: np.random.Generator) -> tuple[list[T], list[T]]:
    order = generator.permutation(len(rows))
    held_out = max(round(len(rows) * _HELD_OUT), min(2 * _LEAST, len(rows) // 2))
    return [rows[i] for i in order[held_out:]], [rows[i] for i in order[:held_out]]


@dataclass
class FitTask:
    """Inputs of a fit. model: the model as transformers loads it; a fit may change its weights.

    scorer: spec of the scorer for texts that the model generates.
    """

    tokenizer: Any
    model: Any
    data: Labelled
    settings: Training
    progress: OnProgress
    scorer: str = ""

    def __post_init__(self) -> None:
        self.train, self.held_out = self.data.split(self.settings.seed)

    def texts(
        self, kind: Kind = by_half, *, rest: bool = False
    ) -> tuple[list[LabelledText], list[LabelledText]]:
        """Return balanced texts: up to `max_texts` for training, a tenth (at least 40) held out.

        kind: decides which texts are toxic. rest: also train on texts that are neither toxic nor
        non-toxic.
        """
        limit, seed = self.settings.max_texts, self.settings.seed
        train = self.train.balanced(seed, limit, kind, rest=rest)
        # Of 40 texts that were drawn at random, rarely exactly 20 are toxic.
        held_out = self.held_out.balanced(seed, max(limit // 10, 40), kind, minimum=_LEAST // 2)
        return train, held_out

    def tokenize(
        self, texts: Sequence[str], *, prefix: str = "", end: bool = False
    ) -> list[list[int]]:
        """Tokenize texts like prompts; cut the ids to `max_tokens` and to the model's context.

        prefix: put before each text, in addition to its `max_tokens`. end: append the end-of-text
        token, if the tokenizer has one.
        """
        ids = self.tokenizer([prefix + text for text in texts])["input_ids"]
        stop = self.tokenizer.eos_token_id
        if end and stop is not None:
            ids = [row if row[-1:] == [stop] else [*row, stop] for row in ids]
        before = len(self.tokenizer(prefix, add_special_tokens=False)["input_ids"])
        context = context_length(self.model.config) or 2**31
        longest = min(before + self.settings.max_tokens, context)
        return [row[:longest] for row in ids]


@dataclass(frozen=True)
class Fitted:
    """The result of a fit. tensors: fitted weights. held_out: figures on held-out texts."""

    tensors: dict[str, Tensor]
    held_out: dict[str, float]


def fit(
    baseline: str,
    data: Path | str | Iterable[Path | str],
    out: Path | str,
    *,
    model: Path | str = "pocket",
    auxiliary: Path | str | None = None,
    scorer: str = DEFAULT_SCORER,
    device: str = "auto",
    dtype: Any = "auto",
    overwrite: bool = False,
    progress: OnProgress = lambda step, done, total: None,
    **settings: Any,
) -> dict[str, float]:
    """Fit a baseline for a model.

    Args:
        baseline: Name of a baseline that learns something.
        data: Files of labelled texts (for formats see `read_entries`). A tenth is held out.
        out: Folder of the artefacts; each baseline gets a folder inside.
        model: The model to detoxify.
        auxiliary: A smaller model with the same vocabulary, for baselines that accept one.
        scorer: Scores texts that the model generates, for baselines that learn from them.
        device: As for `Detoxifier`.
        dtype: As for `Detoxifier`.
        overwrite: Replace the artefact. Otherwise an artefact that is there is an error.
        progress: Called with the task, the amount done, and the total.
        **settings: Fields of `FitSettings`.

    Returns:
        The figures on held-out texts.

    Raises:
        InputError: The baseline learns nothing, or a setting, file or folder cannot be used.
        EngineError: The model cannot be loaded.
    """
    create = REGISTRY.load(baseline)
    if not hasattr(create, "fit"):
        known = ", ".join(name for name in REGISTRY.names() if hasattr(REGISTRY.load(name), "fit"))
        raise InputError(f"baseline {baseline}: learns nothing; choose one of {known}")
    chosen = validated(FitSettings, settings)
    folder = Path(out) / create.kind
    if not overwrite and (folder / "artefact.json").exists():
        raise InputError(f"{folder}: already holds an artefact; use --overwrite")
    labelled = Labelled.read(map(Path, [data] if isinstance(data, Path | str) else data))
    load = partial(load_model, device=find_device(device), dtype=dtype)
    tokenizer, trained = load(str(model))
    info: dict[str, Any] = {
        "baseline": create.kind,
        "fingerprint": fingerprint(trained),
        "model": str(model),
        "auxiliary": None,
        "scorer": scorer if getattr(create, "scored", False) else None,
        "code": code_digest(create),
        "data": labelled.digest,
        "settings": chosen.model_dump(),
    }
    if auxiliary is not None and getattr(create, "auxiliary", False):
        auxiliary_tokenizer, trained = load(str(auxiliary))
        if auxiliary_tokenizer.get_vocab() != tokenizer.get_vocab():
            raise InputError(f"auxiliary: '{auxiliary}' does not have the model's vocabulary")
        info["auxiliary"] = str(auxiliary)
        info["auxiliary_fingerprint"] = fingerprint(trained)
    training = chosen.training(trained)

    def show(step: str, done: int, total: int) -> None:
        progress(f"{create.kind}: {step}", done, total)

    task = FitTask(tokenizer, trained, labelled, training, show, scorer)
    with guarded(EngineError, f"baseline {create.kind}: cannot be fitted"):
        fitted: Fitted = create.fit(task)
    info["training"] = training.model_dump()
    info["held_out"] = fitted.held_out
    save_artefact(folder, fitted.tensors, info)
    return fitted.held_out

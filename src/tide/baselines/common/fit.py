"""The Python interface of `tide fit`: labelled texts, and the inputs and results of a fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tide.baselines import REGISTRY
from tide.baselines.base import FitSettings, Training
from tide.baselines.common.artefacts import check_vocabulary, save_artefact
from tide.core.errors import EngineError, InputError, guarded, validated
from tide.core.fingerprints import code_digest
from tide.core.pretrained import find_device
from tide.data.files import read_whole
from tide.data.texts import LabelledText, Pair, read_entries
from tide.engines.base import Dtype
from tide.engines.checkpoint import context_length, fingerprint
from tide.engines.local.engine import load_model
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.scorers.base import code_of

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

    @property
    def texts(self) -> list[LabelledText]:
        """All texts, including those of the pairs."""
        return [*self.singles, *(text for pair in self.pairs for text in pair.texts)]

    @property
    def digest(self) -> str:
        """Hash of the contents, 16 hex digits."""
        contents = json.dumps(astuple(self)).encode()
        return blake2b(contents, digest_size=8).hexdigest()

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
                f"data: of {len(self.texts)} texts {matched} toxic texts can be matched with "
                f"non-toxic texts of the same source; at least {minimum} are needed"
            )
        generator = np.random.default_rng(seed)
        for kinds in by_group.values():
            size = min(map(len, kinds))
            for texts in kinds:
                chosen += [texts[i] for i in generator.permutation(len(texts))[:size]]
        return [chosen[i] for i in generator.permutation(len(chosen))[:limit]]

    def need_pairs(self, count: int) -> None:
        """Raise InputError if there are fewer than `count` pairs."""
        if len(self.pairs) < count:
            raise InputError(
                f"data: holds {len(self.pairs)} pairs of 'toxic' and 'neutral' texts; "
                f"at least {count} are needed"
            )


def read_labelled(paths: Iterable[Path]) -> Labelled:
    """Read labelled texts and pairs by `data.labelled.read_entries`, grouped by their `source`.

    Raises InputError if there are no rows, or if a row is neither a text nor a pair.
    """
    entries = list(read_entries(paths))
    if not entries:
        raise InputError("data: holds no labelled texts; give files with --data")
    pairs = [entry for entry in entries if isinstance(entry, Pair)]
    return Labelled([entry for entry in entries if isinstance(entry, LabelledText)], pairs)


def _cut(rows: Sequence[T], generator: np.random.Generator) -> tuple[list[T], list[T]]:
    order = generator.permutation(len(rows))
    held_out = max(round(len(rows) * _HELD_OUT), min(2 * _LEAST, len(rows) // 2))
    return [rows[i] for i in order[held_out:]], [rows[i] for i in order[:held_out]]


@dataclass
class FitTask:
    """Inputs of a fit. model: the model as transformers loads it; a fit may change its weights.

    learned: results of `write_like` by its argument `toxic`, shared by the tasks of one model.
    scorer: spec of the scorer for texts that the model generates. say: called with a message before
    long work.
    """

    name: str
    tokenizer: Any
    model: Any
    data: Labelled
    settings: Training
    progress: OnProgress
    learned: dict[bool, Fitted] = field(default_factory=dict)
    scorer: str = ""
    say: Callable[[str], None] = lambda line: None

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

    def tokenize(self, texts: Sequence[str], *, end: bool = False) -> list[list[int]]:
        """Tokenize texts like prompts; cut the ids to `max_tokens` and to the model's context.

        end: append the end-of-text token, if the tokenizer has one.
        """
        ids = self.tokenizer(list(texts))["input_ids"]
        stop = self.tokenizer.eos_token_id
        if end and stop is not None:
            ids = [row if row[-1:] == [stop] else [*row, stop] for row in ids]
        longest = min(self.settings.max_tokens, context_length(self.model.config) or 2**31)
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
    say: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> dict[str, dict[str, float]]:
    """Fit a baseline for a model.

    Args:
        baseline: Name of the baseline, or "all" for every baseline that learns something.
        data: Files of labelled texts (for formats see `read_labelled`). A tenth is held out.
        out: Folder of the artefacts; each baseline gets a folder inside.
        model: The model to detoxify.
        auxiliary: A smaller model with the same vocabulary, for baselines that accept one.
        scorer: Scores texts that the model generates, for baselines that learn from them.
        device: As for `Detoxifier`.
        dtype: As for `Detoxifier`.
        overwrite: Replace artefacts. Otherwise "all" keeps artefacts of an identical call.
        progress: Called with the task, the amount done, and the total.
        say: Called with messages for the user, such as the estimated time of a training.
        **settings: Fields of `FitSettings`.

    Returns:
        The held-out figures of each baseline.

    Raises:
        InputError: The baseline learns nothing, or a setting, file or folder cannot be used.
        EngineError: The model cannot be loaded.
    """
    is_all = baseline == "all"
    learning = _learners(REGISTRY.names() if is_all else [baseline])
    if not learning:
        known = ", ".join(create.kind for create in _learners(REGISTRY.names()))
        raise InputError(f"baseline {baseline}: learns nothing; choose one of {known}")
    chosen, place = validated(FitSettings, settings), find_device(device)
    labelled = read_labelled(map(Path, [data] if isinstance(data, Path | str) else data))
    small = None if auxiliary is None else str(auxiliary)
    fits = _Fits(str(model), small, scorer, place, dtype, labelled, chosen, progress, say)
    figures: dict[str, dict[str, float]] = {}
    for create in learning:
        note, folder = fits.note(create), Path(out) / create.kind
        if overwrite or not (folder / "artefact.json").exists():
            figures[create.kind] = fits.fit(create, note, folder)
            continue
        if is_all:  # the weights behind a name may have changed
            note |= fits.fingerprints(note["auxiliary"])
        figures[create.kind] = _finished_figures(folder, note, resumes=is_all)
    return figures


@dataclass
class _Fits:
    """What the fits of one call share; the fields are as in `fit`.

    learned: by auxiliary model, see `FitTask`. weights: digests of the weights behind names.
    """

    model: str
    auxiliary: str | None
    scorer: str
    device: torch.device
    dtype: Dtype
    data: Labelled
    settings: FitSettings
    progress: OnProgress
    say: Callable[[str], None]
    learned: dict[str | None, dict[bool, Fitted]] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)

    @cached_property
    def scorer_made(self) -> str:
        """Name and code of the scorer."""
        with closing(load_scorer(self.scorer)) as loaded:
            return f"{loaded.name} {code_of(loaded)}".strip()

    def note(self, create: Any) -> dict[str, Any]:
        """Describe the inputs of a fit. Inputs that the baseline cannot use are None."""
        is_scored = getattr(create, "scored", False)
        return {
            "model": self.model,
            "auxiliary": self.auxiliary if getattr(create, "auxiliary", False) else None,
            "scorer": self.scorer if is_scored else None,
            "scorer_made": self.scorer_made if is_scored else None,
            "code": code_digest(create),
            "data": self.data.digest,
            "settings": self.settings.model_dump(),
        }

    def fingerprints(self, auxiliary: str | None) -> dict[str, str]:
        """Return digests of the weights that the model's names stand for now."""
        fields = {"fingerprint": self.model}
        if auxiliary is not None:
            fields["auxiliary_fingerprint"] = auxiliary
        for name in fields.values():
            if name not in self.weights:
                _, loaded = load_model(name, self.device, self.dtype)
                self.weights[name] = fingerprint(loaded)
        return {field_name: self.weights[name] for field_name, name in fields.items()}

    def fit(self, create: Any, note: dict[str, Any], folder: Path) -> dict[str, float]:
        """Fit a baseline, write its artefact, and return its held-out figures."""
        tokenizer, plain = load_model(self.model, self.device, self.dtype)
        info = {"baseline": create.kind, "fingerprint": fingerprint(plain), **note}
        if (small := note["auxiliary"]) is not None:
            small_tokenizer, plain = load_model(small, self.device, self.dtype)
            check_vocabulary(small_tokenizer, tokenizer, small, self.model)
            info["auxiliary_fingerprint"] = fingerprint(plain)
        task = FitTask(
            self.model,
            tokenizer,
            plain,
            self.data,
            self.settings.training(plain),
            progress=_named(create.kind, self.progress),
            learned=self.learned.setdefault(small, {}),
            scorer=note["scorer"] or "",
            say=_named(create.kind, self.say),
        )
        with guarded(EngineError, f"baseline {create.kind}: cannot be fitted"):
            fitted: Fitted = create.fit(task)
        info["training"] = asdict(task.settings)
        info["held_out"] = fitted.held_out
        save_artefact(folder, fitted.tensors, info)
        return fitted.held_out


def _learners(names: Iterable[str]) -> list[Any]:
    return [create for create in map(REGISTRY.load, names) if getattr(create, "learned", False)]


def _finished_figures(folder: Path, note: dict[str, Any], *, resumes: bool) -> dict[str, float]:
    """Return the figures of the artefact in `folder`.

    Raises InputError unless the call `resumes` and its settings (`note`) are the artefact's.
    """
    try:
        there = json.loads(read_whole(folder / "artefact.json"))
        same = {key: there.get(key) for key in note} == note
    except (OSError, ValueError, AttributeError):
        same = False
    if not (resumes and same):
        difference = "" if same else ", made with other settings or weights"
        raise InputError(f"{folder}: already holds an artefact{difference}; use --overwrite")
    return dict(there.get("held_out", {}))


def _named(kind: str, call: Callable[..., None]) -> Callable[..., None]:
    """Return `call` with the name of the baseline put before its first argument."""
    return lambda first, *rest: call(f"{kind}: {first}", *rest)

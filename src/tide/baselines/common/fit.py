"""`tide fit`, from Python: labelled texts, the input and result of a fit, and its artefact."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from tide.baselines import REGISTRY
from tide.baselines.base import FitSettings, Training
from tide.baselines.common.artefacts import check_vocabulary, fingerprint, save_artefact, warn_of
from tide.core.errors import EngineError, InputError, guarded
from tide.core.pretrained import find_device
from tide.core.validation import validated
from tide.data.files import read_small
from tide.data.labelled import LabelledText, Pair, read_entries
from tide.engines.checkpoint import context_length
from tide.engines.local.engine import load_model

TOXIC, NON_TOXIC = 0.5, 0.1
_LEAST = 20  # least rows of a kind for a fit
_HELD_OUT = 0.1

T = TypeVar("T")

# The toxicity of a text -> whether it counts as toxic; None: neither.
Kind = Callable[[float], bool | None]
# Called with the name of the work, the amount done and the total.
OnProgress = Callable[[str, int, int], None]


def by_half(toxicity: float) -> bool | None:
    """Toxic if at least half of the raters said so, and non-toxic if hardly any did."""
    return True if toxicity >= TOXIC else False if toxicity <= NON_TOXIC else None


def by_any(toxicity: float) -> bool | None:
    """Toxic if a single rater said so."""
    return toxicity > 0


def of_kind(texts: Iterable[LabelledText], *, toxic: bool) -> list[str]:
    """The toxic texts, or the others."""
    return [text.text for text in texts if (text.toxicity >= TOXIC) == toxic]


@dataclass(frozen=True)
class Labelled:
    """Texts with a toxicity, and pairs of a toxic text and non-toxic ones."""

    singles: list[LabelledText]
    pairs: list[Pair]

    @property
    def texts(self) -> list[LabelledText]:
        """All texts, those of the pairs as well."""
        return [*self.singles, *(text for pair in self.pairs for text in pair.texts)]

    @property
    def digest(self) -> str:
        """16 hex digits of the contents."""
        contents = json.dumps(astuple(self)).encode()
        return blake2b(contents, digest_size=8).hexdigest()

    def split(self, seed: int) -> tuple[Labelled, Labelled]:
        """Nine tenths to fit on, one to measure on; a pair stays together.

        With few rows more than a tenth, at most a half, is measured on, since fewer than 40 say
        little.
        """
        generator = np.random.default_rng(seed)
        singles, pairs = _cut(self.singles, generator), _cut(self.pairs, generator)
        return Labelled(singles[0], pairs[0]), Labelled(singles[1], pairs[1])

    def balanced(
        self, seed: int, limit: int | None = None, kind: Kind = by_half, *, rest: bool = False
    ) -> list[LabelledText]:
        """Toxic and non-toxic texts, in random order, as many of either from each group.

        So no other property of a group predicts toxicity. limit: most texts. rest: and those that
        are neither.
        Raises InputError if there are fewer than 20 of either kind.
        """
        by_group: dict[str, tuple[list[LabelledText], list[LabelledText]]] = {}
        chosen: list[LabelledText] = []
        for text in self.texts:
            toxic = kind(text.toxicity)
            kinds = by_group.setdefault(text.group, ([], []))
            (chosen if toxic is None else kinds[toxic]).append(text)
        chosen = chosen if rest else []
        few = sum(min(map(len, kinds)) for kinds in by_group.values())
        if few < _LEAST:
            raise InputError(
                f"data: {few} toxic texts with as many non-toxic ones of their source;"
                f" at least {_LEAST} of either are needed"
            )
        generator = np.random.default_rng(seed)
        for kinds in by_group.values():
            size = min(map(len, kinds))
            for texts in kinds:
                chosen += [texts[i] for i in generator.permutation(len(texts))[:size]]
        return [chosen[i] for i in generator.permutation(len(chosen))[:limit]]

    def need_pairs(self, count: int) -> None:
        """Raise InputError unless there are `count` pairs."""
        if len(self.pairs) < count:
            raise InputError(
                f"data: {len(self.pairs)} pairs of 'toxic' and 'neutral' texts; "
                f"at least {count} are needed"
            )


def read_labelled(paths: Iterable[Path]) -> Labelled:
    """The labelled texts and pairs of `data.labelled.read_entries`, grouped by their `source`.

    Raises InputError, with the row's line, for a row that is neither, and for no rows at all.
    """
    entries = list(read_entries(paths, by="source"))
    if not entries:
        raise InputError("data: no labelled texts; give files with --data")
    pairs = [entry for entry in entries if isinstance(entry, Pair)]
    return Labelled([entry for entry in entries if isinstance(entry, LabelledText)], pairs)


def _cut(rows: Sequence[T], generator: np.random.Generator) -> tuple[list[T], list[T]]:
    order = generator.permutation(len(rows))
    held_out = max(round(len(rows) * _HELD_OUT), min(2 * _LEAST, len(rows) // 2))
    return [rows[i] for i in order[held_out:]], [rows[i] for i in order[:held_out]]


@dataclass
class FitTask:
    """Inputs of a fit. model: a plain one, whose weights the fit may change.

    learned: results of `write_like`, shared by the tasks of one model.
    scorer: spec of the scorer of the texts that the model writes.
    checkpoints: folder of unfinished trainings, which are resumed. say: called before long work.
    """

    name: str
    tokenizer: Any
    model: Any
    data: Labelled
    settings: Training
    progress: OnProgress
    learned: dict[bool, Fitted] = field(default_factory=dict)
    scorer: str = ""
    checkpoints: Path | None = None
    say: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        self.train, self.held_out = self.data.split(self.settings.seed)

    def texts(
        self, kind: Kind = by_half, *, rest: bool = False
    ) -> tuple[list[LabelledText], list[LabelledText]]:
        """Balanced texts to train on and, at most a tenth of `max_texts`, to measure on.

        kind: decides which texts are toxic. rest: train on texts of neither kind as well.
        """
        limit, seed = self.settings.max_texts, self.settings.seed
        train = self.train.balanced(seed, limit, kind, rest=rest)
        return train, self.held_out.balanced(seed, max(limit // 10, 40), kind)

    def tokenize(self, texts: Sequence[str], *, end: bool = False) -> list[list[int]]:
        """Ids as the model reads a prompt, cut to `max_tokens` and to its context.

        end: with the token that ends a text after them, where the tokenizer has one.
        """
        ids = self.tokenizer(list(texts))["input_ids"]
        stop = self.tokenizer.eos_token_id
        if end and stop is not None:
            ids = [row if row[-1:] == [stop] else [*row, stop] for row in ids]
        longest = min(self.settings.max_tokens, context_length(self.model.config) or 2**31)
        return [row[:longest] for row in ids]


@dataclass(frozen=True)
class Fitted:
    """The result of a fit. tensors: its weights. held_out: figures on texts that it did not see.

    doubts: reasons why it is too weak for a fair comparison.
    """

    tensors: dict[str, Tensor]
    held_out: dict[str, float]
    doubts: tuple[str, ...] = ()


def fit(
    baseline: str,
    data: Path | str | Iterable[Path | str],
    out: Path | str,
    *,
    model: Path | str = "pocket",
    auxiliary: Path | str | None = None,
    scorer: str = "pocket",
    device: str = "auto",
    dtype: Any = "auto",
    overwrite: bool = False,
    progress: OnProgress = lambda what, done, total: None,
    say: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> dict[str, dict[str, float]]:
    """Fit a baseline for a model.

    Args:
        baseline: Its name, or "all" for every baseline that learns something.
        data: Files of labelled texts (`read_labelled` says which formats). A tenth is held out.
        out: A folder, in which each baseline gets a folder of its own.
        model: The model that is to be detoxified.
        auxiliary: A smaller model of the same vocabulary, for baselines that can be fitted on one.
        scorer: Scores the model's own text, for baselines that learn from it.
        device: As for `Detoxifier`.
        dtype: As for `Detoxifier`.
        overwrite: Fit again. Otherwise "all" keeps the fits that an identical call has finished.
        progress: Called with the task, the amount done, and the total.
        say: Called with a line for the reader: how long a training will take.
        **settings: Those of `FitSettings`.

    An interrupted training resumes from its checkpoint in `out`, written every five minutes.

    Returns:
        The held-out figures of each baseline. A warning is logged for one that is fitted too weakly
        for a fair comparison.

    Raises:
        InputError: The baseline learns nothing, or a setting, file or folder cannot be used.
        EngineError: The model cannot be loaded.
    """
    learning = _that_learn(REGISTRY.names() if baseline == "all" else [baseline])
    if not learning:
        known = ", ".join(create.kind for create in _that_learn(REGISTRY.names()))
        raise InputError(f"baseline {baseline}: learns nothing; {known} do")
    chosen, place, name = validated(FitSettings, settings), find_device(device), str(model)
    labelled = read_labelled(map(Path, [data] if isinstance(data, Path | str) else data))
    figures: dict[str, dict[str, float]] = {}
    learned: dict[str | None, dict[bool, Fitted]] = {}
    for create in learning:
        usable = auxiliary if getattr(create, "auxiliary", False) else None
        judge = scorer if getattr(create, "scored", False) else None
        note: dict[str, Any] = {
            "model": name,
            # Baselines that cannot use an auxiliary model ignore it.
            "auxiliary": None if usable is None else str(usable),
            "scorer": judge,
            "data": labelled.digest,
            "settings": chosen.model_dump(),
        }
        folder = Path(out) / create.kind
        if not overwrite and (folder / "artefact.json").exists():
            figures[create.kind] = _figures_there(folder, note, resumes=baseline == "all")
            continue
        tokenizer, plain = load_model(name, place, dtype)
        info = {"baseline": create.kind, "fingerprint": fingerprint(plain), **note}
        if usable is not None:
            small_tokenizer, plain = load_model(str(usable), place, dtype)
            check_vocabulary(small_tokenizer, tokenizer, str(usable), name)
            info["auxiliary_fingerprint"] = fingerprint(plain)
        made = blake2b(json.dumps(note).encode(), digest_size=4).hexdigest()
        unfinished = folder / f"unfinished-{made}"
        task = FitTask(
            name,
            tokenizer,
            plain,
            labelled,
            chosen.training(plain),
            progress=_named(create.kind, progress),
            learned=learned.setdefault(note["auxiliary"], {}),
            scorer=judge or "",
            checkpoints=unfinished,
            say=_named(create.kind, say),
        )
        with guarded(EngineError, f"baseline {create.kind}: cannot be fitted"):
            fitted: Fitted = create.fit(task)
        found = {"held_out": fitted.held_out, "doubts": list(fitted.doubts)}
        save_artefact(folder, fitted.tensors, {**info, "training": asdict(task.settings), **found})
        warn_of(create.kind, fitted.doubts)
        figures[create.kind] = fitted.held_out
        shutil.rmtree(unfinished, ignore_errors=True)
        del tokenizer, plain, task, fitted  # before the next model is loaded
    return figures


def _that_learn(names: Iterable[str]) -> list[Any]:
    return [create for create in map(REGISTRY.load, names) if getattr(create, "learned", False)]


def _figures_there(folder: Path, note: dict[str, Any], *, resumes: bool) -> dict[str, float]:
    """The figures of the artefact in `folder`; InputError if it is another."""
    try:
        there = json.loads(read_small(folder / "artefact.json"))
        same = {key: there.get(key) for key in note} == note
    except (OSError, ValueError, AttributeError):
        same = False
    if not (resumes and same):
        made = "" if same else ", made in another way"
        raise InputError(f"{folder}: holds an artefact already{made}; use --overwrite")
    warn_of(folder.name, there.get("doubts", ()))
    return dict(there.get("held_out", {}))


def _named(kind: str, call: Callable[..., None]) -> Callable[..., None]:
    """`call`, with the name of the baseline before its first argument."""
    return lambda first, *rest: call(f"{kind}: {first}", *rest)

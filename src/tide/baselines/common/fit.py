"""`tide fit`, from Python: fits a baseline and writes its artefact."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tide.baselines import REGISTRY
from tide.baselines.common.artefacts import fingerprint, save_artefact
from tide.baselines.common.auxiliary import check_vocabulary
from tide.baselines.common.fitting import FitTask, Fitted, OnProgress
from tide.baselines.common.labelled import read_labelled
from tide.baselines.common.settings import FitSettings
from tide.core.errors import EngineError, InputError, guarded
from tide.core.pretrained import find_device
from tide.core.sanitize import logger
from tide.data.files import read_small
from tide.engines.local.engine import load_model

_LOG = logger(__name__)


def fit(
    baseline: str,
    data: Path | str | Iterable[Path | str],
    out: Path | str,
    *,
    model: Path | str = "pocket",
    auxiliary: Path | str | None = None,
    scorer: str = "pocket",
    device: str = "auto",
    dtype: str = "auto",
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
        scorer: Scores what the model writes, for baselines that learn from that.
        device: As for `Detoxifier`.
        dtype: As for `Detoxifier`.
        overwrite: Fit again. Otherwise "all" keeps what an identical call has finished.
        progress: Called with what is being done, how much is done, and how much there is.
        say: Called with a line for the reader: how long a training will take.
        **settings: Those of `FitSettings`.

    An interrupted training goes on from its checkpoint in `out`, written every five minutes.

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
    chosen = FitSettings.of(**settings)
    labelled = read_labelled(map(Path, [data] if isinstance(data, Path | str) else data))
    figures: dict[str, dict[str, float]] = {}
    learned: dict[str | None, dict[bool, Fitted]] = {}
    for create in learning:
        usable = auxiliary if getattr(create, "auxiliary", False) else None
        judge = scorer if getattr(create, "scored", False) else None
        note: dict[str, Any] = {
            "model": str(model),
            # Baselines that cannot use an auxiliary model ignore it.
            "auxiliary": None if usable is None else str(usable),
            "scorer": judge,
            "data": labelled.digest,
            "settings": chosen.model_dump(),
        }
        folder = Path(out) / create.kind
        held_out = None
        if not overwrite:
            held_out = _figures_there(folder, note, resumes=baseline == "all")
        if held_out is None:
            made = blake2b(json.dumps(note).encode(), digest_size=4).hexdigest()
            unfinished = folder / f"unfinished-{made}"
            task_of = partial(
                FitTask,
                name=str(model),
                data=labelled,
                progress=partial(_step, progress, create.kind),
                learned=learned.setdefault(note["auxiliary"], {}),
                scorer=judge or "",
                checkpoints=unfinished,
                say=partial(_told, say, create.kind),
            )
            held_out = _fit(create, note, (device, dtype), chosen, folder, task_of)
            shutil.rmtree(unfinished, ignore_errors=True)
        figures[create.kind] = held_out
    return figures


def _that_learn(names: Iterable[str]) -> list[Any]:
    return [create for create in map(REGISTRY.load, names) if getattr(create, "learned", False)]


def _figures_there(folder: Path, note: dict[str, Any], *, resumes: bool) -> dict[str, float] | None:
    """The figures of the artefact in `folder`, None without one; InputError if it is another."""
    path = folder / "artefact.json"
    if not path.exists():
        return None
    try:
        there = json.loads(read_small(path))
        same = {key: there.get(key) for key in note} == note
    except (OSError, ValueError, AttributeError):
        same = False
    if not (resumes and same):
        made = "" if same else ", made in another way"
        raise InputError(f"{folder}: holds an artefact already{made}; use --overwrite")
    _say(folder.name, there.get("doubts", ()))
    return dict(there.get("held_out", {}))


def _told(say: Callable[[str], None], kind: str, line: str) -> None:
    say(f"{kind}: {line}")


def _step(progress: OnProgress, kind: str, what: str, done: int, total: int) -> None:
    progress(f"{kind}: {what}", done, total)


def _say(kind: str, doubts: Iterable[str]) -> None:
    for doubt in doubts:
        _LOG.warning("baseline %s: too weak for a fair comparison: %s", kind, doubt)


def _fit(
    create: Any,
    note: dict[str, Any],
    loading: tuple[str, str],
    settings: FitSettings,
    folder: Path,
    task_of: Callable[..., FitTask],
) -> dict[str, float]:
    """Fit one baseline, save it with `note`, and return its held-out figures."""
    name, auxiliary = note["model"], note["auxiliary"]
    device = find_device(loading[0])
    tokenizer, plain = load_model(name, device, loading[1])
    info = {"baseline": create.kind, "fingerprint": fingerprint(plain), **note}
    if auxiliary is not None:
        small_tokenizer, plain = load_model(auxiliary, device, loading[1])
        check_vocabulary(small_tokenizer, tokenizer, auxiliary, name)
        info["auxiliary_fingerprint"] = fingerprint(plain)
    task = task_of(tokenizer=tokenizer, model=plain, settings=settings.training(plain))
    with guarded(EngineError, f"baseline {create.kind}: cannot be fitted"):
        fitted: Fitted = create.fit(task)
    found = {"held_out": fitted.held_out, "doubts": list(fitted.doubts)}
    save_artefact(folder, fitted.tensors, {**info, "training": asdict(task.settings), **found})
    _say(create.kind, fitted.doubts)
    return fitted.held_out

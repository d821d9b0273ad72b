"""`tide fit`: learn what the baselines need."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tide.baselines import REGISTRY
from tide.baselines.common.labelled import Labelled, read_labelled
from tide.baselines.common.settings import FitSettings
from tide.cli import options
from tide.cli.display import ERRORS, OUTPUT, progress_bar
from tide.errors import InputError

if TYPE_CHECKING:
    from tide.baselines.common.fitting import Fitted


@partial(options.with_settings, settings=FitSettings, panel="Training")
def fit(
    baseline: Annotated[str, typer.Argument(help="A baseline that learns something, or all.")],
    data: Annotated[
        list[Path],
        typer.Option(
            "--data", help="Labelled texts: .jsonl of text, toxicity or toxic, neutral. Repeat."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder; each baseline gets one inside.")],
    model: options.Model = "pocket",
    auxiliary: Annotated[
        str | None,
        typer.Option(help="Smaller model of the same vocabulary, for rad, dexperts and gedi."),
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    overwrite: options.Overwrite = False,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Fit BASELINE for a model: statistics, steering vectors or a small training.

    A tenth of the data is held out for the figures that are printed. What `all` has finished is
    kept when the same command is started again; --overwrite fits anew.
    """
    learned = [name for name in REGISTRY.names() if REGISTRY.load(name).learned]
    if baseline != "all" and not REGISTRY.load(baseline).learned:
        raise InputError(f"baseline {baseline}: learns nothing; {', '.join(learned)} do")
    names = learned if baseline == "all" else [baseline]
    settings = FitSettings.of(**(overrides or {}))
    labelled = read_labelled(data)
    note = {
        "model": model,
        "auxiliary": auxiliary,
        "data": labelled.digest,
        "settings": settings.model_dump(),
    }
    table = Table("baseline", "held out", "seconds")
    for name in names:
        folder, create = out / name, REGISTRY.load(name)
        # What cannot use it is fitted the same with and without.
        own_note = note if create.auxiliary else {**note, "auxiliary": None}
        if not overwrite and _is_there(folder, own_note, resumes=baseline == "all"):
            ERRORS.print(f"{folder}: is there already", markup=False)
            continue
        started = time.monotonic()
        held_out = _fit(create, own_note, (device, dtype), labelled, settings, folder)
        figures = ", ".join(f"{key} {value:.3f}" for key, value in held_out.items())
        table.add_row(name, figures, f"{time.monotonic() - started:.0f}")
    OUTPUT.print(table)


def _is_there(folder: Path, note: dict[str, Any], *, resumes: bool) -> bool:
    """Whether `folder` holds an artefact; InputError if it is not what this command makes."""
    path = folder / "artefact.json"
    if not path.exists():
        return False
    try:
        there = json.loads(path.read_bytes())
        same = {key: there.get(key) for key in note} == note
    except (OSError, ValueError, AttributeError):
        same = False
    if not (resumes and same):
        made = "" if same else ", made in another way"
        raise InputError(f"{folder}: holds an artefact already{made}; use --overwrite")
    return True


def _fit(
    create: Any,
    note: dict[str, Any],
    loading: tuple[str, str],
    data: Labelled,
    settings: FitSettings,
    folder: Path,
) -> dict[str, float]:
    """Fit one baseline, save it with `note`, and return its held-out figures."""
    # Slow imports, which the other commands must not wait for.
    from tide.baselines.common.artefacts import fingerprint, save_artefact  # noqa: PLC0415
    from tide.baselines.common.auxiliary import check_vocabulary  # noqa: PLC0415
    from tide.baselines.common.fitting import FitTask  # noqa: PLC0415
    from tide.engines.local.engine import find_device, load_model  # noqa: PLC0415

    name, auxiliary = note["model"], note["auxiliary"]
    device = find_device(loading[0])
    tokenizer, plain = load_model(name, device, loading[1])
    info = {"baseline": create.kind, "fingerprint": fingerprint(plain), **note}
    if auxiliary is not None:
        small_tokenizer, plain = load_model(auxiliary, device, loading[1])
        check_vocabulary(small_tokenizer, tokenizer, auxiliary, name)
        info["auxiliary_fingerprint"] = fingerprint(plain)
    with progress_bar() as bar:
        task = bar.add_task(create.kind, total=None)
        fitted: Fitted = create.fit(
            FitTask(
                name=name,
                tokenizer=tokenizer,
                model=plain,
                data=data,
                settings=settings,
                progress=lambda what, done, total: bar.update(
                    task, description=f"{create.kind}: {what}", completed=done, total=total
                ),
            )
        )
    save_artefact(folder, fitted.tensors, {**info, "held_out": fitted.held_out})
    return fitted.held_out

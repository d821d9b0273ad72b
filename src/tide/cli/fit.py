"""`tide fit`: learn what the baselines need."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tide.baselines import REGISTRY
from tide.baselines.artefacts import fingerprint, save_artefact
from tide.baselines.auxiliary import check_vocabulary
from tide.baselines.fitting import FitSettings, FitTask, Fitted
from tide.baselines.labelled import Labelled, read_labelled
from tide.cli import options
from tide.cli.display import ERRORS, OUTPUT, progress_bar
from tide.engines.transformers import find_device, load_model
from tide.errors import InputError

_DEFAULTS = FitSettings()


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
    steps: Annotated[int, typer.Option(help="Steps of each training.")] = _DEFAULTS.steps,
    batch_size: Annotated[int, typer.Option(help="Texts in a step.")] = _DEFAULTS.batch_size,
    learning_rate: Annotated[
        float, typer.Option(help="Largest step size of AdamW.")
    ] = _DEFAULTS.learning_rate,
    rank: Annotated[int, typer.Option(help="Rank of the LoRA updates.")] = _DEFAULTS.rank,
    max_tokens: Annotated[
        int, typer.Option(help="Texts are cut to so many tokens.")
    ] = _DEFAULTS.max_tokens,
    max_texts: Annotated[int, typer.Option(help="Most texts that are read.")] = _DEFAULTS.max_texts,
    seed: Annotated[int, typer.Option(help="Seed of split, order and weights.")] = _DEFAULTS.seed,
    overwrite: options.Overwrite = False,
) -> None:
    """Fit BASELINE for a model: statistics, steering vectors or a small training.

    A tenth of the data is held out for the figures that are printed. What `all` has finished is
    kept when it is started again; --overwrite fits anew.
    """
    learned = [name for name in REGISTRY.names() if REGISTRY.load(name).learned]
    if baseline != "all" and not getattr(REGISTRY.load(baseline), "learned", False):
        raise InputError(
            f"baseline {baseline}: learns nothing; those that do: {', '.join(learned)}"
        )
    names = learned if baseline == "all" else [baseline]
    settings = FitSettings.of(
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        rank=rank,
        max_tokens=max_tokens,
        max_texts=max_texts,
        seed=seed,
    )
    labelled = read_labelled(data)
    table = Table("baseline", "held out", "seconds")
    for name in names:
        folder = out / name
        if (folder / "artefact.json").exists() and not overwrite:
            if baseline != "all":
                raise InputError(f"{folder}: holds an artefact already; use --overwrite")
            ERRORS.print(f"{folder}: is there already", markup=False)
            continue
        started = time.monotonic()
        held_out = _fit(
            REGISTRY.load(name), model, auxiliary, (device, dtype), labelled, settings, folder
        )
        figures = ", ".join(f"{key} {value:.3f}" for key, value in held_out.items())
        table.add_row(name, figures, f"{time.monotonic() - started:.0f}")
    OUTPUT.print(table)


def _fit(
    create: Any,
    model: str,
    auxiliary: str | None,
    loading: tuple[str, str],
    data: Labelled,
    settings: FitSettings,
    folder: Path,
) -> dict[str, float]:
    """Fit one baseline, save it, and return its held-out figures."""
    device = find_device(loading[0])
    tokenizer, plain = load_model(model, device, loading[1])
    info: dict[str, Any] = {
        "baseline": create.kind,
        "model": model,
        "fingerprint": fingerprint(plain),
        "auxiliary": None,
    }
    if auxiliary is not None and create.auxiliary:
        small_tokenizer, plain = load_model(auxiliary, device, loading[1])
        check_vocabulary(small_tokenizer, tokenizer, auxiliary, model)
        info |= {"auxiliary": auxiliary, "auxiliary_fingerprint": fingerprint(plain)}
    with progress_bar() as bar:
        task = bar.add_task(create.kind, total=None)
        fitted: Fitted = create.fit(
            FitTask(
                name=model,
                tokenizer=tokenizer,
                model=plain,
                data=data,
                settings=settings,
                progress=lambda what, done, total: bar.update(
                    task, description=f"{create.kind}: {what}", completed=done, total=total
                ),
            )
        )
    info |= {"settings": settings.model_dump(), "held_out": fitted.held_out}
    save_artefact(folder, fitted.tensors, info)
    return fitted.held_out

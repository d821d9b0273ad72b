"""`tide fit`: learn what the baselines need."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tide.baselines.common.settings import FitSettings
from tide.cli import options
from tide.cli.display import OUTPUT, progress_bar


@partial(options.with_settings, settings=FitSettings, panel="Training")
def fit(
    baseline: Annotated[str, typer.Argument(help="A baseline that learns something, or all.")],
    data: Annotated[
        list[Path],
        options.option(
            "Input",
            "Labelled .jsonl: text and toxicity, or toxic and neutral; repeatable.",
            "--data",
        ),
    ],
    out: Annotated[
        Path, options.option("Output", "Folder; each baseline gets one inside.", "--out")
    ],
    model: options.Model = "pocket",
    auxiliary: Annotated[
        str | None,
        options.option("Model", "Smaller model, same vocabulary, for baselines that take one."),
    ] = None,
    scorer: Annotated[
        str, options.option("Scorer", "Scorer of generated text, for baselines that need one.")
    ] = "pocket",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    overwrite: options.Overwrite = False,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Fit BASELINE for a model: statistics, steering vectors or fine-tuning.

    A tenth of the data is held out for the figures that are printed. `all` resumes: finished
    baselines are kept, unless --overwrite is given.
    """
    from tide.baselines.common.fit import fit as learn  # noqa: PLC0415  (slow import)

    with progress_bar() as bar:
        task = bar.add_task(baseline, total=None)
        figures = learn(
            baseline,
            data,
            out,
            model=model,
            auxiliary=auxiliary,
            scorer=scorer,
            device=device,
            dtype=dtype,
            overwrite=overwrite,
            progress=lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            ),
            **(overrides or {}),
        )
    table = Table("baseline", "held out")
    for kind, held_out in figures.items():
        table.add_row(kind, ", ".join(f"{name} {value:.3f}" for name, value in held_out.items()))
    OUTPUT.print(table)

"""`tide fit`: fit baselines to a model. `tide data`: download public datasets."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tide.baselines.base import FitSettings
from tide.cli import options
from tide.cli.display import OUTPUT, say_loading
from tide.evaluation.benchmarks import SOURCES, download
from tide.evaluation.console import ERRORS, log_finished, progress_bar
from tide.scorers import DEFAULT_SCORER


@partial(options.with_settings, settings=FitSettings, panel="Training")
def fit(
    baseline: Annotated[str, typer.Argument(help="The baseline to fit.")],
    data: Annotated[list[Path], options.option("Input", "Labelled texts (.jsonl); repeatable.")],
    out: Annotated[Path, options.option("Output", "Folder; each baseline gets a subfolder.")],
    model: options.Model = "pocket",
    auxiliary: Annotated[
        str | None, options.option("Model", "Smaller model with the same vocabulary, if usable.")
    ] = None,
    scorer: Annotated[str, options.option("Scorer", "Scorer of texts that the fit writes.")] = (
        DEFAULT_SCORER
    ),
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    overwrite: options.Overwrite = False,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Fit BASELINE for a model: statistics, steering vectors or fine-tuning.

    A row of the data has text and toxicity, or toxic and neutral (a list of texts). A tenth of the
    rows (at least 40, or half if there are fewer than 80) is held out for the printed figures.
    """
    from tide.baselines.fit import fit as learn  # noqa: PLC0415  (slow import)

    say_loading(model)
    with progress_bar() as bar:
        task = bar.add_task(baseline, total=None)

        def show(step: str, done: int, total: int) -> None:
            bar.update(task, description=step, completed=done, total=total)
            if done == total:
                log_finished(step)

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
            progress=show,
            **(overrides or {}),
        )
    measured = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
    OUTPUT.print(f"{baseline} on held-out texts: {measured or 'no figures'}")


data_app = typer.Typer(help="Datasets for `tide eval` and `tide fit`.", no_args_is_help=True)


@data_app.callback()
def _data() -> None:
    pass


@data_app.command("get", cls=options.Command)
def get(
    names: Annotated[list[str], typer.Argument(help=f"One or several of {', '.join(SOURCES)}.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", envvar="TIDE_DATA", help="Folder to write to.")
    ] = Path("data"),
    overwrite: options.Overwrite = False,
) -> None:
    """Download NAMES from the Hugging Face hub (needs the extra hub).

    rtp, attaq and bold are benchmarks, which `tide eval` reads from the folder in TIDE_DATA
    (default: data). civil-comments and paradetox are labelled texts for `tide fit --data`.
    """
    for name in names:
        ERRORS.print(f"{name}: {download(name, out, overwrite=overwrite)}")

"""The command line. One file a command, or a group of them."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from tide.cli import doctor, evaluate, fit, judge, methods, report, run, score, scorers
from tide.cli.display import ERRORS
from tide.errors import TideError

app = typer.Typer(
    help="Test-time detoxification of language models by moving the prompt embeddings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("eval")(evaluate.evaluate)
app.command("judge")(judge.judge)
app.command("score")(score.score)
app.command("report")(report.report)
app.command("fit")(fit.fit)
app.command("methods")(methods.methods)
app.command("doctor")(doctor.doctor)
app.add_typer(scorers.app, name="scorers")


def _print_version(wanted: bool) -> None:
    if wanted:
        from tide import __version__  # noqa: PLC0415

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: a TideError is one line on stderr and exit code 1, Ctrl-C is 130."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.getLogger("tide").addHandler(handler)
    # Loading bars of a model that loads in a moment would only push the results off the screen.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app()
    except TideError as error:
        ERRORS.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        ERRORS.print("stopped", style="yellow")
        sys.exit(130)

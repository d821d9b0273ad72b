"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from tide.cli import (
    data,
    doctor,
    evaluate,
    fit,
    judge,
    methods,
    report,
    run,
    score,
    scorers,
    serve,
    sweep,
    tune,
)

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
app.command("serve", context_settings={"auto_envvar_prefix": serve.PREFIX})(serve.serve)
app.command("report")(report.report)
app.command("tune")(tune.tune)
app.command("sweep")(sweep.sweep)
app.command("fit")(fit.fit)
app.command("methods")(methods.methods)
app.command("doctor")(doctor.doctor)
app.add_typer(scorers.app, name="scorers")
app.add_typer(data.app, name="data")


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
